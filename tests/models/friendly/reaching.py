"""What a model has seen of its calibration images, read from its gauges: the ground truth of bounds and intervals."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tacit.models.friendly.calibration import calibrate
from tacit.models.friendly.polynomials import Gauge, Interval
from tacit.models.friendly.transformer import FriendlyTransformer, LayerNorm


@dataclass(frozen=True, kw_only=True)
class NormReach:
    centred: float
    """Largest magnitude of a value of its input, the mean of its token taken away."""
    variance: Interval
    """Of a token, with epsilon."""


@dataclass(frozen=True, kw_only=True)
class BlockReach:
    first_norm: NormReach
    second_norm: NormReach
    queries: tuple[float, ...]
    """By head, the largest norm of the query of a token."""
    keys: tuple[float, ...]
    """The same of the key, the mean of the keys of its image taken away."""
    score: float
    """Magnitude of an argument of the exponential: a query times such a key, times the attention's scale."""
    totals: Interval
    """Sum of the exponentials of a row; those of centred scores have a sum of at least the number of tokens."""
    value: float
    """Magnitude of an entry of a value vector."""
    hidden: float
    """Magnitude of an argument of GELU."""
    stream: float
    """Magnitude of the residual stream: input, sum after the attention, output."""


@dataclass(frozen=True, kw_only=True)
class Reach:
    pixel: float
    """Magnitude of a normalised pixel."""
    blocks: tuple[BlockReach, ...]
    norm: NormReach
    """Of the last LayerNorm, which the class token alone goes through."""
    logits: float
    """Magnitude of a logit."""


def reach_of(
    model: FriendlyTransformer,
    images: torch.Tensor,
    *,
    margin: float = 1.0,
) -> Reach:
    """The reach of a model on images [N, C, S, S], computed in float64 on a copy; the model stays as it is.

    margin: as of calibrate(), and it raises the same.
    """
    exact = copy.deepcopy(model).double()
    calibrate(exact, images.double(), margin=margin)
    return reach(exact)


def reach(model: FriendlyTransformer) -> Reach:
    """What the gauges of a calibrated model say. ValueError for a model that is not calibrated, or was by a version
    that had fewer gauges."""
    blocks: Sequence[Any] = list(model.blocks)
    return Reach(
        pixel=_largest(model.pixel),
        blocks=tuple(_block_reach(block) for block in blocks),
        norm=_norm_reach(model.norm),
        logits=_largest(model.logits),
    )


def _block_reach(block: Any) -> BlockReach:
    attention = block.attn
    return BlockReach(
        first_norm=_norm_reach(block.norm1),
        second_norm=_norm_reach(block.norm2),
        queries=tuple(map(_largest, attention.queries)),
        keys=tuple(map(_largest, attention.keys)),
        score=attention.scale * _largest(attention.products),
        totals=_interval(attention.totals),
        value=_largest(attention.value),
        hidden=_largest(block.mlp.hidden),
        stream=_largest(block.stream),
    )


def _norm_reach(norm: LayerNorm) -> NormReach:
    return NormReach(centred=_largest(norm.centred), variance=_interval(norm.variance))


def _interval(gauge: Gauge) -> Interval:
    if gauge.interval is None:
        raise ValueError(f"{gauge.name}: the model is not calibrated there; calibrate it in the clear, on typical data")
    return gauge.interval


def _largest(gauge: Gauge) -> float:
    return max(map(abs, _interval(gauge)))
