"""What the values in a block reach, found in the clear on typical data: public constants, like the intervals of gauges.

Fixed-point numbers on shares have no room for a value beyond its bound: it would come out as another number, and nobody
would see it. The margin is therefore wide; each doubling costs one bit of precision.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tacit.models.friendly.blocks import Block, products_bound, with_parameters
from tacit.models.friendly.gauge import whole


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Largest magnitudes; those that have a gauge in the clear are the ends of its interval."""

    centred: float
    """Of the input of both LayerNorms, its mean taken away."""
    first_variance: float
    second_variance: float
    score: float
    """Argument of the exponential."""
    totals: float
    """Sum of the exponentials of a row."""
    value: float
    """Entry of a value vector."""
    hidden: float
    """Argument of the quadratic GELU."""
    stream: float
    """Input, sum after the attention, and output."""


def measured(block: Block, x: torch.Tensor, *, margin: float) -> Bounds:
    """The bounds of a calibrated block for inputs [B, T, D] like these; what has no gauge is widened by the margin.

    Raises ValueError for a margin below 1, a block that is not calibrated or whose functions are not all polynomials,
    and as its gauges do.
    """
    attention = block.attn
    gauges = [attention.products.interval, attention.totals.interval]
    gauges += [norm.variance.interval for norm in (block.norm1, block.norm2)]
    found = [gauge for gauge in gauges if gauge is not None]
    if margin < 1 or len(found) < 4 or None in (attention.degree, attention.steps, block.norm1.steps):
        raise ValueError("bounds need a margin of at least 1, and a calibrated block of polynomials alone")
    products, totals, first_variance, second_variance = found
    exact = with_parameters(block, lambda name, tensor: tensor.double())
    with torch.no_grad():
        x = x.double()
        width = x.shape[-1]
        first = exact.norm1(x)
        joint = exact.attn.qkv(first)
        middle = x + exact.attn(first)
        second = exact.norm2(middle)
        hidden = exact.mlp.fc1(second)
        output = middle + exact.mlp(second)
        centred = max(_largest(part - part.mean(-1, keepdim=True)) for part in (x, middle))
    return Bounds(
        centred=centred * margin,
        first_variance=first_variance.high,
        second_variance=second_variance.high,
        score=products_bound(products) * attention.scale,
        totals=whole(totals.high),
        value=_largest(joint[..., 2 * width :]) * margin,
        hidden=_largest(hidden) * margin,
        stream=max(map(_largest, (x, middle, output))) * margin,
    )


def _largest(values: torch.Tensor) -> float:
    return values.abs().max().item()
