"""The weights of a model as whole numbers, LayerNorm's scale and shift folded into the layer behind it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch

from tacit.models.friendly.blocks import Block, LayerNorm, LinearLayer
from tacit.models.friendly.transformer import FriendlyTransformer
from tacit.parties.inference.model import PublicModel
from tacit.parties.inference.ring import WORD_BITS
from tacit.parties.inference.scales import NORMALISED_SCALE, Scales
from tacit.protocol.inference.schedule import COARSE, FACTOR, HIDDEN, layer_shapes

WEIGHT_BITS_LIMIT: Final = 26
"""Of the greatest entry of a weight, with its sign."""


@dataclass(frozen=True, repr=False)
class IntegerWeight:
    """y = x words + bias."""

    words: torch.Tensor
    """int64 (in, out)."""
    bias: torch.Tensor
    """int64 (out), at the scale of the product; of the embedding (tokens, out)."""
    bits: int
    """Of the greatest word, with its sign."""


def integer_model(transformer: FriendlyTransformer, public: PublicModel) -> dict[str, IntegerWeight]:
    """Of every layer, by the names and in the order of tacit.protocol.inference.schedule.layer_shapes.

    ValueError for another model than the public one was made of, and for weights that are too large or not finite.
    """
    stream, pixel = public.stream, public.embedding.pixel
    projection: Any = transformer.patch_embed.proj
    blocks: list[Block] = list(transformer.blocks)  # type: ignore[arg-type]
    if len(blocks) != public.sizes.blocks:
        raise ValueError(f"the model has {len(blocks)} blocks, the public one {public.sizes.blocks}")
    offsets = transformer.pos_embed.detach().double()[0]
    first = torch.zeros(len(offsets), 1, dtype=torch.float64)
    first[0] = 1
    offsets = offsets + first * transformer.cls_token.detach()[0] + (1 - first) * projection.bias.detach()
    found = {
        "embedding": _integer("embedding", projection.weight.detach().flatten(1), offsets, pixel, stream),
        **{
            f"{index}.{name}": weight
            for index, (block, scales) in enumerate(zip(blocks, public.blocks, strict=True))
            for name, weight in integer_weights(block, scales).items()
        },
        "head": _layer("head", transformer.head, NORMALISED_SCALE, public.head.logits, transformer.norm),
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


def integer_weights(block: Block, scales: Scales) -> dict[str, IntegerWeight]:
    """Of every layer. ValueError for weights that are too large or not finite."""
    width = block.norm1.weight.shape[0]
    # Scales of the columns of a product, before it is cut.
    cut = 2.0 ** (WORD_BITS - FACTOR)
    joint = torch.tensor([scales.query, scales.key, scales.value], dtype=torch.float64).repeat_interleave(width) * cut
    hidden = 2.0 ** (scales.hidden_bits + HIDDEN - COARSE)
    return {
        "qkv": _layer("qkv", block.attn.qkv, NORMALISED_SCALE, joint, block.norm1),
        "proj": _layer("proj", block.attn.proj, scales.mixed, scales.stream),
        "fc1": _layer("fc1", block.mlp.fc1, NORMALISED_SCALE, hidden, block.norm2),
        "fc2": _layer("fc2", block.mlp.fc2, scales.gelu, scales.stream),
    }


def _layer(
    name: str, layer: LinearLayer, before: float, after: float | torch.Tensor, norm: LayerNorm | None = None
) -> IntegerWeight:
    weight = layer.weight.detach().double()
    bias = torch.zeros(len(weight), dtype=torch.float64) if layer.bias is None else layer.bias.detach().double()
    if norm is not None:
        bias = bias + weight @ norm.bias.detach().double()
        weight = weight * norm.weight.detach().double()
    return _integer(name, weight, bias, before, after)


def _integer(
    name: str, weight: torch.Tensor, bias: torch.Tensor, before: float, after: float | torch.Tensor
) -> IntegerWeight:
    """Of a weight [out, in] whose input has the scale `before` and whose output has `after`."""
    scaled, shift = weight.double().T * after / before, bias * after
    if not bool(scaled.isfinite().all() and shift.isfinite().all()):
        raise ValueError(f"{name} holds a value that is not finite")
    words = scaled.round().long()
    bits = int(words.abs().max()).bit_length() + 1
    if bits > WEIGHT_BITS_LIMIT:
        raise ValueError(f"{name}: a weight of {bits} bits is too large; {WEIGHT_BITS_LIMIT} fit")
    return IntegerWeight(words, shift.round().long(), bits)
