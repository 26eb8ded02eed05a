"""The weights of a block as whole numbers, LayerNorm's scale and shift folded into the layer behind it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

from tacit.models.friendly.blocks import Block, LayerNorm, Linear
from tacit.parties.inference.ring import WORD_BITS
from tacit.parties.inference.scales import COARSE, FACTOR, HIDDEN, NORMALISED_SCALE, Scales, Shape

LAYERS: Final = ("qkv", "proj", "fc1", "fc2")
WEIGHT_BITS_LIMIT: Final = 26
"""Of the greatest entry of a weight, with its sign."""


@dataclass(frozen=True, repr=False)
class IntegerWeight:
    """y = x words + bias."""

    words: torch.Tensor
    """int64 (in, out)."""
    bias: torch.Tensor
    """int64 (out), at the scale of the product."""
    bits: int
    """Of the greatest word, with its sign."""


def layer_shapes(shape: Shape) -> dict[str, tuple[int, int]]:
    """(in, out) of every layer."""
    return {
        "qkv": (shape.width, 3 * shape.width),
        "proj": (shape.width, shape.width),
        "fc1": (shape.width, shape.hidden),
        "fc2": (shape.hidden, shape.width),
    }


def integer_weights(block: Block, scales: Scales) -> dict[str, IntegerWeight]:
    """Of every layer. ValueError for weights that are too large or not finite."""
    width = block.norm1.weight.shape[0]
    # Scales of the columns of a product, before it is cut.
    cut = 2.0 ** (WORD_BITS - FACTOR)
    joint = torch.tensor([scales.query, scales.key, scales.value], dtype=torch.float64).repeat_interleave(width) * cut
    hidden = 2.0 ** (scales.hidden_bits + HIDDEN - COARSE)
    return {
        "qkv": _integer("qkv", block.attn.qkv, NORMALISED_SCALE, joint, block.norm1),
        "proj": _integer("proj", block.attn.proj, scales.mixed, scales.stream),
        "fc1": _integer("fc1", block.mlp.fc1, NORMALISED_SCALE, hidden, block.norm2),
        "fc2": _integer("fc2", block.mlp.fc2, scales.gelu, scales.stream),
    }


def _integer(
    name: str, layer: Linear, before: float, after: float | torch.Tensor, norm: LayerNorm | None = None
) -> IntegerWeight:
    weight = layer.weight.detach().double().T
    bias = torch.zeros(weight.shape[1], dtype=torch.float64) if layer.bias is None else layer.bias.detach().double()
    if norm is not None:
        bias = bias + norm.bias.detach().double() @ weight
        weight = norm.weight.detach().double()[:, None] * weight
    scaled, shift = weight * after / before, bias * after
    if not bool(scaled.isfinite().all() and shift.isfinite().all()):
        raise ValueError(f"{name} holds a value that is not finite")
    words = scaled.round().long()
    bits = int(words.abs().max()).bit_length() + 1
    if bits > WEIGHT_BITS_LIMIT:
        raise ValueError(f"{name}: a weight of {bits} bits is too large; {WEIGHT_BITS_LIMIT} fit")
    return IntegerWeight(words, shift.round().long(), bits)
