"""A transformer block on shares, out of operations: the program that both parties run, each with its own half.

The functions are those of tacit.models.friendly: LayerNorm, the softmax by a Taylor series with its sums divided out
behind the product with the values, the quadratic GELU. Where the data owner knows the input, it normalises it itself.

Rounds, and what is opened to both in each, or sent to one:

| operation    | rounds | opened or sent                                                                        |
|--------------|--------|---------------------------------------------------------------------------------------|
| layer norm   | 4      | centred values; variances; their inverse roots; normalised values                     |
| qkv          | 1      | normalised values, to the model owner                                                 |
| scores       | 1      | queries and keys                                                                      |
| softmax      | 2      | scores: their exponentials are a polynomial; exponentials, less precise               |
| mixing       | 3      | exponentials, values and sums; weighted values and inverse sums; mixed values         |
| projection   | 1      | mixed values, to the model owner                                                      |
| layer norm   | 4      | as above                                                                              |
| fc1          | 1      | normalised values, to the model owner                                                 |
| gelu         | 1      | hidden values                                                                         |
| fc2          | 1      | activated values, to the model owner                                                  |

A known input leaves out the first LayerNorm: 15 rounds instead of 19. One more tells the data owner the result.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from tacit.parties.inference.layer_norm import layer_norm, layer_norm_requests
from tacit.parties.inference.material import AnyBlockRequest, Fixed, Matrix, Narrow, Table
from tacit.parties.inference.operations import (
    MODEL,
    FixedLinear,
    MatrixValue,
    NarrowValue,
    Party,
    PreparedLinear,
    Program,
    looked_up,
    widened,
)
from tacit.parties.inference.ring import WORD_BITS, shifted
from tacit.parties.inference.scales import Scales, Shape
from tacit.protocol.inference.schedule import (
    COARSE,
    FACTOR,
    FINE,
    HIDDEN,
    MIXING,
    TOTALS_INDEX_BITS,
    block_layer_shapes,
)


def block_requests(
    shape: Shape, scales: Scales, numbers: Mapping[str, int], *, known: bool
) -> tuple[AnyBlockRequest, ...]:
    """What the program asks its source of material for, in this order; `numbers` are those of the weights' masks."""
    rows = (shape.images, shape.tokens)
    mixed = (shape.images, shape.heads, shape.tokens, shape.width // shape.heads)
    return (
        *(
            Fixed(MODEL, rows, numbers[name], size)
            for name, size in block_layer_shapes(shape.width, shape.hidden).items()
        ),
        *(() if known else layer_norm_requests(shape.stream, scales.first_norm)),
        Matrix("matmul", mixed, (*mixed[:2], mixed[3], mixed[2])),
        Narrow(shape.scores, COARSE, len(scales.exponential) - 1),
        Narrow(shape.scores, FINE, 1),
        _totals(shape, scales),
        Matrix("matmul", shape.scores, mixed),
        Narrow(mixed, FINE, 1, (*mixed[:3], 1)),
        Narrow(mixed, FINE, 1),
        *layer_norm_requests(shape.stream, scales.second_norm),
        Narrow((*rows, shape.hidden), COARSE, 2),
    )


class BlockProgram:
    """One pass of one block at one party: made ahead of the input, used once."""

    def __init__(self, party: Party, shape: Shape, scales: Scales, layers: Mapping[str, FixedLinear]) -> None:
        self._party = party
        self._shape = shape
        self._scales = scales
        rows = (shape.images, shape.tokens)
        self._linear: dict[str, PreparedLinear] = {name: layer.prepared(party, rows) for name, layer in layers.items()}

    def run(self, stream: torch.Tensor, normalised: torch.Tensor | None = None) -> Program[torch.Tensor]:
        """From this party's share of the input [B, T, D] modulo 2^FACTOR, to that of the output.

        Of a known input, the data owner's share is the input itself and the model owner's is zero, and `normalised` is
        the same of the normalised input.
        """
        scales = self._scales
        if normalised is None:
            normalised = yield from layer_norm(self._party, "layer norm 1", stream, scales.first_norm)
        joint = yield from self._linear["qkv"].apply("qkv", normalised, WORD_BITS)
        mixed = yield from self._attention(shifted(joint, WORD_BITS, WORD_BITS - FACTOR))
        stream = stream + (yield from self._linear["proj"].apply("projection", mixed, FACTOR))
        normalised = yield from layer_norm(self._party, "layer norm 2", stream, scales.second_norm)
        hidden = yield from self._linear["fc1"].apply("fc1", normalised, HIDDEN)
        activated = yield from self._gelu(hidden)
        return stream + (yield from self._linear["fc2"].apply("fc2", activated, FACTOR))

    def _attention(self, joint: torch.Tensor) -> Program[torch.Tensor]:
        """[B, T, 3D] modulo 2^FACTOR to the mixed values [B, T, D] modulo 2^64."""
        shape, scales, party = self._shape, self._scales, self._party
        heads = joint.reshape(shape.images, shape.tokens, 3, shape.heads, -1).permute(2, 0, 3, 1, 4)
        scores = MatrixValue(party, heads[0], heads[1].transpose(2, 3), FACTOR)
        opened = yield from party.open("scores", *scores.masked)
        products = scores.settle(*opened)
        products = products * shape.tokens - products.sum(-1, keepdim=True)
        degree = len(scales.exponential) - 1
        exponent = NarrowValue(party, shifted(products, FACTOR, FACTOR - COARSE), COARSE, degree=degree)
        exponent.settle(*(yield from party.open("softmax", exponent.masked)))
        powers = shifted(exponent.polynomial(scales.exponential), WORD_BITS, WORD_BITS - FINE)
        weights = yield from widened(party, "softmax", powers, FINE)
        totals = looked_up(party, weights.sum(-1), scales.totals.factor, _totals(shape, scales))
        mixing = MatrixValue(party, weights * scales.mixing_factor, heads[2], MIXING)
        left, right, opened_totals = yield from party.open("mixing", *mixing.masked, totals.masked)
        weighted = shifted(mixing.settle(left, right), MIXING, MIXING - FINE)
        mixed = yield from self._scaled("mixing", weighted, totals.settle(opened_totals)[..., None])
        mixed = yield from widened(party, "mixing", mixed, FINE)
        return mixed.transpose(1, 2).reshape(shape.stream)

    def _gelu(self, hidden: torch.Tensor) -> Program[torch.Tensor]:
        """Quadratic GELU of [B, T, hidden] modulo 2^HIDDEN, modulo 2^FACTOR at least."""
        bits = self._scales.hidden_bits
        value = NarrowValue(self._party, shifted(hidden, HIDDEN, HIDDEN - COARSE), COARSE, degree=2)
        value.settle(*(yield from self._party.open("gelu", value.masked)))
        result = value.polynomial((4 << (2 * bits), 2 << bits, 1))
        return shifted(result, WORD_BITS, self._scales.gelu_cut)

    def _scaled(self, operation: str, share: torch.Tensor, factor: torch.Tensor) -> Program[torch.Tensor]:
        """The product of a value of FINE bits and a factor that broadcasts, cut to FINE bits."""
        value = NarrowValue(self._party, share, FINE, factor=tuple(factor.shape))
        opened, opened_factor = yield from self._party.open(operation, value.masked, value.masked_factor(factor))
        value.settle(opened)
        return shifted(value.times(opened_factor), WORD_BITS, WORD_BITS - FINE)


def _totals(shape: Shape, scales: Scales) -> Table:
    return Table((shape.images, shape.heads, shape.tokens), TOTALS_INDEX_BITS, "inverse", scales.totals.curve)
