"""The range of every value in a transformer: measured in the clear on typical images, and bounded by the weights.

A computation on shares sees no value, so the range of each must be known beforehand, and a polynomial is valid within
an interval only. In calibration the model runs on typical images; every gauge records the smallest and the largest
value that pass it, and the interval is widened by a margin: a factor upwards, and downwards too where only positive
values are possible. The intervals are public: all parties of a computation on shares learn them.

Bounds that hold for every image follow from the weights alone. They begin with LayerNorm. It gives x^ = (x - mean) /
sqrt(variance + eps), D values whose sum is 0 and whose norm is sqrt(D variance / (variance + eps)) < sqrt(D), then
gamma x^ + beta. The linear layer behind it, W y + b, is

    A x^ + a,   A = W diag(gamma) with its rows centred,   a = W beta + b:

a row may lose its mean, since x^ has the sum 0. By Cauchy-Schwarz, with a row A_j, and the largest singular value |A|,

    |(A x^ + a)_j| <= |A_j| sqrt(D) + |a_j|,   |A x^ + a| <= |A| sqrt(D) + |a|.

Each of the first is attained by the x^ along its row, the second where a is 0. The fields below document the bounds
that follow. All is float64 and exact but for its rounding: a computation in fixed point adds its own errors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import nn

from tacit.models.friendly.polynomials import (
    Gauge,
    Interval,
    exponential_share,
    inverse_error,
    inverse_root_error,
    whole,
)
from tacit.models.friendly.transformer import (
    Attention,
    Block,
    FriendlyTransformer,
    LayerNorm,
    LinearLayer,
    Mlp,
    norm_bound,
    products_bound,
)

_LOWEST_GELU: Final = 0.1701
"""GELU is never below -0.16998, its value at -0.7518; by a tanh not below -0.17005, quick GELU not below -0.1637."""


@dataclass(frozen=True, kw_only=True)
class Increment:
    """The change of a token in the residual stream by one half of a block."""

    norm: float
    """Norm of the whole token."""
    entries: tuple[float, ...]
    """Magnitude of each of its D values."""


@dataclass(frozen=True, kw_only=True)
class BlockCeiling:
    """Magnitudes that no input exceeds."""

    queries: tuple[float, ...]
    """Norm of a query, for each head: |A| sqrt(D) + |a| for the rows of the head."""
    keys: tuple[float, ...]
    """Norm of a key, for each head, less the mean of the T keys of its image: 2 (1 - 1/T) |A| sqrt(D).

    The bias cancels, and x^ less the mean is (1 - 1/T) x^ less the sum of T - 1 others divided by T. Attained where one
    token is the opposite of all others."""
    score: float
    """Argument of the exponential: scale |q| |k|, the largest of all heads."""
    value: float
    """Entry of a value vector: |A_j| sqrt(D) + |a_j|, the largest."""
    hidden: float
    """Argument of GELU: the same bound for the first layer after the second LayerNorm."""
    attention: Increment
    """A softmax's output norm is at most that of its inputs. With V_h the A of a head's values, v all their a, P_h the
    columns of the projection for them, and z_h within sqrt(D), the attention adds the sum of P_h V_h z_h, plus P v + p.
    Entries: the summed row norms of all P_h V_h; norm: the sum of |P_h V_h|, or sqrt(H) times the singular value of all
    side by side, if that is less. A softmax by polynomials adds its error."""
    mlp: Increment
    """The MLP passes GELU, which lies between -0.17 and its argument, and nowhere above it; or the quadratic one, which
    is ((x + 1)^2 + 3) / 8. Entries: the smaller one of both estimates, by the norms of vectors and by magnitudes."""


def block_ceiling(block: Block, tokens: int) -> BlockCeiling:
    """Return a block's bounds, for finite weights and images of `tokens` tokens. A token has at least two values."""
    attention = block.attn
    weight, bias = folded(block.norm1, attention.qkv)
    heads, width = attention.heads, weight.shape[1]
    root = width**0.5
    matrices = weight.reshape(3, heads, width // heads, width)
    query_bias = bias.reshape(3, heads, width // heads)[0]
    queries = _spectral(matrices[0]) * root + query_bias.norm(dim=-1)
    keys = 2 * (1 - 1 / tokens) * _spectral(matrices[1]) * root
    fc1, fc1_bias = folded(block.norm2, block.mlp.fc1)
    return BlockCeiling(
        queries=_floats(queries),
        keys=_floats(keys),
        score=attention.scale * (queries * keys).max().item(),
        value=_entries(weight[2 * width :], bias[2 * width :]).max().item(),
        hidden=_entries(fc1, fc1_bias).max().item(),
        attention=_attention(matrices[2], bias[2 * width :], attention.proj),
        mlp=_mlp(fc1, fc1_bias, block.mlp),
    )


def token_ceiling(model: FriendlyTransformer, pixel: float) -> tuple[float, ...]:
    """Return the magnitude of each of the D values of a token that enters the first block, for pixels of at most this
    magnitude: the summed magnitudes of the weights times it, plus the offset; the largest of all tokens. It excludes a
    LayerNorm between them, which some models have."""
    projection: Any = model.patch_embed.proj
    with torch.no_grad():
        sums = projection.weight.double().flatten(1).abs().sum(-1)
        offsets = model.offsets[0].double().abs()
        offsets[model.prefix :] += pixel * sums
        return _floats(offsets.amax(0))


def logit_ceiling(model: FriendlyTransformer) -> float:
    """Return the largest magnitude of a logit: |A_j| sqrt(n D) + |a_j| of the layer behind the last LayerNorm, which
    reads n tokens side by side. A mean of tokens has no larger norm than one of them. Behind a pool, which has no such
    LayerNorm, it is |W_j| times the pool's output norm, plus the bias."""
    if model.norm is None:
        with torch.no_grad():
            pool = model.blocks[-1]
            assert isinstance(pool, Block)
            ceiling = block_ceiling(pool, model.size[0])
            largest = model.head.weight.double().norm(dim=-1) * (ceiling.attention.norm + ceiling.mlp.norm)
            bias = 0.0 if model.head.bias is None else model.head.bias.double().abs()
            ceiled: float = (largest + bias).max().item()
            return ceiled
    return _entries(*folded(model.norm, model.head)).max().item()


def folded(norm: LayerNorm, layer: LinearLayer) -> tuple[torch.Tensor, torch.Tensor]:
    """Return A [out, D] and a [out] of a LayerNorm and the linear layer behind it, float64; see above. A layer that
    reads n normalised tokens side by side has A [out, n D]."""
    with torch.no_grad():
        weight = layer.weight.double().reshape(len(layer.weight), -1, len(norm.weight))
        bias = (weight @ norm.bias.double()).sum(-1)
        if layer.bias is not None:
            bias = bias + layer.bias.double()
        weight = weight * norm.weight.double()
        return (weight - weight.mean(-1, keepdim=True)).flatten(1), bias


def _attention(values: torch.Tensor, bias: torch.Tensor, proj: LinearLayer) -> Increment:
    """values: V_h [H, D/H, D]."""
    heads, size, width = values.shape
    with torch.no_grad():
        weight = proj.weight.double()
        constant = weight @ bias
        if proj.bias is not None:
            constant = constant + proj.bias.double()
    products = weight.reshape(-1, heads, size).transpose(0, 1) @ values  # [H, D, D]
    beside = heads**0.5 * _spectral(products.transpose(0, 1).reshape(-1, heads * width))
    largest = torch.minimum(_spectral(products).sum(), beside)
    return Increment(
        norm=(largest * width**0.5 + constant.norm()).item(),
        entries=_floats(products.norm(dim=-1).sum(0) * width**0.5 + constant.abs()),
    )


def _mlp(weight: torch.Tensor, bias: torch.Tensor, mlp: Mlp) -> Increment:
    """weight, bias: A and a of the first layer."""
    root = weight.shape[1] ** 0.5
    highest = weight.norm(dim=-1) * root
    if mlp.quadratic:
        # |(h + 1)^2| as a vector is at most |h + 1|^2.
        activated = (((highest + bias.abs() + 1).square() + 3) / 8).abs()
        norm = ((_spectral(weight) * root + (bias + 1).norm()).square() + 3 * len(bias) ** 0.5) / 8
    else:
        activated = (highest + bias).clamp(min=_LOWEST_GELU)
        norm = _spectral(weight) * root + bias.norm()
    norm = torch.minimum(norm, activated.norm())
    with torch.no_grad():
        second = mlp.fc2.weight.double()
        constant = torch.zeros_like(second[:, 0]) if mlp.fc2.bias is None else mlp.fc2.bias.double()
    return Increment(
        norm=(_spectral(second) * norm + constant.norm()).item(),
        entries=_floats(torch.minimum(second.norm(dim=-1) * norm, second.abs() @ activated) + constant.abs()),
    )


def _entries(weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = weight.norm(dim=-1) * weight.shape[1] ** 0.5 + bias.abs()
    return found


def _spectral(matrices: torch.Tensor) -> torch.Tensor:
    """Return the largest singular value of each [..., out, in]: the root of the largest eigenvalue of M M^T or M^T M,
    whichever is smaller; relative to it, both lose only rounding."""
    matrices = matrices if matrices.shape[-2] <= matrices.shape[-1] else matrices.mT
    largest: torch.Tensor = torch.linalg.eigvalsh(matrices @ matrices.mT)[..., -1].clamp(min=0).sqrt()
    return largest


def _floats(values: torch.Tensor) -> tuple[float, ...]:
    found: list[float] = values.tolist()
    return tuple(found)


BATCH = 64


def calibrate(
    model: nn.Module, images: torch.Tensor, *, margin: float, progress: Callable[[int], None] = lambda done: None
) -> None:
    """Fix the intervals of a model from images [N, C, S, S]; the model is left in evaluation mode.

    margin: 1 keeps the observed intervals, 2 takes twice the largest and half of the smallest value; progress: receives
    the number of completed images. Raises ValueError for a margin below 1 or no images, ActivationError as Gauge does;
    the intervals then stay unchanged.
    """
    if not 1 <= margin < math.inf:
        raise ValueError(f"the margin is a finite factor of at least 1, not {margin}")
    if len(images) == 0:
        raise ValueError("a model is calibrated on at least one image")
    gauges = list(_gauges(model))
    before = [gauge.interval for gauge in gauges]
    model.eval()
    device = next(model.parameters()).device
    try:
        for gauge in gauges:
            gauge.interval, gauge.recording = None, True
        with torch.no_grad():
            for number, batch in enumerate(torch.split(images, BATCH)):
                model(batch.to(device))
                progress(number * BATCH + len(batch))
    except BaseException:
        for gauge, interval in zip(gauges, before, strict=True):
            gauge.interval = interval
        raise
    finally:
        for gauge in gauges:
            gauge.recording = False
    for gauge in gauges:
        if gauge.interval is not None:
            gauge.interval = _widened(gauge.interval, margin, positive=gauge.positive)


def intervals(model: nn.Module) -> dict[str, Interval]:
    return {gauge.name: gauge.interval for gauge in _gauges(model) if gauge.interval is not None}


def fix_intervals(model: nn.Module, found: Mapping[str, Interval]) -> None:
    """Set the gauges' intervals from a calibration. ValueError for an invalid interval, or one of an unknown gauge."""
    gauges = {gauge.name: gauge for gauge in _gauges(model)}
    for name, (low, high) in found.items():
        if name not in gauges:
            raise ValueError(f"interval {name!r} belongs to no part of this model")
        least = 0.0 if gauges[name].positive else -math.inf
        if not (least < low <= high < math.inf):
            raise ValueError(f"interval {name!r} from {low} to {high} is none that {name} can have")
    for name, interval in found.items():
        gauges[name].interval = Interval(*interval)


@dataclass(frozen=True, kw_only=True)
class Bound:
    """Largest error of a polynomial within its calibrated interval."""

    name: str
    interval: Interval
    error: float
    """Relative error; for the exponential, relative to its largest value."""


def error_bounds(model: nn.Module) -> list[Bound]:
    """Return the largest error of every polynomial of a calibrated model; exact functions have none."""
    bounds: list[Bound] = []

    def add(gauge: Gauge, error: float) -> None:
        if gauge.interval is not None:
            bounds.append(Bound(name=gauge.name, interval=gauge.interval, error=error))

    for part in model.modules():
        if isinstance(part, LayerNorm) and part.steps is not None and part.variance.interval is not None:
            low, high = (end / norm_bound(part.variance.interval) ** 2 for end in part.variance.interval)
            add(part.variance, inverse_root_error(low, high, part.steps))
        elif isinstance(part, Attention) and part.degree is not None and part.products.interval is not None:
            largest = part.scale * products_bound(part.products.interval)
            add(part.products, exponential_share(largest, part.degree))
            if part.steps is not None and part.totals.interval is not None:
                low, high = (end / whole(part.totals.interval.high) for end in part.totals.interval)
                add(part.totals, inverse_error(low, high, part.steps))
    return bounds


def _gauges(model: nn.Module) -> Iterator[Gauge]:
    return (part for part in model.modules() if isinstance(part, Gauge))


def _widened(interval: Interval, margin: float, *, positive: bool) -> Interval:
    if positive:
        return Interval(interval.low / margin, interval.high * margin)
    largest = margin * max(abs(interval.low), abs(interval.high))
    return Interval(-largest, largest)
