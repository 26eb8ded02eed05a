"""How much a data owner counts in the sums of a round: all alike, or by the number of images that it states.

A number of images is a public one. Model owner and data owner compute the weight alike, before anything is learned:
each multiplies its own share by it, so that whoever survives, both sums have the same weights. Weights are whole, from
LEAST to LARGEST, which is twice as much: a data owner with fewer images than `least_count` counts as one with as many,
and one with more than twice as many as one with twice as many. So no data owner counts more than twice what another
does, whatever it states.
"""

from __future__ import annotations

from typing import Final

LEAST: Final = 16
LARGEST: Final = 2 * LEAST
LARGEST_SUM: Final = 1 << 12
"""Of weights: times parameters below 2^6, with 44 fractional bits, it stays below 2^62 and does not go round in a word;
parameters in range are below 2^3."""


def weight_of(count: int, least_count: int) -> int:
    """That of a data owner with so many images, where the least counted are so many; 1 where this is 0."""
    return min(max(LEAST * count // least_count, LEAST), LARGEST) if least_count else 1


def sum_of_weights(owners: int, least_count: int) -> tuple[int, int]:
    """The least and the largest of so many data owners."""
    return (LEAST * owners, LARGEST * owners) if least_count else (owners, owners)
