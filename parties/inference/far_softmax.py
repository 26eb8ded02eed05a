"""A softmax whose scores reach so far that its exponentials, and their sums, differ by more than a ring can resolve.

In two steps. The exponentials of half the scores differ by the root of it, and so do their sums; divided by them they
are shares of one. The squares of these shares, divided by their own sum, are the softmax: exp(s) = exp(s / 2)^2, and
what a row was divided by before is divided out. The sum of squares of T shares of one is between 1 / T and 1.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
import torch
from msgspec import Meta

from tacit.parties.inference.lookup import LookedUp
from tacit.parties.inference.operations import NarrowValue, Party, Program
from tacit.parties.inference.ring import WORD_BITS, shifted
from tacit.parties.inference.tables import Table
from tacit.protocol.inference.schedule import HALVES, PLACE, WEIGHTED

SHARE_BITS = WEIGHTED - 3
"""Fractional bits of a share of one."""
SHARE_RING = 48
"""Bits of the products of exponentials and inverse sums. What an inverse lacks in bits is the same for a whole row, and
divided out again with the sum of its squares."""


class Far(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of a block."""

    cut: Annotated[int, Meta(ge=0, le=WORD_BITS - HALVES)]
    """Bits that are cut off the exponentials of half the scores."""
    totals: Table
    """Of their sums."""


class FarSoftmax:
    """One use, made ahead of the scores. ring: of the squares."""

    def __init__(self, party: Party, shape: tuple[int, ...], far: Far, ring: int) -> None:
        self._party, self._far = party, far
        self._totals = LookedUp(party, far.totals.request(shape[:-1]))
        self._half = NarrowValue(party, shape, HALVES, factor=(*shape[:-1], 1), ring=SHARE_RING)
        self._share = NarrowValue(party, shape, WEIGHTED, degree=2, ring=ring)

    def run(self, exponentials: torch.Tensor) -> Program[tuple[torch.Tensor, torch.Tensor]]:
        """From exponentials of half the scores modulo 2^(HALVES + cut) to squares of shares of one, with
        2 SHARE_BITS fractional bits; and how many sums are out of range."""
        party, far = self._party, self._far
        half = shifted(exponentials, HALVES + far.cut, far.cut) if far.cut else exponentials
        # A sum has more bits than what is narrow: of the wider ring.
        totals = exponentials.sum(-1) * far.totals.factor
        place = shifted(totals, HALVES + far.cut, HALVES + far.cut - PLACE) if far.cut else totals
        opened, opened_place = yield from party.open("softmax", self._half.masked(half), self._totals.masked(place))
        self._half.settle(opened)
        outside = self._totals.settle(opened_place, far.totals.limits)
        inverse = self._totals.value(*far.totals.words)[..., None]
        (opened_inverse,) = yield from party.open("softmax", self._half.masked_factor(inverse))
        share = shifted(self._half.times(opened_inverse), SHARE_RING, SHARE_RING - WEIGHTED)
        self._share.settle(*(yield from party.open("softmax", self._share.masked(share))))
        return self._share.polynomial((0, 0, 1)), outside
