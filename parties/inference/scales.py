"""Fixed-point scales of a block: public, derived from its shape and from the measured and possible ranges of values.

A number v is represented in a ring of K bits as the integer nearest to v times its scale. A value must not exceed its
ring unless the pass is refused. Five kinds of values are checked in every block, in rings that hold every value allowed
by earlier checks: variances, the norms of queries and of keys, the sums of exponentials, and hidden values. Their
permitted range is that of typical images, which pass the blocks in the clear in float64, widened by a margin. All other
values have a bound that follows from the weights (models/friendly/calibration.py):

| value                | bound                                                                                 |
|----------------------|---------------------------------------------------------------------------------------|
| pixel                | checked by the data owner's own program                                               |
| stream               | norm of a token: from the checked variance, plus the largest addend of half a block   |
| normalised input     | norm at most sqrt(width)                                                              |
| queries, keys        | entries by Cauchy-Schwarz, then their norms by the check                              |
| scores               | product of the checked norms                                                          |
| exponentials         | positive, their function is bounded on all possible scores; sums by the check         |
| values, mixed values | entries by Cauchy-Schwarz; mixing makes none larger                                   |
| hidden values        | entries by Cauchy-Schwarz, then the permitted range by the check                      |

Weights have the scale that brings the product to its own scale; LEAST_WEIGHT_BITS (model.py) is the coarsest allowed.
Rings, and bytes of openings and messages: tacit.protocol.inference.schedule.
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
from tacit.parties.inference.hidden import GELU_CUT, POWER, fitted_hidden
from tacit.parties.inference.ring import SPARE, WORD_BITS
from tacit.parties.inference.scores import (
    LAST_BITS,
    Bounds,
    Divisions,
    Functions,
    VarianceBounds,
    fitted_divisions,
    fitted_scores,
    squarings_of,
)
from tacit.parties.inference.tables import (
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
from tacit.protocol.inference.schedule import (
    CENTRED,
    COARSE,
    FINEST,
    POOLED,
    SHARES,
    STREAM,
    VECTORS,
    WEIGHTED,
    BlockForm,
)

MLP_INPUT: Final = 2.0**20
HEAD_INPUT: Final = 2.0**14
LARGEST_STREAM_SCALE: Final = 2.0**31
LEAST_STREAM_SCALE: Final = 2.0**16
_WEIGHT: Final = 2.0**6
"""Least magnitude of a typical integer weight. Weights of a layer that adds to the stream may be small, and so may
those of queries and keys with large scores; then the scale of their input is coarser."""
_ATTENTION_INPUT: Final = (22, 27)
"""Powers of two between which that scale is for queries, keys and values: the first LayerNorm is not truncated."""
_MIXED: Final = (10, 14)
_ACTIVATED: Final = (11, 13)
_ROOT_BITS: Final = 13
"""Bits of the least inverse root of a variance, or half of the result's, which leaves as many to its factor."""
_SUM_INTERVALS: Final = 2 * LEAST_INTERVALS
"""Intervals below the least sum of exponentials in range: such rows are common."""
_VALUE_BITS: Final = 16
"""Fractional bits that exponentials leave to values."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes of a block and its input. ValueError for sizes that do not fit the rings."""

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
        return (self.images, self.heads, self.tokens, self.width // self.heads)


class Scales(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Made by `fitted`. Within the limits all values are computed with safely, if not correctly."""

    stream: Positive
    query: Positive
    key: Positive
    """Scale of centred keys."""
    value: Positive
    """Scale of queries, keys and values after truncation."""
    query_turn: Annotated[int, Meta(ge=1, le=VECTORS)]
    key_turn: Annotated[int, Meta(ge=1, le=VECTORS)]
    """Bits of one period of the harmonic that measures their norms."""
    queries: CheckedSum
    keys: CheckedSum
    exponential: Wave
    """Function of scores / 2^L."""
    divisions: Divisions
    exponential_cut: Annotated[int, Meta(ge=0, le=WORD_BITS - STREAM)]
    totals: Table
    mixed: Positive
    hidden: Positive
    """Scale of hidden values after truncation."""
    hidden_opened: Annotated[int, Meta(ge=COARSE, le=FINEST)]
    gelu: Wave | None
    hidden_spread: CheckedSum
    """Check of the sum of SPREAD over the hidden values of a token; of their squares if GELU is quadratic."""
    hidden_bits: Annotated[int, Meta(ge=0, le=14)]
    """Fractional bits of hidden values if GELU is quadratic."""
    gelu_cut: Annotated[int, Meta(ge=0, le=GELU_CUT)]
    first_norm: Norm
    second_norm: Norm

    def __post_init__(self) -> None:
        if self.divisions and (len(self.divisions) == 1 or not self.exponential_cut):
            raise ValueError(
                f"a softmax that squares has two divisions or more and cuts its shares, this one has "
                f"{len(self.divisions)} and cuts {self.exponential_cut} bits"
            )

    @property
    def form(self) -> BlockForm:
        return BlockForm(squarings=squarings_of(self.divisions), hidden_bits=self.hidden_opened)

    @property
    def exponential_ring(self) -> int:
        return SHARES + self.divisions[0].cut if self.divisions else STREAM + self.exponential_cut

    @property
    def activated(self) -> float:
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
    vector_entries: tuple[float, float],
    weights: TypicalWeights,
) -> Scales:
    """Fit the scales of a block.

    stream: the scale of the residual stream, which all blocks share. norms: the largest norm of a token before each
    LayerNorm. vector_entries: the largest magnitudes of an entry of a query and of a key. BoundError for values that
    are too large, or without a bound."""
    mixed = _input_scale(weights.proj * stream, _MIXED)
    activated = round(math.log2(_input_scale(weights.fc2 * stream, _ACTIVATED)))
    size = shape.width // shape.heads
    scores = fitted_scores(functions, bounds, vector_entries, tokens=shape.tokens, size=size)
    exponential = scores.exponential
    if scores.squarings:
        divisions, sums = fitted_divisions(exponential, scores.largest, scores.squarings, shape.tokens)
        plain, most = LAST_BITS, sums.high
    else:
        divisions, plain = (), exponential.bits
        sums = Interval(SPARE * shape.tokens, bounds.total)
        most = shape.tokens * scores.largest
    bits, value = _mixing(sums, most, ceiling.value, plain)
    totals = fitted_table(
        "sums of exponentials",
        Inverse(
            function="inverse",
            unit=1.0,
            offset=0.0,
            scale=mixed * 2.0 ** (WORD_BITS - WEIGHTED - bits) / value,
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
    hidden = fitted_hidden(functions, bounds, ceiling.hidden, shape.hidden, activated)
    vectors = min(weights.query * scores.query.scale, weights.key * scores.key.scale / shape.tokens)
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
        divisions=divisions,
        exponential_cut=plain - bits,
        totals=totals,
        mixed=mixed,
        hidden=hidden.scale,
        hidden_opened=hidden.opened,
        gelu=hidden.gelu,
        hidden_spread=hidden.spread,
        hidden_bits=hidden.bits,
        gelu_cut=hidden.cut,
        first_norm=fitted_norm(
            bounds.first_variance,
            width=shape.width,
            epsilon=functions.epsilons[0],
            steps=functions.inverse_steps,
            stream=stream,
            norm=norms[0],
            normalised=_input_scale(vectors * 2.0 ** (WORD_BITS - VECTORS), _ATTENTION_INPUT),
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


@dataclass(frozen=True, kw_only=True)
class TypicalWeights:
    """Root mean squares of a typical output's weights, for layers whose input scales adapt to them."""

    query: float
    key: float
    """Both balanced."""
    proj: float
    fc2: float


def _input_scale(weight: float, powers: tuple[int, int]) -> float:
    """The finest input scale at which a weight is not too coarse."""
    least, most = powers
    return 2.0 ** min(max(math.floor(math.log2(max(weight, 1e-300) / _WEIGHT)), least), most)


def _mixing(sums: Interval, most: float, value: float, plain: int) -> tuple[int, float]:
    """Fractional bits of exponentials, which have `plain` before truncation, and the scale of values up to `value`,
    such that sums of their products fit their ring."""
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
    """Fit a LayerNorm over tokens whose multiplied norm is at most `norm`; normalised: the scale of its truncated
    result."""
    variance = bounds.interval
    # All possible values must fit, and the least inverse root must have _ROOT_BITS.
    root_bits = min(math.log2(normalised) / 2, _ROOT_BITS)
    finest = min(2.0 ** (CENTRED - 2) * SPARE / norm, normalised * 2.0 ** (cut - root_bits) / math.sqrt(variance.high))
    dropped = min(max(math.ceil(math.log2(stream / finest)), 1), STREAM - CENTRED)
    centred = stream / 2.0**dropped
    table = fitted_table(
        "variances",
        Inverse(
            function="inverse root",
            unit=1.0,
            offset=epsilon,
            scale=normalised * 2.0**cut / centred,
            steps=steps,
            divisor=1.0 if steps is None else (variance.high + epsilon) / 2.25,
        ),
        bits=SQUARES,
        unit=width * centred**2,
        most=norm**2 / width,
        low=variance.low,
        high=variance.high,
    )
    return Norm(variance=table, dropped=dropped, lift=bounds.lift, cut=cut, normalised=normalised)


def checked_norm(norm: Norm, width: int, stream: float) -> float:
    """Largest norm of a token whose variance was found in range."""
    variance = largest(norm.variance, bits=SQUARES, unit=width * (stream / 2.0**norm.dropped) ** 2)
    return math.sqrt(width * variance)


def stream_scale(norm: float) -> float:
    """The finest power of two for a residual stream whose tokens have at most this norm. Layers that add to it check
    themselves whether their weights are too coarse for it."""
    scale = min(power_of_two(2.0 ** (STREAM - 2) / norm), LARGEST_STREAM_SCALE)
    if scale < LEAST_STREAM_SCALE:
        raise BoundError(
            f"a token of the residual stream can reach {norm:.6g}, and {2.0 ** (STREAM - 2) / LEAST_STREAM_SCALE:.6g} "
            "is the most that its ring serves; train with smaller weights"
        )
    return scale


def mean_factor(patches: int) -> int:
    """Factor that brings the sum of the POOLED highest bits of so many tokens to their mean, at about the scale of the
    stream."""
    return (1 << (STREAM - POOLED)) // patches


def mean_scale(patches: int) -> float:
    """The scale of that mean, relative to the stream's: LayerNorm ignores a scale, except in its epsilon."""
    return mean_factor(patches) * patches / 2.0 ** (STREAM - POOLED)


def power_of_two(room: float) -> float:
    return 2.0 ** math.floor(math.log2(room * SPARE))


LARGEST_LIFT: Final = 1 << 8
_TOGETHER: Final = 1 << 14
_LEAST_NORM: Final = 2.0**-20
_ROUNDING: Final = 2.0**-30


def functions_of(block: Block) -> Functions:
    return Functions(
        scale=block.attn.scale,
        degree=block.attn.degree,
        inverse_steps=block.attn.steps,
        quadratic=block.mlp.quadratic,
        activation=block.mlp.activation,
        epsilons=(block.norm1.eps, block.norm2.eps),
    )


def measured(
    exact: FriendlyTransformer, images: torch.Tensor, margin: float
) -> tuple[list[tuple[Bounds, torch.Tensor]], Interval]:
    """Bounds of every block of a model in float64, and the variances of the last LayerNorm's input.

    With each block goes its balance, float64 [H] and secret: queries are multiplied by it, and keys divided."""
    found = []
    with torch.no_grad():
        parts = torch.split(images, max(1, _TOGETHER // exact.size[0]))
        streams = [exact.embed(exact.patches(part.double())) for part in parts]
        for block in exact.blocks:
            assert isinstance(block, Block)
            found.append(_joined(block, [_MeasuredBlock.of(block, x, margin) for x in streams], margin))
            streams = [block(x) for x in streams]
    last = _widened([_variance(exact.pooled(x)) for x in streams], margin**2)
    return found, last


@dataclass(frozen=True, repr=False)
class _MeasuredBlock:
    variances: tuple[Interval, Interval, Interval, Interval]
    """Before both LayerNorms, of the class token and of the others."""
    norms: torch.Tensor
    """float64 [2, H]: of queries and of keys."""
    total: float
    hidden: float

    @classmethod
    def of(cls, block: Block, x: torch.Tensor, margin: float) -> _MeasuredBlock:
        functions = functions_of(block)
        query, key, _ = _vectors(block, x)
        key = key - key.mean(2, keepdim=True)
        scores = (query.matmul(key.transpose(2, 3)) * functions.scale).numpy()
        total = functions.exponential(scores).sum(-1).max().item()
        middle = block.attended(x)
        hidden = block.mlp.fc1(block.norm2(middle))
        first, others, second_first, second_others = (
            _variance(part) for y in (x, middle) for part in (y[:, :1], y[:, 1:])
        )
        return cls(
            (first, others, second_first, second_others),
            torch.stack([vectors.norm(dim=-1).amax((0, 2)) for vectors in (query, key)]),
            total,
            torch.linalg.vector_norm(hidden, 2 if functions.quadratic else POWER, dim=-1).max().item() * margin,
        )


def before_norm(exact: FriendlyTransformer, images: torch.Tensor, margin: float) -> VarianceBounds:
    """Variances of the input of the LayerNorm before the blocks."""
    assert exact.norm_pre is not None
    with torch.no_grad():
        parts = torch.split(images, max(1, _TOGETHER // exact.size[0]))
        streams = [exact.project(exact.patches(part.double())) for part in parts]
    first, others = [_variance(x[:, :1]) for x in streams], [_variance(x[:, 1:]) for x in streams]
    return _lifted(exact.norm_pre, _widened(first, margin**2), _widened(others, margin**2))


def _joined(block: Block, seen: Sequence[_MeasuredBlock], margin: float) -> tuple[Bounds, torch.Tensor]:
    variances = [_widened([each.variances[place] for each in seen], margin**2) for place in range(4)]
    # The margin applies to the product of both norms.
    norms = torch.stack([each.norms for each in seen]).amax(0).clamp(min=_LEAST_NORM) * math.sqrt(margin)
    bounds = Bounds(
        first_variance=_lifted(block.norm1, *variances[:2]),
        second_variance=_lifted(block.norm2, *variances[2:]),
        vectors=coarse(norms.prod(0).sqrt().max().item(), 8),  # Scores follow from its square.
        total=coarse(max(each.total for each in seen) * margin**2),
        hidden=coarse(max(each.hidden for each in seen)),
    )
    return bounds, (norms[1] / norms[0]).sqrt()


def _vectors(block: Block, x: torch.Tensor) -> torch.Tensor:
    """Queries, keys and values: [3, B, H, T, D/H]."""
    joint: torch.Tensor = block.attn.qkv(block.norm1(x))
    return joint.reshape(*x.shape[:2], 3, block.attn.heads, -1).permute(2, 0, 3, 1, 4)


def _lifted(norm: LayerNorm, first: Interval, others: Interval) -> VarianceBounds:
    # Scaling its argument changes a polynomial.
    exact = norm.steps is None
    apart = (others.low * others.high / (first.low * first.high)) ** 0.25 if exact else 1.0
    lift, other_lift = (min(max(round(each), 1), LARGEST_LIFT) for each in (apart, 1 / apart))
    lifted, others = (
        Interval(each.low * by**2, each.high * by**2) for each, by in ((first, lift), (others, other_lift))
    )
    return VarianceBounds(lifted.joined(others), (lift, other_lift))


def _variance(x: torch.Tensor) -> Interval:
    return _interval((x - x.mean(-1, keepdim=True)).square().mean(-1))


def _interval(values: torch.Tensor) -> Interval:
    return Interval(values.min().item(), values.max().item())


def _widened(intervals: Sequence[Interval], margin: float) -> Interval:
    low, high = min(each.low for each in intervals), max(each.high for each in intervals)
    return Interval(1 / coarse(margin / low) if low else 0.0, coarse(high * margin))


def coarse(magnitude: float, steps: int = 4) -> float:
    """Round up to the next power of 2^(1 / steps). Scales and bounds are derived only from such rounded values, since
    the data owner receives them: exact ones would identify the checkpoint, block by block."""
    if not 0 < magnitude < math.inf:
        return magnitude  # The fitting function reports the error.
    return math.exp2(math.ceil(steps * math.log2(magnitude) - _ROUNDING) / steps)
