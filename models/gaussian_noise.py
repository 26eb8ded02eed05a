"""Differential privacy by Gaussian noise: an update is shortened to a largest norm and made noisy.

This is the Gaussian mechanism (Dwork and Roth 2014, "The Algorithmic Foundations of Differential Privacy", appendix A)
on the whole update of a client. What happens to it afterwards, be it clipping, rounding or summing, reveals no more.
The noise is computed in floating-point numbers, whose last bits can give away more than real numbers would (Mironov
2012, "On significance of the least significant bits for differential privacy"); the stochastic rounding of the update
to the steps of the sum, which are far coarser, removes them.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from tacit.models.layout import Flat

_BLOCK: Final = 1 << 16
WORD_BYTES: Final = 8


def standard_normal(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    """As many independent numbers as words, of which there is an even number, by Box and Muller (1958).

    Of each word the upper 53 bits make a number in (0, 1): of the first half a radius, of the second an angle.
    """
    radius, angle = ((words >> np.uint64(11)) + 0.5).reshape(2, -1) * 2.0**-53
    radius = np.sqrt(-2.0 * np.log(radius))
    angle *= 2.0 * np.pi
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])


def shortened(values: Flat, norm: float) -> Flat:
    """The update float32 [D], shortened to this Euclidean norm if it is longer; 0 stands for any norm."""
    found = float(np.linalg.norm(values.astype(np.float64)))
    return values if norm == 0 or found <= norm else (values * (norm / found)).astype(np.float32)


def noise_bytes(size: int) -> int:
    """How many uniform random bytes the noise of an update of `size` coordinates takes."""
    return WORD_BYTES * (size + size % 2)


def noisy(values: Flat, deviation: float, random: bytes) -> Flat:
    """The update float32 [D] with Gaussian noise of this standard deviation on every coordinate.

    random: `noise_bytes(D)` uniform bytes, to be used once and kept secret; ValueError for another number of them.
    """
    if len(random) != noise_bytes(len(values)):
        raise ValueError(f"the noise takes {noise_bytes(len(values))} random bytes, not {len(random)}")
    words = np.frombuffer(random, "<u8")
    result = np.empty_like(values)
    for start in range(0, len(values), _BLOCK):
        drawn = standard_normal(words[start : start + _BLOCK])
        part = values[start : start + _BLOCK]
        result[start : start + _BLOCK] = part + deviation * drawn[: len(part)]
    return result
