"""A transformer block on shares, composed of operations: the program that both parties run, each on its own shares.

The functions are those of the model: softmax and GELU themselves, or the polynomials of tacit.models.friendly. They are
computed as Fourier approximations (waves.py) or as a square. The division by the softmax's sum follows the product with
the values. docs/spec/inference.md lists the rounds and their openings.

Range checks on shares count variances, norms of queries and keys, sums of exponentials, and a function that indicates
the largest hidden value of a token. With these in range, every other value is as well (scales.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from tacit.parties.inference.hidden import spread_ring, spread_slack, spread_wave
from tacit.parties.inference.material import NORM_WORDS, AnyBlockRequest, Fixed, Lookup, Matrix, Narrow, Scores, Waves
from tacit.parties.inference.operations import (
    MODEL,
    FixedLinear,
    MatrixValue,
    NarrowValue,
    Party,
    PreparedLinear,
    Program,
    ScoresValue,
    WaveValue,
)
from tacit.parties.inference.ring import WORD_BITS, shifted
from tacit.parties.inference.scales import Scales, Shape
from tacit.parties.inference.scores import SquaredSoftmax, division_requests
from tacit.parties.inference.tables import LayerNormProgram, LookedUp, layer_norm_requests
from tacit.protocol.inference.schedule import (
    ACTIVATED,
    COARSE,
    PLACE,
    STREAM,
    VECTORS,
    WEIGHTED,
    block_layer_shapes,
    layer_bits,
)


def block_requests(
    shape: Shape, scales: Scales, numbers: Mapping[str, int], *, pool: bool = False
) -> tuple[AnyBlockRequest, ...]:
    """Correlated randomness that the program requests, in this order; `numbers` are those of the weight masks'
    requests. pool: whether the block is an attention pool."""
    rows = (shape.images, shape.tokens)
    linear = block_layer_shapes(shape.width, shape.hidden, pool=pool).items()
    gelu, sums, hidden = scales.gelu, shape.scores[:-1], (*rows, shape.hidden)
    return (
        *(Fixed(MODEL, rows, numbers[name], size, layer_bits(name)) for name, size in linear),
        *layer_norm_requests(shape.stream, scales.first_norm),
        Scores(shape.vectors, VECTORS, scales.query_turn, scales.key_turn),
        Lookup(sums, levels=scales.queries.levels),
        Lookup(sums, levels=scales.keys.levels),
        *_exponential_requests(shape, scales),
        scales.totals.request(sums),
        Matrix("matmul", shape.scores, shape.vectors, words=STREAM),
        Narrow(shape.vectors, WEIGHTED, 1, (*sums, 1)),
        *layer_norm_requests(shape.stream, scales.second_norm),
        Narrow(hidden, COARSE, 2, None, STREAM)
        if gelu is None
        else Waves(hidden, len(gelu.cosines), gelu.words, STREAM, scales.hidden_opened),
        Lookup(rows, levels=scales.hidden_spread.levels),
        Narrow(hidden, ACTIVATED, 1, None, STREAM),
    )


def _exponential_requests(shape: Shape, scales: Scales) -> Iterator[AnyBlockRequest]:
    wave = scales.exponential
    yield Waves(shape.scores, len(wave.cosines), wave.words, scales.exponential_ring)
    yield from division_requests(shape.scores, scales.divisions, STREAM + scales.exponential_cut)


class BlockProgram:
    """One pass of one block at one party: prepared ahead of the input, used once. pool: whether it is an attention
    pool, whose attention replaces the input. It outputs the mean of each token behind its centred values."""

    def __init__(
        self, party: Party, shape: Shape, scales: Scales, layers: Mapping[str, FixedLinear], *, pool: bool = False
    ) -> None:
        self._party, self._shape, self._scales, self._pool = party, shape, scales, pool
        rows, sums = (shape.images, shape.tokens), shape.scores[:-1]
        hidden = (*rows, shape.hidden)
        self._linear: dict[str, PreparedLinear] = {
            name: layer.prepared(party, rows, layer_bits(name)) for name, layer in layers.items()
        }
        self._first = LayerNormProgram(party, "layer norm 1", shape.stream, scales.first_norm)
        self._scores = ScoresValue(party, shape.vectors, VECTORS, (scales.query_turn, scales.key_turn))
        self._norms = [LookedUp(party, Lookup(sums, levels=place.levels)) for place in (scales.queries, scales.keys)]
        self._exponential = WaveValue(party, shape.scores, scales.exponential, scales.exponential_ring)
        self._squared = SquaredSoftmax(party, shape.scores, scales.divisions, STREAM + scales.exponential_cut)
        self._totals = LookedUp(party, scales.totals.request(sums))
        self._mixing = MatrixValue(party, shape.scores, shape.vectors, STREAM)
        self._weighted = NarrowValue(party, shape.vectors, WEIGHTED, factor=(*sums, 1))
        self._second = LayerNormProgram(party, "layer norm 2", shape.stream, scales.second_norm)
        self._gelu = (
            NarrowValue(party, hidden, COARSE, degree=2, ring=STREAM)
            if scales.gelu is None
            else WaveValue(
                party,
                hidden,
                scales.gelu,
                STREAM,
                bits=scales.hidden_opened,
                check=spread_wave(scales.gelu, scales.hidden_opened, shape.hidden),
            )
        )
        self._spread = LookedUp(party, Lookup(rows, levels=scales.hidden_spread.levels))
        self._activation = NarrowValue(party, hidden, ACTIVATED, ring=STREAM)
        self._outside = torch.zeros((), dtype=torch.int64, device=party.device)

    def run(self, stream: torch.Tensor) -> Program[tuple[torch.Tensor, torch.Tensor]]:
        """Map this party's share of the input [B, T, D] modulo 2^STREAM to that of the output, and to that of the
        number of values out of range, modulo 2^PLACE."""
        normalised, outside = yield from self._first.run(stream)
        self._outside += outside
        joint = yield from self._linear["qkv"].apply("qkv", normalised)
        mixed = yield from self._attention(joint)
        added = yield from self._linear["proj"].apply("projection", mixed)
        stream = added if self._pool else stream + added
        normalised, outside = yield from self._second.run(stream[..., : self._shape.width])
        self._outside += outside
        hidden = yield from self._linear["fc1"].apply("fc1", normalised)
        activated = yield from self._activated(hidden)
        added = yield from self._linear["fc2"].apply("fc2", activated)
        return stream + added, self._outside

    def _attention(self, joint: torch.Tensor) -> Program[torch.Tensor]:
        """Map [B, T, 3D] modulo 2^64 to the mixed values [B, T, D] modulo 2^STREAM."""
        shape, scales, party = self._shape, self._scales, self._party
        heads = joint.reshape(shape.images, shape.tokens, 3, shape.heads, -1).permute(2, 0, 3, 1, 4)
        centred = heads[1] * shape.tokens - heads[1].sum(-2, keepdim=True)
        query, key = (shifted(part, WORD_BITS, WORD_BITS - VECTORS) for part in (heads[0], centred))
        value = shifted(heads[2], WORD_BITS, WORD_BITS - STREAM)
        masked = (*self._scores.masked(query, key), self._mixing.masked_right(value))
        *opened, opened_value = yield from party.open("scores", *masked)
        products = self._scores.settle(*opened)
        norms = [
            lookup.masked(shifted(spread, NORM_WORDS, NORM_WORDS - PLACE))
            for lookup, spread in zip(self._norms, self._scores.spread(*opened), strict=True)
        ]
        exponent = shifted(products, VECTORS, VECTORS - COARSE)
        exponents, *places = yield from party.open("softmax", self._exponential.masked(exponent), *norms)
        for lookup, place, limits in zip(self._norms, places, (scales.queries, scales.keys), strict=True):
            self._outside += lookup.settle(place, limits.limits)
        weights, outside = yield from self._squared.run(self._exponential.settle(exponents))
        self._outside += outside
        weights = _cut(weights, STREAM + scales.exponential_cut, scales.exponential_cut)
        totals = shifted(weights.sum(-1) * scales.totals.factor, STREAM, STREAM - PLACE)
        left, place = yield from party.open("mixing", self._mixing.masked_left(weights), self._totals.masked(totals))
        self._outside += self._totals.settle(place, scales.totals.limits)
        inverse = self._totals.value(*scales.totals.words)[..., None]
        weighted = shifted(self._mixing.settle(left, opened_value), STREAM, STREAM - WEIGHTED)
        masked_values = (self._weighted.masked(weighted), self._weighted.masked_factor(inverse))
        opened_weighted, opened_inverse = yield from party.open("mixing", *masked_values)
        self._weighted.settle(opened_weighted)
        mixed = shifted(self._weighted.times(opened_inverse), WORD_BITS, WORD_BITS - STREAM)
        return mixed.transpose(1, 2).reshape(shape.stream)

    def _activated(self, hidden: torch.Tensor) -> Program[torch.Tensor]:
        """GELU of [B, T, hidden] modulo 2^STREAM, modulo 2^STREAM; and a check of their SPREAD, or squares."""
        scales, gelu, ring = self._scales, self._gelu, spread_ring(self._scales.hidden_opened)
        masked = gelu.masked(shifted(hidden, STREAM, STREAM - scales.hidden_opened))
        (opened,) = yield from self._party.open("gelu", masked)
        if isinstance(gelu, WaveValue) and scales.gelu is not None:
            result = gelu.settle(opened)
            wave = spread_wave(scales.gelu, scales.hidden_opened, hidden.shape[-1])
            spread = gelu.checked().sum(-1)
            if self._party.rank == MODEL:
                spread += round(spread_slack(hidden.shape[-1], scales.hidden_opened) * 2.0**wave.bits)
        else:
            assert isinstance(gelu, NarrowValue)
            gelu.settle(opened)
            bits = scales.hidden_bits
            result = gelu.polynomial((4 << (2 * bits), 2 << bits, 1))
            spread = gelu.polynomial((0, 0, 1)).sum(-1)
        narrow = self._activation.masked(_cut(result, STREAM, scales.gelu_cut))
        place = shifted(spread * scales.hidden_spread.factor, ring, ring - PLACE)
        opened, opened_place = yield from self._party.open("gelu", narrow, self._spread.masked(place))
        self._activation.settle(opened)
        self._outside += self._spread.settle(opened_place, scales.hidden_spread.limits)
        return self._activation.value()


def _cut(share: torch.Tensor, bits: int, by: int) -> torch.Tensor:
    return shifted(share, bits, by) if by else share
