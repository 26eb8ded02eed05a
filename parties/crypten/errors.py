"""The errors of a secure computation: of one that cannot go on, and of one that cannot begin without CrypTen."""


class MpcError(Exception):
    """The computation cannot go on. The text names the party and the operation, and says what to do."""

    def __init__(self, party: str, operation: str, reason: str) -> None:
        super().__init__(f"{party!r}, {operation}: {reason}")
        self.party = party
        """Name of the party at fault, in the roster's spelling; several are separated by commas."""
        self.operation = operation


class CryptenMissingError(ImportError, ValueError):
    """CrypTen is not installed: an ImportError for programs, and for commands a request that cannot be met here."""

    def __init__(self, reason: ImportError) -> None:
        super().__init__(
            f"this needs CrypTen, which cannot be imported ({reason}): pip install 'tacit[crypten]', then "
            "pip install --no-deps crypten==0.4.1"
        )
