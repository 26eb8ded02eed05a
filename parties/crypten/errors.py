"""The error for a missing CrypTen."""


class CryptenMissingError(ImportError, ValueError):
    """CrypTen is not installed: an ImportError for programs, and a rejected value for commands."""

    def __init__(self, reason: ImportError) -> None:
        super().__init__(
            f"this needs CrypTen, which cannot be imported ({reason}): pip install omegaconf onnx pyyaml "
            "tensorboard, then pip install --no-deps crypten==0.4.1"
        )
