"""Random binary weights (Sawada et al. 2024): clients zero random coordinates of their updates.

A coordinate is zero with probability R (Eq. 11); its mean is taken over the clients whose weight there is one (Eq. 12).
With fresh weights the number of updates in m rounds by n clients is binomial, P(f) = C(m, f) (1 - R^n)^f R^(n(m - f))
(Eq. 13; the exponent printed there, n - f, does not sum to one); with locked weights it is m, with probability 1 - R^n,
or 0.

Coordinated weights: all members draw from the same random words, so that a coordinate has no contributor, or at least
`fewest`, and R stays. docs/spec/protections.md specifies this, and docs/protection.md explains the leakage. The number
of contributors is zero with probability 1 - w, else c ~ Binomial(n, 1 - R) given c >= fewest, with w = n (1 - R) / E[c
| c >= fewest]. The contributors are c neighbours in a circle of the members whose order and start are random, so that
each contributes with probability E[c] / n = 1 - R.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import accumulate
from math import comb
from operator import mul
from typing import Final

import numpy as np
import numpy.typing as npt

from tacit.models.layout import Layout

RESOLUTION: Final = 1 << 16
"""Probabilities are multiples of 1/65536: a coordinate costs two random bytes."""


def zero_probabilities(layout: Layout, default: float, patterns: Mapping[str, float]) -> tuple[float, ...]:
    """Return R of every tensor of the layout. patterns: shell patterns over names; the last match counts.

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
    """Draw B [D], False with the probability of its tensor. random: uniform uint16 [D]; its secrecy is that of B."""
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
    """Return P(f) for f = 0..rounds [rounds + 1]: distribution of a coordinate's number of updates by any client."""
    updated = 1.0 - zero**clients
    if locked:
        chances = np.zeros(rounds + 1)
        chances[[0, -1]] = 1.0 - updated, updated
        return chances
    return np.array([comb(rounds, f) * updated**f * (1.0 - updated) ** (rounds - f) for f in range(rounds + 1)])


_KEY_WORDS: Final = 4
"""Random words of a member's sort key. Two 64-bit keys collide with probability 2^-64, and stay unsorted."""
_BLOCK: Final = 1 << 15
"""Coordinates per block, so that intermediate results stay in the processor's cache."""

Words = npt.NDArray[np.uint16]


def coordination_words(layout: Layout, members: int) -> int:
    """Return the number of random uint16 that `coordinated_weights` consumes."""
    return 2 * layout.size + _KEY_WORDS * members * len(layout.entries)


def coordinated_weights(
    layout: Layout, probabilities: tuple[float, ...], *, members: int, place: int, fewest: int, random: Words
) -> npt.NDArray[np.bool_]:
    """Draw the weights of the member at `place`, from 0: bool [layout.size], False with its tensor's probability.

    random: uniform uint16 [coordination_words(layout, members)], the same for all members and fresh in every round:
    first those of the orders, tensor by tensor, then the counts of all coordinates, then their starts. ValueError if
    the cohort is too small for `fewest`, for a place outside of it, and for a wrong number of words.
    """
    if not 1 <= fewest <= members:
        raise ValueError(
            f"protection.min_contributors and the tolerated dropouts ask for {fewest} contributors to a coordinate, "
            f"and a round has {members} members; lower protection.min_contributors, tolerate fewer dropouts, or let "
            "more clients take part"
        )
    if not 0 <= place < members:
        raise ValueError(f"place {place} is not among the {members} members of the round")
    words = coordination_words(layout, members)
    if random.dtype != np.uint16 or random.shape != (words,):
        raise ValueError(f"expected {words} random uint16, got {random.dtype} {list(random.shape)}")
    keys, choices = np.split(random, [words - 2 * layout.size])
    counts, starts = choices.reshape(2, -1)
    positions = _positions(keys, members, place)
    thresholds = [min(round(zero * RESOLUTION), RESOLUTION - 1) for zero in probabilities]
    weights = np.empty(layout.size, np.bool_)
    start = 0
    for size, threshold, position in zip(layout.tensor_sizes, thresholds, positions, strict=True):
        table = _contributors(members, fewest, threshold)
        for low in range(start, start + size, _BLOCK):
            block = slice(low, min(low + _BLOCK, start + size))
            np.less(_steps(starts[block], members, position), np.take(table, counts[block]), out=weights[block])
        start += size
    return weights


def _positions(keys: Words, members: int, place: int) -> list[int]:
    sort_keys = keys.astype("<u2").view("<u8").reshape(-1, members)
    positions: list[int] = np.argsort(sort_keys, axis=1, kind="stable")[:, place].tolist()
    return positions


def _steps(starts: Words, members: int, position: int) -> Words:
    """Return the distance from start to position in the circle: (position - floor(starts * members / 2^16)) mod n."""
    first = (starts.astype(np.uint32) * np.uint32(members) >> np.uint32(16)).astype(np.uint16)
    ahead = np.uint16(position) - first
    # A start after the position wraps around 2^16; adding the circle's length corrects that.
    steps: Words = np.minimum(ahead, ahead + np.uint16(members))
    return steps


@lru_cache(maxsize=32)
def _contributors(members: int, fewest: int, threshold: int) -> Words:
    """Return c for every uint16 [RESOLUTION]: 0, or in fewest..members; in sum members * (RESOLUTION - threshold)."""
    ones = RESOLUTION - threshold
    total = members * ones
    numbers = range(fewest, members + 1)
    # Proportional to P(c); integers, because all members need the same table on any processor.
    chances = [comb(members, c) * ones**c * threshold ** (members - c) for c in numbers]
    whole, mean = sum(chances), sum(map(mul, numbers, chances))
    # With so many contributing words, between `fewest` and all members at each can make the total.
    contributing = min(max(total * whole // mean, ones), total // fewest)
    ends = [(2 * contributing * up_to + whole) // (2 * whole) for up_to in accumulate(chances)]
    counts = np.repeat(numbers, np.diff(ends, prepend=0))
    while missing := total - int(counts.sum()):
        movable = np.flatnonzero(counts < members if missing > 0 else counts > fewest)
        counts[movable[: abs(missing)]] += 1 if missing > 0 else -1
    table = np.zeros(RESOLUTION, np.uint16)
    table[:contributing] = counts
    return table
