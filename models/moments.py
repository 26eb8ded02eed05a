"""Mean and standard deviation of pixels from integer sums, which add up over parties without error.

A pixel is a level from 0 to 255. For n pixels of a channel with sum S and sum of squares Q, the mean is S / n, and the
variance (n Q - S^2) / n^2, without a difference of rounded numbers. S and Q are rounded only at a party whose coloured
images become grey, where a pixel is a third of the sum of its three levels: each by at most 1/2. With s such parties
the mean is then off by at most s / 2n levels, and the variance by at most s / 2n + 255 s / n + (s / 2n)^2 levels^2.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import sqrt
from typing import Final

import numpy as np
import numpy.typing as npt

from tacit.models.datasets.samples import Images, Indices
from tacit.models.interruption import Proceed, to_the_end

HIGHEST: Final = 255
_BLOCK: Final = 1024


@dataclass(frozen=True)
class Moments:
    pixels: int
    """Per channel."""
    sums: tuple[int, ...]
    """Sum of levels, by channel."""
    squares: tuple[int, ...]

    def __add__(self, other: Moments) -> Moments:
        pairs = ((self.sums, other.sums), (self.squares, other.squares))
        sums, squares = (tuple(a + b for a, b in zip(*pair, strict=True)) for pair in pairs)
        return Moments(self.pixels + other.pixels, sums, squares)

    def check(self, parties: int) -> None:
        """Raise ValueError unless so many parties could have pixels like these."""
        slack = parties * HIGHEST  # What is rounded.
        for total, squares in zip(self.sums, self.squares, strict=True):
            # A square is at most 255 times its level, and n Q >= S^2 (Cauchy and Schwarz).
            possible = total <= HIGHEST * self.pixels + slack and squares <= HIGHEST * total + slack
            if not self.pixels or not possible or self.pixels * (squares + slack) < total**2 - 2 * slack * total:
                raise ValueError(f"{self.pixels} pixels with the sums {total} and {squares} of squares do not exist")

    def normalisation(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return mean and standard deviation of every channel, as fractions of 255, with only binary64 rounding.

        A constant channel has a deviation of one level: it becomes zero everywhere.
        """
        mean = tuple(min(total / (HIGHEST * self.pixels), 1.0) for total in self.sums)
        spreads = (self.pixels * squares - total**2 for total, squares in zip(self.sums, self.squares, strict=True))
        return mean, tuple(
            min(sqrt(spread) / (HIGHEST * self.pixels), 1.0) if spread > 0 else 1.0 / HIGHEST for spread in spreads
        )


def moments(
    images: Images,
    *,
    channels: int,
    image_size: int,
    indices: Indices | None = None,
    proceed: Proceed = to_the_end,
) -> Moments:
    """Return the moments of these images, by default all, in so many channels; coloured ones become grey where there is
    one.

    image_size: target size of images in files. ValueError for other channels, and for a file that cannot be decoded.
    """
    if images.channels not in (channels, 3):
        raise ValueError(f"the images have {images.channels} channels, and the statistics are of {channels}")
    indices = np.arange(len(images)) if indices is None else indices
    # As many levels as a pixel can have: the sum of three channels that become one.
    parts = images.channels // channels if channels == 1 else 1
    histogram = np.zeros((channels, HIGHEST * parts + 1), dtype=np.int64)
    for start in range(0, len(indices), _BLOCK):
        proceed()
        pixels = images.pixels(indices[start : start + _BLOCK], size=image_size)
        levels = pixels if parts == 1 else pixels.sum(-1, keepdims=True, dtype=np.int64)
        for channel, counts in enumerate(histogram):
            counts += np.bincount(levels[..., channel].reshape(-1), minlength=len(counts))
    levels = np.arange(histogram.shape[1])
    return Moments(
        int(histogram[0].sum()), _rounded(histogram @ levels, parts), _rounded(histogram @ levels**2, parts**2)
    )


def _rounded(totals: npt.NDArray[np.int64], by: int) -> tuple[int, ...]:
    return tuple(round(Fraction(total, by)) for total in totals.tolist())
