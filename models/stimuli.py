"""Images that a server sends to every client, so that all compare their models on the same ones (representation.py).

They travel inside the configuration, one byte per value. Only functions that make tensors import torch.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Final, Self

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta

if TYPE_CHECKING:
    import torch

STIMULI_PER_CLASS: Final = 2
FEWEST_STIMULI: Final = 3
"""Three pairs: a correlation of two is always 1."""
MOST_STIMULUS_BYTES: Final = 4 << 20
"""Limit of what the configuration's single message carries."""
_SEED: Final = 0

Finite = Annotated[float, Meta(ge=-1e9, le=1e9)]


class Stimuli(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A server's images in the form sent to every client: one byte per value, from `low` (0) to `high` (255).

    Raises ValueError for pixels that do not match the shape, and for fewer than FEWEST_STIMULI.
    """

    shape: tuple[Annotated[int, Meta(ge=1, le=65536)], ...]
    """Images, channels, height, width."""
    low: Finite
    high: Finite
    pixels: Annotated[bytes, Meta(max_length=MOST_STIMULUS_BYTES)]

    def __post_init__(self) -> None:
        if len(self.shape) != 4 or math.prod(self.shape) != len(self.pixels) or self.low > self.high:
            raise ValueError(f"stimuli of {len(self.pixels)} bytes are not images of shape {list(self.shape)}")
        if self.shape[0] < FEWEST_STIMULI:
            raise ValueError(f"{self.shape[0]} stimuli are too few to compare; at least {FEWEST_STIMULI} are needed")

    @classmethod
    def of(cls, x: torch.Tensor) -> Self:
        """Encode images float32 [n, C, S, S] as stimuli, rounded. ValueError for more than MOST_STIMULUS_BYTES."""
        if x.numel() > MOST_STIMULUS_BYTES:
            raise ValueError(
                f"{len(x)} stimuli of {' x '.join(map(str, x.shape[1:]))} values are more than "
                f"{MOST_STIMULUS_BYTES >> 20} MiB, which fit one message; lower model.image_size"
            )
        import torch

        low, high = float(x.min()), float(x.max())
        levels = ((x.double() - low) / max(high - low, 1e-9) * 255).round().to(torch.uint8)
        return cls(shape=tuple(x.shape), low=low, high=high, pixels=levels.numpy().tobytes())

    def tensor(self) -> torch.Tensor:
        """float32 [n, C, S, S]."""
        import torch

        levels = np.frombuffer(self.pixels, np.uint8).reshape(self.shape)
        return torch.from_numpy((self.low + levels * ((self.high - self.low) / 255)).astype(np.float32))


def stimulus_indices(labels: npt.NDArray[np.int64], classes: int) -> npt.NDArray[np.int64]:
    """Select stimuli among images [N]: the first STIMULI_PER_CLASS of every class in a fixed random order, sorted."""
    order = np.random.default_rng(_SEED).permutation(len(labels))
    chosen = [order[labels[order] == label][:STIMULI_PER_CLASS] for label in range(classes)]
    return np.sort(np.concatenate(chosen))
