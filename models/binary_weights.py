"""Random binary weights (Sawada et al. 2024): every client zeroes random coordinates of its update.

A coordinate is zero with probability R (Eq. 11), the same for all tensors or by patterns over their names. The mean of
a coordinate is taken over the clients whose weight there is one (Eq. 12), which the counts of the secure sum tell.

How often a coordinate is updated in m rounds by n clients follows from R alone: with fresh weights every round it is
binomial, P(f) = C(m, f) (1 - R^n)^f R^(n(m - f)) (Eq. 13; the exponent printed there, n - f, does not sum to one); with
locked weights a coordinate is updated always, with probability 1 - R^n, or never.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from math import comb
from typing import Final

import numpy as np
import numpy.typing as npt

from tacit.models.layout import Layout

RESOLUTION: Final = 1 << 16
"""Probabilities are multiples of 1/65536: a coordinate costs two random bytes."""


def zero_probabilities(layout: Layout, default: float, patterns: Mapping[str, float]) -> tuple[float, ...]:
    """R of every tensor of the layout. patterns: shell patterns over the names, of which the last match counts.

    Raises ValueError for a pattern that matches no tensor.
    """
    for pattern in patterns:
        if not any(fnmatchcase(entry.name, pattern) for entry in layout.entries):
            names = ", ".join(entry.name for entry in layout.entries[:8])
            raise ValueError(
                f'protection.layers: "{pattern}" matches no tensor of this model; its tensors are {names}, ...'
            )
    return tuple(
        [default, *(zero for pattern, zero in patterns.items() if fnmatchcase(entry.name, pattern))][-1]
        for entry in layout.entries
    )


def binary_weights(
    layout: Layout, probabilities: tuple[float, ...], random: npt.NDArray[np.uint16]
) -> npt.NDArray[np.bool_]:
    """B [D], False with the probability of its tensor. random: uniform uint16 [D]; its secrecy is that of B."""
    if random.dtype != np.uint16 or random.shape != (layout.size,):
        raise ValueError(f"expected {layout.size} random uint16, got {random.dtype} {list(random.shape)}")
    weights = np.empty(layout.size, np.bool_)
    start = 0
    for size, zero in zip(layout.tensor_sizes, probabilities, strict=True):
        threshold = min(round(zero * RESOLUTION), RESOLUTION - 1)
        np.greater_equal(random[start : start + size], threshold, out=weights[start : start + size])
        start += size
    return weights


def update_distribution(rounds: int, clients: int, zero: float, *, locked: bool) -> npt.NDArray[np.float64]:
    """P(f) for f = 0..rounds [rounds + 1]: how often a coordinate is updated by at least one client."""
    updated = 1.0 - zero**clients
    if locked:
        chances = np.zeros(rounds + 1)
        chances[[0, -1]] = 1.0 - updated, updated
        return chances
    return np.array([comb(rounds, f) * updated**f * (1.0 - updated) ** (rounds - f) for f in range(rounds + 1)])
