"""A value that is opened under a mask once, to look up functions of it and to tell whether it is within bounds.

With c = x + r modulo 2^PLACE opened, x is (c mod 2^m) - (r mod 2^m) away from the lower end of the interval number (c
>> m) - (r >> m): in it or, where that is negative, in the one before. The dealer's keys are of the interval of r: a
share of 1 at that place, and of r mod 2^m, zero elsewhere. So the inner product with any public table, turned round by
c, is a share of the function's value, linear around each lower end. The dealer does not know the table. (One-time truth
tables, Ishai et al., TCC 2013, for the highest bits only, in keys of Boyle, Gilboa and Ishai.)

Bounds are compared with the highest bits alone, in which x is floor(x / 2^m) or one more: beyond a bound a
value is always found out of range, and within, unless it is less than one such unit from it, always in range. Both
comparisons are one key's, evaluated at two places: with w(c) = [c < r], and c - b modulo the ring, [x < b] is
w(c - b) - w(c) + [c < b] (Boyle et al., Eurocrypt 2021, section 4).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tacit.parties.correlated.trees import PointKeys, ThresholdKeys, Words, below, point_words
from tacit.parties.inference.material import Lookup
from tacit.parties.inference.operations import MODEL, Party
from tacit.protocol.inference.schedule import PLACE

Integers = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Range:
    """A value is in range from `low` up to, and without, `high`, in units of the bits that are compared."""

    low: int
    high: int


@dataclass(frozen=True, repr=False)
class Trees:
    """What an owner has of the trees of a request: its roots, and the keys that both were told."""

    threshold_roots: Words
    thresholds: ThresholdKeys
    point_roots: Words
    points: PointKeys | None


def trees_of(request: Lookup, words: Sequence[torch.Tensor]) -> Trees:
    """Out of an owner's words, without the mask."""
    plain = [each.cpu().numpy().view(np.uint64) for each in words]
    levels, index, roots = request.levels, request.index, 1 + (request.index > 0)
    seeds, controls, values = plain[roots : roots + 3]
    thresholds = ThresholdKeys(
        seeds.reshape(-1, levels, 2), controls.reshape(-1, levels).astype(np.uint8), values.reshape(-1, levels + 1)
    )
    points = None
    if index:
        seeds, controls, values = plain[-3:]
        points = PointKeys(
            seeds.reshape(-1, index, 2), controls.reshape(-1, index).astype(np.uint8), values.reshape(-1, 2)
        )
    return Trees(plain[0].reshape(-1, 2), thresholds, plain[roots - 1].reshape(-1, 2), points)


class LookedUp:
    """One use: made ahead of the value, `masked`, then `settle`d."""

    def __init__(self, party: Party, request: Lookup) -> None:
        self._rank, self._request, self._device = party.rank, request, party.device
        self._mask, *words = party.take(request)
        self._trees = trees_of(request, words)
        points = self._trees.points
        self._points = (
            None if points is None else point_words(party.rank, self._trees.point_roots, points).view(np.int64)
        )
        self._place = self._mask

    @property
    def levels(self) -> int:
        """Bits that are compared."""
        return self._request.levels

    def masked(self, share: torch.Tensor) -> tuple[torch.Tensor, int]:
        """What to open of a value modulo 2^PLACE."""
        return share + self._mask, PLACE

    def settle(self, opened: torch.Tensor, limits: Range) -> torch.Tensor:
        """Take in the sum; the share modulo 2^PLACE of how many values are out of range, one number."""
        self.place(opened)
        return self.outside(limits).sum()

    def place(self, opened: torch.Tensor) -> None:
        """Take in the sum of both masked shares."""
        self._place = opened & ((1 << PLACE) - 1)

    def outside(self, limits: Range) -> torch.Tensor:
        """The shares modulo 2^PLACE of 1 for each value that is out of range, of 0 for each other."""
        return outside([(self, limits)])[0]

    def _compared(self, limits: Range) -> tuple[torch.Tensor, torch.Tensor]:
        """Where the threshold of every value is looked at [n, 2], and what that has too much of 1 [n]."""
        levels = self.levels
        units = (self._place >> (PLACE - levels)).reshape(-1, 1).cpu()
        # Strictly above the unit of the lower bound, since a value may seem to be one higher than it is.
        bounds = torch.tensor([limits.low + 1 if limits.low else 0, limits.high])
        inside = (units < bounds).long()
        return (units - bounds) & ((1 << levels) - 1), inside[:, 1] - inside[:, 0]

    def value(self, values: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
        """The share modulo 2^64 of a function: int64 [2^index] at the lower ends of intervals, and per unit."""
        assert self._points is not None
        interval, rest = (part.numpy() for part in self._request.place(self._place.reshape(-1).cpu()))
        level, slope = (_windows(table, interval) for table in (values, slopes))
        ones, places = self._points[..., 0], self._points[..., 1]
        share = _sums(ones, level) + rest * _sums(ones, slope) - _sums(places, slope)
        return torch.from_numpy(share).reshape(self._place.shape).to(self._device)


def outside(several: Sequence[tuple[LookedUp, Range]]) -> list[torch.Tensor]:
    """`LookedUp.outside` of several that compare as many bits, of one party: one walk down many trees takes hardly
    longer than one down a few."""
    first = several[0][0]
    places, extra = zip(*(looked_up._compared(limits) for looked_up, limits in several), strict=True)
    trees = [looked_up._trees for looked_up, _ in several]
    keys = ThresholdKeys(
        *(
            np.concatenate([getattr(each.thresholds, name) for each in trees])
            for name in ("seeds", "controls", "values")
        )
    )
    words: Words = torch.cat(places).numpy().view(np.uint64)
    found = below(first._rank, np.concatenate([each.threshold_roots for each in trees]), keys, words)
    lower, upper = torch.from_numpy(found.view(np.int64)).unbind(1)
    share = lower - upper
    if first._rank == MODEL:
        share += 1 - torch.cat(extra)
    parts = torch.split(share, [len(each) for each in extra])
    return [
        part.reshape(looked_up._place.shape).to(looked_up._device)
        for part, (looked_up, _) in zip(parts, several, strict=True)
    ]


def _sums(words: Integers, table: Integers) -> Integers:
    """Inner products of rows modulo 2^64, without a copy of either."""
    found: Integers = np.einsum("ij,ij->i", words, table)
    return found


def _windows(table: torch.Tensor, intervals: Integers) -> Integers:
    """For each interval c the words of a table [size] at c - j modulo size, for j = 0 ... size - 1: parts of the table
    backwards, twice, which are copied whole."""
    size, backwards = len(table), table.flip(0).cpu().numpy()
    parts = np.lib.stride_tricks.sliding_window_view(np.concatenate([backwards, backwards]), size)
    found: Integers = parts[size - 1 - intervals]
    return found
