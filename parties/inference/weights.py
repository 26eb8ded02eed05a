"""The weights of a model as whole numbers, LayerNorm's scale and shift folded into the layer behind it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch

from tacit.models.friendly.a_priori import folded
from tacit.models.friendly.blocks import Block, LinearLayer
from tacit.models.friendly.transformer import FriendlyTransformer
from tacit.parties.inference.model import PublicModel
from tacit.parties.inference.ring import WORD_BITS
from tacit.parties.inference.scales import Scales
from tacit.protocol.inference.schedule import COARSE, STREAM, VECTORS, layer_shapes

WEIGHT_BITS_LIMIT: Final = 26
"""Of the greatest entry of a weight, with its sign."""
LEAST_WEIGHT_BITS: Final = 5
"""Of a typical entry of a column; rounding then changes each by one part in a hundred, and what many add up to by far
less."""


@dataclass(frozen=True, repr=False)
class IntegerWeight:
    """y = x words + bias."""

    words: torch.Tensor
    """int64 (in, out)."""
    bias: torch.Tensor
    """int64 (out), at the scale of the product; of the embedding (tokens, out)."""
    bits: int
    """Of the greatest word, with its sign."""


def integer_model(
    transformer: FriendlyTransformer, public: PublicModel, balances: Sequence[torch.Tensor]
) -> dict[str, IntegerWeight]:
    """Of every layer, by the names and in the order of tacit.protocol.inference.schedule.layer_shapes.

    balances: of every block, as of a FittedModel. ValueError for another model than the public one was made
    of, and for weights that are too large, too coarse, or not finite.
    """
    stream, pixel = public.stream, public.embedding.pixel
    projection: Any = transformer.patch_embed.proj
    blocks: list[Block] = list(transformer.blocks)  # type: ignore[arg-type]
    if len(blocks) != public.sizes.blocks:
        raise ValueError(f"the model has {len(blocks)} blocks, the public one {public.sizes.blocks}")
    with torch.no_grad():
        offsets = transformer.pos_embed.double()[0]
        first = torch.zeros(len(offsets), 1, dtype=torch.float64)
        first[0] = 1
        offsets = offsets + first * transformer.cls_token.double()[0] + (1 - first) * projection.bias.double()
        patches = _centred(projection.weight.double().flatten(1), 0)
    found = {
        "embedding": _integer("embedding", patches, _centred(offsets, -1), pixel, stream),
        **{
            f"{index}.{name}": weight
            for index, (block, scales, balance) in enumerate(zip(blocks, public.blocks, balances, strict=True))
            for name, weight in integer_weights(block, scales, balance, public.sizes.tokens).items()
        },
        "head": _integer(
            "head", *folded(transformer.norm, transformer.head), public.head.norm.normalised, public.head.logits
        ),
    }
    shapes = {name: tuple(weight.words.shape) for name, weight in found.items()}
    if list(shapes.items()) != list(layer_shapes(public.sizes).items()):
        raise ValueError(f"the model does not have the public sizes {public.sizes}")
    return found


def weight_octets(weights: Mapping[str, IntegerWeight]) -> Iterator[memoryview]:
    """Words and bias of every layer in order, as little-endian int64: what a commitment is made to."""
    for weight in weights.values():
        for words in (weight.words, weight.bias):
            yield np.ascontiguousarray(words.cpu().numpy(), "<i8").data.cast("B")


def integer_weights(block: Block, scales: Scales, balance: torch.Tensor, tokens: int) -> dict[str, IntegerWeight]:
    """Of every layer. ValueError for weights that are too large, too coarse, or not finite."""
    weight, bias = folded(block.norm1, block.attn.qkv)
    width = weight.shape[1]
    bias[width : 2 * width] = 0.0  # All keys have it, so it goes with their mean.
    balance = balance.repeat_interleave(width // len(balance))
    # Scales of the columns of a product, before it is cut.
    joint = torch.cat(
        [
            balance * scales.query * 2.0 ** (WORD_BITS - VECTORS),
            scales.key / tokens * 2.0 ** (WORD_BITS - VECTORS) / balance,
            torch.full((width,), scales.value * 2.0 ** (WORD_BITS - STREAM), dtype=torch.float64),
        ]
    )
    hidden = scales.hidden * 2.0 ** (STREAM - COARSE)
    return {
        "qkv": _integer("qkv", weight, bias, scales.first_norm.normalised, joint),
        "proj": _integer("proj", *_stream(block.attn.proj), scales.mixed, scales.stream),
        "fc1": _integer("fc1", *folded(block.norm2, block.mlp.fc1), scales.second_norm.normalised, hidden),
        "fc2": _integer("fc2", *_stream(block.mlp.fc2), scales.activated, scales.stream),
    }


def _stream(layer: LinearLayer) -> tuple[torch.Tensor, torch.Tensor]:
    """Weight and bias of a layer that adds to the residual stream, without what LayerNorm would take away again."""
    with torch.no_grad():
        weight = layer.weight.double()
        bias = torch.zeros(len(weight), dtype=torch.float64) if layer.bias is None else layer.bias.double()
    return _centred(weight, 0), _centred(bias, 0)


def _centred(values: torch.Tensor, axis: int) -> torch.Tensor:
    return values - values.mean(axis, keepdim=True)


def _integer(
    name: str, weight: torch.Tensor, bias: torch.Tensor, before: float, after: float | torch.Tensor
) -> IntegerWeight:
    """Of a weight [out, in] whose input has the scale `before` and whose output has `after`."""
    scaled, shift = weight.double().T * after / before, bias * after
    if not bool(scaled.isfinite().all() and shift.isfinite().all()):
        raise ValueError(f"{name} holds a value that is not finite")
    words = scaled.round().long()
    spread, least = scaled.square().mean(0).sqrt().max().item(), 2.0**LEAST_WEIGHT_BITS
    if 0 < spread < least:
        raise ValueError(
            f"{name}: weights of {spread:.3g} last bits on average are too coarse, {least:.0f} are needed: what they "
            "are multiplied by reaches too far beyond what is typical"
        )
    bits = int(words.abs().max()).bit_length() + 1
    if bits > WEIGHT_BITS_LIMIT:
        raise ValueError(f"{name}: a weight of {bits} bits is too large; {WEIGHT_BITS_LIMIT} fit")
    return IntegerWeight(words, shift.round().long(), bits)
