"""Differential privacy by Gaussian noise: an update is clipped to a largest norm, and noise is added.

This is the Gaussian mechanism (Dwork and Roth 2014, appendix A) on the whole update of a client. The noise is computed
in floating-point numbers, whose last bits can leak more than real numbers would (Mironov 2012, "On significance of the
least significant bits for differential privacy"); the stochastic rounding of the update to the far coarser steps of the
sum removes them.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from tacit.models.layout import Flat

_BLOCK: Final = 1 << 16
WORD_BYTES: Final = 8


def standard_normal(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    """Return one independent normal number per word, by Box and Muller (1958); the number of words is even.

    The upper 53 bits of each word make a number in (0, 1): a radius in the first half, an angle in the second.
    """
    radius, angle = ((words >> np.uint64(11)) + 0.5).reshape(2, -1) * 2.0**-53
    radius = np.sqrt(-2.0 * np.log(radius))
    angle *= 2.0 * np.pi
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])


def shortened(values: Flat, norm: float) -> Flat:
    """Clip the update, float32 [D], to this Euclidean norm; 0: no limit."""
    found = float(np.linalg.norm(values.astype(np.float64)))
    return values if norm == 0 or found <= norm else (values * (norm / found)).astype(np.float32)


def noise_bytes(size: int) -> int:
    """Return the number of uniform random bytes that the noise of an update of `size` coordinates consumes."""
    return WORD_BYTES * (size + size % 2)


def noisy(values: Flat, deviation: float, random: bytes) -> Flat:
    """Add Gaussian noise of this standard deviation to every coordinate of an update, float32 [D].

    random: `noise_bytes(D)` uniform bytes, used once and kept secret. Raises ValueError for another number of them.
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
