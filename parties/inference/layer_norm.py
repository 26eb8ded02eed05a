"""LayerNorm without scale and shift, which the layer behind it takes over: on shares in four rounds, and in the clear.

On shares: the centred values are opened under their mask, so that their squares and the products with the inverse root
of their row's variance cost nothing but the opening of that root; the root comes from a table; the normalised values
are opened once more to be brought back into a wide ring.
"""

from __future__ import annotations

import math

import torch

from tacit.models.friendly.polynomials import goldschmidt_inverse_root
from tacit.parties.inference.material import AnyBlockRequest, Curve, Narrow, Table
from tacit.parties.inference.operations import NarrowValue, Party, Program, looked_up, widened
from tacit.parties.inference.ring import WORD_BITS, shifted
from tacit.parties.inference.scales import Lookup
from tacit.protocol.inference.schedule import FACTOR, FINE, NORM_INDEX_BITS


def layer_norm_requests(shape: tuple[int, int, int], norm: Lookup) -> tuple[AnyBlockRequest, ...]:
    """What `layer_norm` asks for, for a stream of this shape."""
    return (
        Narrow(shape, FINE, 2, (*shape[:-1], 1)),
        Table(shape[:-1], NORM_INDEX_BITS, "inverse root", norm.curve),
        Narrow(shape, FINE, 1),
    )


def layer_norm(party: Party, operation: str, stream: torch.Tensor, norm: Lookup) -> Program[torch.Tensor]:
    """[B, T, D] modulo 2^FACTOR to the normalised values modulo 2^64, at NORMALISED_SCALE."""
    centred = stream * stream.shape[-1] - stream.sum(-1, keepdim=True)
    share = shifted(centred, FACTOR, FACTOR - FINE)
    rows = tuple(share.shape[:-1])
    value = NarrowValue(party, share, FINE, degree=2, factor=(*rows, 1))
    value.settle(*(yield from party.open(operation, value.masked)))
    table = Table(rows, NORM_INDEX_BITS, "inverse root", norm.curve)
    variance = looked_up(party, value.polynomial((0, 0, 1)).sum(-1), norm.factor, table)
    inverse = variance.settle(*(yield from party.open(operation, variance.masked)))[..., None]
    normalised = value.times(*(yield from party.open(operation, value.masked_factor(inverse))))
    return (yield from widened(party, operation, shifted(normalised, WORD_BITS, WORD_BITS - FINE), FINE))


def normalised(x: torch.Tensor, curve: Curve) -> torch.Tensor:
    """The same in the clear, float64, by the polynomial of the table."""
    centred = x.double() - x.double().mean(-1, keepdim=True)
    variance = (centred.square().mean(-1, keepdim=True) + curve.offset) / curve.divisor
    inverse: torch.Tensor = goldschmidt_inverse_root(variance, curve.steps) / math.sqrt(curve.divisor)
    result: torch.Tensor = centred * inverse
    return result
