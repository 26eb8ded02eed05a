"""Real numbers to integers by stochastic rounding, so that sums over many clients stay unbiased.

A value x in [-limit, limit] becomes y = x * levels / limit in [-levels, levels], levels = 2^(bits-1) - 1, and is
rounded up with probability y - floor(y), else down. That is floor(y + u) for a uniform u, written as
floor(y) + [u < y - floor(y)] because y - floor(y) is exact in floating point and y + u is not.
The mean of the integer is y, and the error is below one step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Quantiser:
    """Maps [-limit, limit] onto the integers of `bits` bits, 2 to 32 (ValueError otherwise)."""

    limit: float
    bits: int

    def __post_init__(self) -> None:
        if not 2 <= self.bits <= 32:
            raise ValueError(f"values take 2 to 32 bits, not {self.bits}")
        if not (math.isfinite(self.limit) and self.limit > 0):
            raise ValueError(f"the limit of values is a positive number, not {self.limit}")

    @property
    def levels(self) -> int:
        """The integer that stands for `limit`."""
        return (1 << (self.bits - 1)) - 1

    @property
    def step(self) -> float:
        """What one integer step is worth: the bound of the error of every value."""
        return self.limit / self.levels

    def quantise(
        self, values: npt.NDArray[np.floating[Any]], generator: np.random.Generator, *, offset: int = 0
    ) -> tuple[npt.NDArray[np.int32], int]:
        """The integers of `values` [n], and how many values were outside the limit and have been clipped to it.

        Draws n float64 from `generator`. Works on copies, about 40 bytes per value: pass long vectors block by block.
        ValueError on NaN and infinity, naming the first index; `offset` is the index of values[0] in the whole vector.
        """
        scaled = values.astype(np.float64)
        magnitudes = np.abs(scaled)
        largest = magnitudes.max(initial=0.0)
        if not math.isfinite(largest):
            index = int(np.argmin(np.isfinite(scaled)))
            raise ValueError(f"value {offset + index} is {scaled[index]}: only finite numbers can be aggregated")
        clipped = int(np.count_nonzero(magnitudes > self.limit)) if largest > self.limit else 0
        scaled *= self.levels / self.limit
        np.clip(scaled, -self.levels, self.levels, out=scaled)
        lower = np.floor(scaled)
        lower += generator.random(len(scaled)) < np.subtract(scaled, lower, out=scaled)
        return lower.astype(np.int32), clipped

    def dequantise(self, sums: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """The real numbers that integers, or sums of integers, stand for."""
        return np.multiply(sums, self.step, dtype=np.float64)
