"""Fixed-point scales of a block: public, derived from its shape and what its values reach, their bounds.

Bounds are found in the clear on typical data. Beyond its bound a value would come out as another number, and nobody
would see it: the margin is therefore wide, and each doubling costs one bit of precision.

A number v stands in a ring of K bits as the whole number nearest to v times its scale, and has to stay below 2^(K - 2).
Weights take whatever scale brings the next number to its own. The rings:

| number               | ring of its product | cut to        | bytes of an element that is opened or sent |
|----------------------|---------------------|---------------|--------------------------------------------|
| normalised input     | 64                  | 24            | 3; then as input: 8 (qkv), 5 (fc1)         |
| queries and keys     | 64                  | 48            | 6                                          |
| scores               | 48                  | 16            | 2                                          |
| exponentials         | 64                  | 24            | 3; then 6 as a factor modulo 2^46          |
| values               | 64                  | 48, of it 46  | 6                                          |
| weighted values      | 46                  | 24            | 3                                          |
| mixed values         | 64                  | 24            | 3; then as input of the projection: 6      |
| hidden values        | 40                  | 16            | 2                                          |
| their GELU           | 64                  | 48 or more    | 6                                          |
| residual stream      | 48                  | 24, centred   | 3                                          |
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec
import torch
from msgspec import Meta

from tacit.models.friendly.blocks import Block, norm_bound, products_bound, with_parameters
from tacit.models.friendly.gauge import Interval, whole
from tacit.parties.inference.material import LARGEST_DEGREE, Curve, Positive
from tacit.protocol.inference.schedule import (
    COARSE,
    FACTOR,
    FINE,
    MIXING,
    NORM_INDEX_BITS,
    SLOPE_BITS,
    TOTALS_INDEX_BITS,
    WORD_BITS,
)

NORMALISED_SCALE: Final = 1 << 14
"""Of what LayerNorm gives."""
LARGEST_FACTOR: Final = 1 << 62
_LARGEST_SCALE_BITS: Final = 30
_SPARE: Final = 0.99
"""Of the room up to a power of two; rounding needs a little."""


class BoundError(ValueError):
    """The values of a block are too large for its fixed-point numbers; the message says which."""


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


Factor = Annotated[int, Meta(ge=1, le=LARGEST_FACTOR)]


class Lookup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A sum, multiplied so that it fills its ring, and the table that it is looked up in."""

    factor: Factor
    curve: Curve


class Scales(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Made by `fitted`. Whatever stands within the limits is computed with safely, if not correctly."""

    stream: Positive
    query: Positive
    key: Positive
    value: Positive
    """Of queries, keys and values, cut to FACTOR bits."""
    exponential: Annotated[
        tuple[Annotated[int, Meta(ge=0, le=LARGEST_FACTOR)], ...], Meta(min_length=2, max_length=LARGEST_DEGREE + 1)
    ]
    """Coefficients of the exponential, for an argument with the scale 2^argument_bits."""
    mixing_factor: Factor
    """What exponentials are multiplied by, so that their products with the values fill their ring."""
    totals: Lookup
    mixed: Positive
    hidden_bits: Annotated[int, Meta(ge=4, le=12)]
    gelu_cut: Annotated[int, Meta(ge=1, le=WORD_BITS - FACTOR)]
    first_norm: Lookup
    second_norm: Lookup

    @property
    def gelu(self) -> float:
        """Of the GELU of the hidden values, once cut."""
        return 2.0 ** (2 * self.hidden_bits + 3 - self.gelu_cut)


def fitted(
    shape: Shape, bounds: Bounds, *, scale: float, degree: int, steps: int, epsilons: tuple[float, float], stream: float
) -> Scales:
    """The scales of a block; `scale`, `degree`, `steps` are those of its layers, `epsilons` of its two LayerNorms,
    `stream` the scale of the residual stream, which all blocks share. BoundError if values are too large."""
    argument_bits = _argument_bits(bounds.score, degree)
    leading = math.factorial(degree) << (degree * argument_bits)
    boost = math.floor(2**62 * _SPARE / (leading * math.exp(bounds.score)))
    exponential = tuple(
        boost * math.factorial(degree) // math.factorial(i) << (argument_bits * (degree - i)) for i in range(degree + 1)
    )
    weight = exponential[0] / 2 ** (WORD_BITS - FINE)
    # Centring multiplies scores by the number of tokens.
    products = scale * 2.0 ** (argument_bits + FACTOR - COARSE) / shape.tokens
    key = 2.0 ** round(math.log2(products) / 2)
    room = 2 ** (MIXING - 2) / (bounds.totals * weight * bounds.value)
    value = min(power_of_two(room), 2.0**16)
    if value < 2.0**8:
        raise BoundError(
            f"values up to {bounds.value:.6g} and sums up to {bounds.totals:.6g} have products too large for "
            f"{MIXING} bits"
        )
    mixing_factor = math.floor(room * _SPARE / value)
    weighted = mixing_factor * weight * value / 2 ** (MIXING - FINE)
    mixed = min(power_of_two(2 ** (FINE - 2) / bounds.value), 2.0**13)
    totals = _lookup(
        weight,
        bounds.totals,
        TOTALS_INDEX_BITS,
        steps=steps,
        offset=0.0,
        divisor=bounds.totals,
        scale=mixed * 2 ** (WORD_BITS - FINE) / weighted,
    )
    hidden_bits = min(math.floor(math.log2(2 ** (COARSE - 2) * _SPARE / bounds.hidden)), 12)
    if hidden_bits < 4:
        raise BoundError(f"hidden values up to {bounds.hidden:.6g} leave {hidden_bits} fractional bits; 4 are needed")
    return Scales(
        stream=stream,
        query=products / key,
        key=key,
        value=value,
        exponential=exponential,
        mixing_factor=mixing_factor,
        totals=totals,
        mixed=mixed,
        hidden_bits=hidden_bits,
        gelu_cut=max(2 * hidden_bits + 3 - 12, 1),
        first_norm=fitted_norm(shape.width, stream, bounds.first_variance, steps=steps, eps=epsilons[0]),
        second_norm=fitted_norm(shape.width, stream, bounds.second_variance, steps=steps, eps=epsilons[1]),
    )


def fitted_norm(width: int, stream: float, variance: float, *, steps: int, eps: float) -> Lookup:
    """Of a LayerNorm over `width` values of the residual stream, whose variance is at most `variance`."""
    centred = width * stream / 2 ** (FACTOR - FINE)
    return _lookup(
        width * centred**2,
        variance,
        NORM_INDEX_BITS,
        steps=steps,
        offset=eps,
        divisor=norm_bound(Interval(variance, variance)) ** 2,
        scale=NORMALISED_SCALE * 2 ** (WORD_BITS - FINE) / centred,
    )


def _lookup(
    unit: float, high: float, index_bits: int, *, steps: int, offset: float, divisor: float, scale: float
) -> Lookup:
    """Of a sum up to `high`, where 1 is `unit` whole numbers."""
    factor = min(math.floor(2**WORD_BITS * _SPARE / (high * unit)), LARGEST_FACTOR)
    worth = 2 ** (WORD_BITS - SLOPE_BITS - index_bits) / (factor * unit)
    return Lookup(factor=factor, curve=Curve(steps=steps, unit=worth, offset=offset, divisor=divisor, scale=scale))


def stream_scale(shape: Shape, bounds: Bounds) -> float:
    """The finest power of two for the residual stream."""
    room = min(
        2 ** (FACTOR - 2) / bounds.stream,
        2 ** (FACTOR - 2) / (bounds.centred * shape.width),
        2.0**_LARGEST_SCALE_BITS,
    )
    scale = power_of_two(room)
    if scale < 2.0**12:
        raise BoundError(
            f"the residual stream reaches {bounds.stream:.6g}, {bounds.centred:.6g} from its mean: that leaves less "
            "than 12 fractional bits"
        )
    return scale


def _argument_bits(score: float, degree: int) -> int:
    """Fractional bits of the exponential's argument, so that its value fits 64 bits."""
    for bits in range(8, 4, -1):
        # The exponential of more than 64 is too large in any case, and of very much more no number at all.
        value = math.factorial(degree) * 2.0 ** (degree * bits) * math.exp(min(score, 64.0))
        if value < 2**62 * _SPARE and score * 2**bits < 2 ** (COARSE - 2) * _SPARE:
            return bits
    raise BoundError(
        f"scores up to {score:.6g} are too large for an exponential of degree {degree} with 5 fractional bits; distil "
        "with a smaller largest_score"
    )


def power_of_two(room: float) -> float:
    return 2.0 ** math.floor(math.log2(room * _SPARE))


def encoded(x: torch.Tensor, scale: float) -> torch.Tensor:
    """Floats as whole numbers, to the nearest."""
    return (x.double() * scale).round().long()
