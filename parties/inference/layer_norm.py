"""LayerNorm without scale and shift, which the layer behind it takes over: on shares in three rounds, and in the clear.

On shares: the stream, whose mean is zero because every weight that adds to it is centred, is opened under its mask, so
that its squares and the products with the inverse root of their row's variance cost nothing but the opening of that
root; the root comes from a table, and with it whether the variance is within bounds.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
import torch
from msgspec import Meta

from tacit.parties.inference.lookup import LookedUp
from tacit.parties.inference.material import AnyBlockRequest, Narrow
from tacit.parties.inference.operations import NarrowValue, Party, Program
from tacit.parties.inference.ring import WORD_BITS, shifted
from tacit.parties.inference.tables import Positive, Table
from tacit.protocol.inference.schedule import CENTRED, PLACE, STREAM

SQUARES: Final = 56
"""Ring of sums of squares."""


class Norm(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of one LayerNorm."""

    variance: Table
    """Of the sum of squares."""
    lift: Annotated[int, Meta(ge=1, le=1 << 12)] = 1
    """By which the first token is multiplied, the class token, which has the smallest variance."""
    cut: Annotated[int, Meta(ge=0, le=WORD_BITS - STREAM)]
    """Bits that are cut off the result: it is modulo 2^STREAM then, or wider; without a cut modulo 2^WORD_BITS."""
    normalised: Positive
    """Scale of the result, once cut."""

    @property
    def ring(self) -> int:
        """Bits of the result before the cut."""
        return max(STREAM + self.cut, SQUARES) if self.cut else WORD_BITS


def layer_norm_requests(shape: tuple[int, int, int], norm: Norm) -> tuple[AnyBlockRequest, ...]:
    """What `LayerNormProgram` asks for, for a stream of this shape."""
    return (norm.variance.request(shape[:-1]), Narrow(shape, CENTRED, 2, (*shape[:-1], 1), norm.ring))


class LayerNormProgram:
    """One use, made ahead of the stream."""

    def __init__(self, party: Party, operation: str, shape: tuple[int, int, int], norm: Norm) -> None:
        self._party, self._operation, self._norm = party, operation, norm
        self._lookup = LookedUp(party, norm.variance.request(shape[:-1]))
        self._value = NarrowValue(party, shape, CENTRED, degree=2, factor=(*shape[:-1], 1), ring=norm.ring)

    def run(self, stream: torch.Tensor) -> Program[tuple[torch.Tensor, torch.Tensor]]:
        """[B, T, D] modulo 2^STREAM to the normalised values, and the share of how many rows are out of range."""
        party, operation, norm, value = self._party, self._operation, self._norm, self._value
        lifted = torch.cat([stream[:, :1] * norm.lift, stream[:, 1:]], 1)
        value.settle(*(yield from party.open(operation, value.masked(shifted(lifted, STREAM, STREAM - CENTRED)))))
        squares = value.polynomial((0, 0, 1)).sum(-1) * norm.variance.factor
        place = shifted(squares, SQUARES, SQUARES - PLACE)
        (opened,) = yield from party.open(operation, self._lookup.masked(place))
        outside = self._lookup.settle(opened, norm.variance.limits)
        inverse = self._lookup.value(*norm.variance.words)[..., None]
        normalised = value.times(*(yield from party.open(operation, value.masked_factor(inverse))))
        return shifted(normalised, norm.ring, norm.cut) if norm.cut else normalised, outside


def normalised(x: torch.Tensor, norm: Norm) -> tuple[torch.Tensor, torch.Tensor]:
    """The same of [B, T, D] in the clear, float64, and the variances [B, T, 1] as their bounds are of them."""
    centred = x.double() - x.double().mean(-1, keepdim=True)
    variance = centred.square().mean(-1, keepdim=True)
    values = centred * norm.variance.inverse(variance)
    variance[:, :1] *= norm.lift**2
    return values, variance
