"""What the values of a model reach on typical images, in the clear: from that, with a margin, follows what is in range.

Images go through the blocks some at a time, in float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch

from tacit.models.friendly.a_priori import BlockCeiling
from tacit.models.friendly.blocks import Block
from tacit.models.friendly.gauge import Interval
from tacit.models.friendly.transformer import FriendlyTransformer
from tacit.parties.inference.hidden import hidden_periods
from tacit.parties.inference.scores import Bounds, Functions, VarianceBounds

LARGEST_LIFT: Final = 1 << 8
_TOGETHER: Final = 1 << 14
"""Tokens that are computed together."""
_LEAST_NORM: Final = 2.0**-20


def functions_of(block: Block) -> Functions:
    """What a block computes between its layers."""
    return Functions(
        scale=block.attn.scale,
        degree=block.attn.degree,
        inverse_steps=block.attn.steps,
        quadratic=block.mlp.quadratic,
        epsilons=(block.norm1.eps, block.norm2.eps),
    )


def measured(
    exact: FriendlyTransformer, ceilings: Sequence[BlockCeiling], images: torch.Tensor, margin: float
) -> tuple[list[tuple[Bounds, torch.Tensor]], Interval]:
    """Of every block of a model in float64, and the variances before the last LayerNorm.

    With each block goes its balance, float64 [H] and secret: queries are multiplied by it, and keys divided."""
    found = []
    with torch.no_grad():
        parts = torch.split(images, max(1, _TOGETHER // exact.size[0]))
        streams = [exact.embed(exact.patches(part.double())) for part in parts]
        for block, ceiling in zip(exact.blocks, ceilings, strict=True):
            assert isinstance(block, Block)
            found.append(_joined(block, [_Seen.of(block, ceiling, x, margin) for x in streams], margin))
            streams = [block(x) for x in streams]
    last = _widened([_variance(x[:, :1]) for x in streams], margin**2)
    return found, last


@dataclass(frozen=True, repr=False)
class _Seen:
    """Of some images in a block: intervals, and largest values."""

    variances: tuple[Interval, Interval, Interval, Interval]
    """Before both LayerNorms, of the class token and of the others."""
    norms: torch.Tensor
    """float64 [2, H]: of queries and of keys."""
    total: float
    half_total: float
    spread: tuple[float, ...]

    @classmethod
    def of(cls, block: Block, ceiling: BlockCeiling, x: torch.Tensor, margin: float) -> _Seen:
        functions = functions_of(block)
        query, key, _ = _vectors(block, x)
        key = key - key.mean(2, keepdim=True)
        scores = (query.matmul(key.transpose(2, 3)) * functions.scale).numpy()
        total, half_total = (functions.exponential(part).sum(-1).max().item() for part in (scores, scores / 2))
        middle = x + block.attn(block.norm1(x))
        hidden = block.mlp.fc1(block.norm2(middle)).abs() * margin
        first, others, second_first, second_others = (
            _variance(part) for y in (x, middle) for part in (y[:, :1], y[:, 1:])
        )
        return cls(
            (first, others, second_first, second_others),
            torch.stack([vectors.norm(dim=-1).amax((0, 2)) for vectors in (query, key)]),
            total,
            half_total,
            _spread(hidden, functions, ceiling),
        )


def _joined(block: Block, seen: Sequence[_Seen], margin: float) -> tuple[Bounds, torch.Tensor]:
    variances = [_widened([each.variances[place] for each in seen], margin**2) for place in range(4)]
    # The product of both norms has the margin.
    norms = torch.stack([each.norms for each in seen]).amax(0).clamp(min=_LEAST_NORM) * math.sqrt(margin)
    bounds = Bounds(
        first_variance=_lifted(block, *variances[:2]),
        second_variance=_lifted(block, *variances[2:]),
        vectors=norms.prod(0).sqrt().max().item(),
        total=max(each.total for each in seen) * margin**2,
        half_total=max(each.half_total for each in seen) * margin,
        hidden_spread=tuple(map(max, zip(*(each.spread for each in seen), strict=True))),
    )
    return bounds, (norms[1] / norms[0]).sqrt()


def _vectors(block: Block, x: torch.Tensor) -> torch.Tensor:
    """Queries, keys and values: [3, B, H, T, D/H]."""
    joint: torch.Tensor = block.attn.qkv(block.norm1(x))
    return joint.reshape(*x.shape[:2], 3, block.attn.heads, -1).permute(2, 0, 3, 1, 4)


def _lifted(block: Block, first: Interval, others: Interval) -> VarianceBounds:
    # A polynomial is another function of what is multiplied.
    exact = block.norm1.steps is None
    lift = math.sqrt(math.sqrt(others.low * others.high / (first.low * first.high))) if exact else 1
    lift = min(max(round(lift), 1), LARGEST_LIFT)
    return VarianceBounds(Interval(first.low * lift**2, first.high * lift**2).joined(others), lift)


def _spread(hidden: torch.Tensor, functions: Functions, ceiling: BlockCeiling) -> tuple[float, ...]:
    """The largest of all tokens, of magnitudes [B, T, F]."""
    if functions.quadratic:
        return (hidden.square().sum(-1).max().item(),)
    angles = ((hidden / period * torch.pi).clamp(max=torch.pi / 2) for period in hidden_periods(ceiling.hidden))
    return tuple(angle.sin().pow(6).sum(-1).max().item() for angle in angles)


def _variance(x: torch.Tensor) -> Interval:
    return _interval((x - x.mean(-1, keepdim=True)).square().mean(-1))


def _interval(values: torch.Tensor) -> Interval:
    return Interval(values.min().item(), values.max().item())


def _widened(intervals: Sequence[Interval], margin: float) -> Interval:
    low, high = min(each.low for each in intervals), max(each.high for each in intervals)
    return Interval(low / margin, high * margin)
