"""Fixed-point scales of a block: public, derived from its shape and from the measured and possible ranges of values.

A number v stands in a ring of K bits as the whole number nearest to v times its scale. Nothing may be too large for its
ring unless the pass is refused. Five kinds of values are checked in every block, in rings that nothing can leave that
passed the checks before: variances, the norms of queries and of keys, the sums of exponentials, and hidden values.
Their range is that of typical images, which go through the blocks in the clear in float64, widened by a margin. All
else has a bound that follows from the weights (models/friendly/calibration.py):

| value                | bound                                                                                 |
|----------------------|---------------------------------------------------------------------------------------|
| pixel                | the data owner's own program checks it                                                |
| stream               | norm of a token: what the checked variance says, plus what a half of a block can add  |
| normalised input     | norm at most sqrt(width)                                                              |
| queries, keys        | entries by Cauchy-Schwarz, then their norms by the check                              |
| scores               | product of the checked norms                                                          |
| exponentials         | positive, their function is bounded on all possible scores; sums by the check         |
| values, mixed values | entries by Cauchy-Schwarz; mixing makes none larger                                   |
| hidden values        | entries by Cauchy-Schwarz, then what is in range by the check                         |

Weights take whatever scale brings the next number to its own; LEAST_WEIGHT_BITS (model.py) says what is too coarse.
Rings, and bytes of what is opened or sent: tacit.protocol.inference.schedule.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec
import torch
from msgspec import Meta

from tacit.models.friendly.calibration import BlockCeiling
from tacit.models.friendly.polynomials import Interval
from tacit.models.friendly.transformer import Block, FriendlyTransformer, LayerNorm
from tacit.parties.inference.hidden import fitted_hidden, gelu_cut, hidden_periods
from tacit.parties.inference.ring import SPARE, WORD_BITS
from tacit.parties.inference.scores import (
    SHARE_BITS,
    SHARE_RING,
    Bounds,
    Far,
    FittedScores,
    Functions,
    VarianceBounds,
    fitted_scores,
)
from tacit.parties.inference.tables import (
    FILLED,
    LEAST_INTERVALS,
    SQUARES,
    BoundError,
    CheckedSum,
    Inverse,
    Norm,
    Positive,
    Table,
    fitted_sum,
    fitted_table,
    largest,
)
from tacit.parties.inference.waves import Wave
from tacit.protocol.inference.schedule import CENTRED, HALVES, POOLED, STREAM, VECTORS, WEIGHTED

ATTENTION_INPUT: Final = 2.0**27
"""Scale of what the first LayerNorm gives, which is not cut."""
MLP_INPUT: Final = 2.0**20
HEAD_INPUT: Final = 2.0**14
LARGEST_STREAM_SCALE: Final = 2.0**31
_MIXED: Final = 2.0**14
_SUM_INTERVALS: Final = 2 * LEAST_INTERVALS
"""Below a sum of exponentials: rows as small as the smallest in range are nothing special."""
_HALF_SUM_INTERVALS: Final = LEAST_INTERVALS // 2
"""Below one of half the scores: the error of its inverse, at most (1 / 8)^2, is divided out with the sum of squares."""
_LEAST_SQUARES: Final = 0.9
"""Of such shares of one, times their number: it is 1 without that error."""
_VALUE_BITS: Final = 16
"""Fractional bits that exponentials leave to values."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes of a block and its input. ValueError for those that do not fit the rings."""

    images: int
    tokens: int
    width: int
    heads: int
    hidden: int

    def __post_init__(self) -> None:
        if min(self.images, self.tokens, self.width, self.heads, self.hidden) < 1 or self.width % self.heads:
            raise ValueError(f"{self}: sizes are at least 1, and the heads share the width evenly")
        if self.tokens > 1024 or self.width > 4096:
            raise ValueError(f"{self}: at most 1024 tokens of a width of 4096 fit the rings")

    @property
    def stream(self) -> tuple[int, int, int]:
        return (self.images, self.tokens, self.width)

    @property
    def scores(self) -> tuple[int, int, int, int]:
        return (self.images, self.heads, self.tokens, self.tokens)

    @property
    def vectors(self) -> tuple[int, int, int, int]:
        """Of queries, keys or values."""
        return (self.images, self.heads, self.tokens, self.width // self.heads)


class Scales(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Made by `fitted`. Whatever stands within the limits is computed with safely, if not correctly."""

    stream: Positive
    query: Positive
    key: Positive
    """Of keys less their mean."""
    value: Positive
    """Of queries, keys and values, cut."""
    query_turn: Annotated[int, Meta(ge=1, le=VECTORS)]
    key_turn: Annotated[int, Meta(ge=1, le=VECTORS)]
    """Bits of one turn of the wave that tells their norms."""
    queries: CheckedSum
    keys: CheckedSum
    exponential: Wave
    far: Far | None
    """Where `exponential` is that of half the scores."""
    exponential_cut: Annotated[int, Meta(ge=0, le=WORD_BITS - STREAM)]
    totals: Table
    mixed: Positive
    hidden: Positive
    """Of hidden values, cut."""
    gelu: Wave | None
    """None: the quadratic one."""
    hidden_spread: CheckedSum
    """Of the sum of SPREAD over the hidden values of a token; of their squares, where GELU is quadratic."""
    hidden_bits: Annotated[int, Meta(ge=0, le=14)]
    """Fractional bits of hidden values where GELU is quadratic."""
    gelu_cut: Annotated[int, Meta(ge=0, le=WORD_BITS - STREAM)]
    first_norm: Norm
    second_norm: Norm

    @property
    def activated(self) -> float:
        """Scale of the values behind GELU, once cut."""
        bits = 2 * self.hidden_bits + 3 if self.gelu is None else self.gelu.bits
        return 2.0 ** (bits - self.gelu_cut)


def fitted(
    shape: Shape,
    bounds: Bounds,
    ceiling: BlockCeiling,
    functions: Functions,
    *,
    stream: float,
    norms: tuple[float, float],
    far: bool,
    vector_entries: tuple[float, float],
) -> Scales:
    """The scales of a block.

    stream: the scale of the residual stream, which all blocks share. norms: what the norm of a token before each
    LayerNorm is at most. far: as of the sizes. vector_entries: the largest magnitude that an entry of a query, or a
    key, can have. BoundError for values that are too large, or without a bound.
    """
    size = shape.width // shape.heads
    scores = fitted_scores(functions, bounds, vector_entries, tokens=shape.tokens, size=size, far=far)
    exponential = scores.exponential
    if far:
        found, plain = _far(scores, bounds, shape.tokens), 2 * SHARE_BITS
        sums, most = Interval(_LEAST_SQUARES / shape.tokens, 1 / SPARE), 1 / SPARE
    else:
        found, plain = None, exponential.bits
        sums = Interval(SPARE * shape.tokens, bounds.total)
        most = shape.tokens * scores.largest
    bits, value = _mixing(sums, most, ceiling.value, plain)
    totals = fitted_table(
        "sums of exponentials",
        Inverse(
            function="inverse",
            unit=1.0,
            offset=0.0,
            scale=_MIXED * 2.0 ** (WORD_BITS - WEIGHTED - bits) / value,
            steps=functions.inverse_steps,
            divisor=1.0 if functions.inverse_steps is None else sums.high,
        ),
        bits=STREAM,
        unit=2.0**bits,
        most=most,
        low=sums.low,
        high=sums.high,
        intervals=_SUM_INTERVALS,
    )
    hidden = fitted_hidden(functions, bounds, ceiling.hidden, shape.hidden)
    gelu_bits = 2 * hidden.bits + 3 if hidden.gelu is None else hidden.gelu.bits
    return Scales(
        stream=stream,
        query=scores.query.scale,
        key=scores.key.scale,
        value=value,
        query_turn=scores.query.turn,
        key_turn=scores.key.turn,
        queries=scores.query.place,
        keys=scores.key.place,
        exponential=exponential,
        far=found,
        exponential_cut=plain - bits,
        totals=totals,
        mixed=_MIXED,
        hidden=hidden.scale,
        gelu=hidden.gelu,
        hidden_spread=hidden.spread,
        hidden_bits=hidden.bits,
        gelu_cut=gelu_cut(gelu_bits),
        first_norm=fitted_norm(
            bounds.first_variance,
            width=shape.width,
            epsilon=functions.epsilons[0],
            steps=functions.inverse_steps,
            stream=stream,
            norm=norms[0],
            normalised=ATTENTION_INPUT,
            cut=0,
        ),
        second_norm=fitted_norm(
            bounds.second_variance,
            width=shape.width,
            epsilon=functions.epsilons[1],
            steps=functions.inverse_steps,
            stream=stream,
            norm=norms[1],
            normalised=MLP_INPUT,
            cut=SQUARES - STREAM,
        ),
    )


def _mixing(sums: Interval, most: float, value: float, plain: int) -> tuple[int, float]:
    """Fractional bits of exponentials, which have `plain` before they are cut, and the scale of values up to `value`:
    sums of their products fit their ring."""
    place = fitted_sum("sums of exponentials", bits=STREAM, unit=1.0, most=most, low=sums.low, high=sums.high)
    room = 2.0 ** (STREAM - 2) * SPARE / (largest(place, bits=STREAM, unit=1.0) * value)
    bits = min(max(math.floor(math.log2(room)) - _VALUE_BITS, 6, plain - WORD_BITS + STREAM), plain)
    scale = min(room / 2.0**bits, 2.0**24)
    if plain - bits > WORD_BITS - STREAM or scale < 2.0**12:
        raise BoundError(
            f"sums of exponentials from {sums.low:.4g} to {sums.high:.4g}, and values up to {value:.4g}, have products "
            f"too large for {STREAM} bits; train with smaller weights"
        )
    return bits, scale


def _far(scores: FittedScores, bounds: Bounds, tokens: int) -> Far:
    """Of the sums of the exponentials of half the scores."""
    most = tokens * scores.largest
    bits = min(math.floor(math.log2(2.0**HALVES * FILLED / most)), scores.exponential.bits)
    cut = scores.exponential.bits - bits
    if cut > WORD_BITS - HALVES:
        raise BoundError(
            f"exponentials of half the scores reach {scores.largest:.4g}: that is too far for {WORD_BITS} bits; train "
            "with smaller weights"
        )
    totals = fitted_table(
        "sums of exponentials of half the scores",
        Inverse(
            function="inverse",
            unit=1.0,
            offset=0.0,
            scale=2.0 ** (SHARE_BITS + SHARE_RING - WEIGHTED - bits),
        ),
        bits=HALVES + cut,
        unit=2.0**scores.exponential.bits,
        most=most,
        low=SPARE * tokens,
        high=bounds.half_total,
        intervals=_HALF_SUM_INTERVALS,
    )
    return Far(cut=cut, totals=totals)


def fitted_norm(
    bounds: VarianceBounds,
    *,
    width: int,
    epsilon: float,
    steps: int | None,
    stream: float,
    norm: float,
    normalised: float,
    cut: int = WORD_BITS - STREAM,
) -> Norm:
    """Of a LayerNorm over tokens whose norm is at most `norm`, the class token multiplied; normalised: the scale of its
    result, once cut."""
    variance = bounds.interval
    table = fitted_table(
        "variances",
        Inverse(
            function="inverse root",
            unit=1.0,
            offset=epsilon,
            scale=normalised * 2.0**cut / centred_scale(stream),
            steps=steps,
            divisor=1.0 if steps is None else (variance.high + epsilon) / 2.25,
        ),
        bits=SQUARES,
        unit=width * centred_scale(stream) ** 2,
        most=norm**2 / width,
        low=variance.low,
        high=variance.high,
    )
    return Norm(variance=table, lift=bounds.lift, cut=cut, normalised=normalised)


def checked_norm(norm: Norm, width: int, stream: float) -> float:
    """What the norm of a token is at most whose variance was found in range."""
    variance = largest(norm.variance, bits=SQUARES, unit=width * centred_scale(stream) ** 2)
    return math.sqrt(width * variance)


def centred_scale(stream: float) -> float:
    """Scale of the stream as LayerNorm opens it."""
    return stream / 2.0 ** (STREAM - CENTRED)


def stream_scale(norm: float) -> float:
    """The finest power of two for a residual stream whose tokens have at most this norm."""
    scale = min(power_of_two(2.0 ** (STREAM - 2) / norm), LARGEST_STREAM_SCALE)
    if scale < 2.0**24:
        raise BoundError(
            f"a token of the residual stream can reach {norm:.6g}: that leaves less than 5 fractional bits; train with "
            "smaller weights"
        )
    return scale


def mean_factor(patches: int) -> int:
    """Factor that brings the sum of the POOLED highest bits of so many tokens to their mean, at about the scale of the
    stream."""
    return (1 << (STREAM - POOLED)) // patches


def mean_scale(patches: int) -> float:
    """The scale of that mean, relative to the stream's: LayerNorm sees no scale, only its epsilon does."""
    return mean_factor(patches) * patches / 2.0 ** (STREAM - POOLED)


def power_of_two(room: float) -> float:
    return 2.0 ** math.floor(math.log2(room * SPARE))


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
        activation=block.mlp.activation,
        epsilons=(block.norm1.eps, block.norm2.eps),
    )


def measured(
    exact: FriendlyTransformer, ceilings: Sequence[BlockCeiling], images: torch.Tensor, margin: float
) -> tuple[list[tuple[Bounds, torch.Tensor]], Interval]:
    """Of every block of a model in float64, and the variances of what the last LayerNorm takes.

    With each block goes its balance, float64 [H] and secret: queries are multiplied by it, and keys divided."""
    found = []
    with torch.no_grad():
        parts = torch.split(images, max(1, _TOGETHER // exact.size[0]))
        streams = [exact.embed(exact.patches(part.double())) for part in parts]
        for block, ceiling in zip(exact.blocks, ceilings, strict=True):
            assert isinstance(block, Block)
            found.append(_joined(block, [_Seen.of(block, ceiling, x, margin) for x in streams], margin))
            streams = [block(x) for x in streams]
    last = _widened([_variance(exact.pooled(x)) for x in streams], margin**2)
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
        middle = block.attended(x)
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


def before_norm(exact: FriendlyTransformer, images: torch.Tensor, margin: float) -> VarianceBounds:
    """Variances that the LayerNorm before the blocks takes."""
    assert exact.norm_pre is not None
    with torch.no_grad():
        parts = torch.split(images, max(1, _TOGETHER // exact.size[0]))
        streams = [exact.project(exact.patches(part.double())) for part in parts]
    first, others = [_variance(x[:, :1]) for x in streams], [_variance(x[:, 1:]) for x in streams]
    return _lifted(exact.norm_pre, _widened(first, margin**2), _widened(others, margin**2))


def _joined(block: Block, seen: Sequence[_Seen], margin: float) -> tuple[Bounds, torch.Tensor]:
    variances = [_widened([each.variances[place] for each in seen], margin**2) for place in range(4)]
    # The product of both norms has the margin.
    norms = torch.stack([each.norms for each in seen]).amax(0).clamp(min=_LEAST_NORM) * math.sqrt(margin)
    bounds = Bounds(
        first_variance=_lifted(block.norm1, *variances[:2]),
        second_variance=_lifted(block.norm2, *variances[2:]),
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


def _lifted(norm: LayerNorm, first: Interval, others: Interval) -> VarianceBounds:
    # A polynomial is another function of what is multiplied.
    exact = norm.steps is None
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
