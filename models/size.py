"""How large a network is, by its sizes alone: nothing is built, and torch is not loaded."""

from __future__ import annotations

from typing import Final

from tacit.models.configuration import ModelConfiguration

TRAINING_BYTES: Final = {"adamw": 28, "sgd": 20}
"""For each parameter, of whoever trains: the model as it came and as it is trained, its gradient, the update as learnt
and clipped; AdamW's two moments. In float32."""
KEEPING_BYTES: Final = 16
"""For each parameter, of whoever keeps the model: the model twice, what changes it, and its bytes for the others."""


def parameters(model: ModelConfiguration, *, classes: int, channels: int) -> int | None:
    """Parameters of our own vision transformer; None for other networks, which are not known before they are built."""
    if model.name != "vit":
        return None
    width, hidden = model.width, int(model.width * model.mlp_ratio)
    patches = (model.image_size // model.patch_size) ** 2
    embedding = (channels * model.patch_size**2 + 1) * width + (patches + 2) * width
    attention, mlp = 4 * width * (width + 1), 2 * width * hidden + width + hidden
    # Two layer norms in a block, and one after the last.
    return embedding + model.depth * (attention + mlp + 4 * width) + 2 * width + (width + 1) * classes


def check_memory(model: ModelConfiguration, *, bytes_each: int, available: int | None) -> None:
    """Raise ValueError if a model that takes so many bytes for each parameter, whatever else there is, does not fit."""
    # One class and one channel: the fewest that a model has.
    count = parameters(model, classes=1, channels=1)
    if count is not None and available is not None and (needed := count * bytes_each) > available:
        raise ValueError(
            f"model.width = {model.width}, model.depth = {model.depth}: {count / 1e6:,.0f} million parameters take at "
            f"least {gigabytes(needed)} of memory to be trained, and {gigabytes(available)} are available; take a "
            "smaller model, or a larger machine"
        )


def gigabytes(count: float) -> str:
    """So many bytes in words."""
    return f"{count / 1e9:,.1f} GB"
