"""Fixed-point scales of a block: public, derived from its shape and its bounds alone, so that all parties derive alike.

A number v stands in a ring of K bits as the whole number nearest to v times its scale, and has to stay below 2^(K - 2).
Weights take whatever scale brings the next number to its own. The rings:

| number               | ring of its product | cut to        | bytes of an element that is opened or sent |
|----------------------|---------------------|---------------|--------------------------------------------|
| normalised input     | 64                  | 24            | 3; then as input: 8 (qkv), 5 (fc1)         |
| queries and keys     | 64                  | 48            | 6                                          |
| scores               | 48                  | 16            | 2                                          |
| exponentials         | 64                  | 16            | 2; then 6 as a factor modulo 2^46          |
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
from typing import Final

from tacit.models.friendly.blocks import norm_bound
from tacit.models.friendly.gauge import Interval
from tacit.parties.inference.bounds import Bounds
from tacit.parties.inference.material import SLOPE_BITS, Table
from tacit.parties.inference.ring import WORD_BITS

COARSE: Final = 16
"""Bits of scores, exponentials and hidden values once they are narrow,"""
FINE: Final = 24
"""and of what is normalised."""
FACTOR: Final = 48
"""Of queries, keys and the residual stream."""
MIXING: Final = 46
"""Of exponentials and values as factors: two digits each, for up to 1,024 tokens."""
HIDDEN: Final = 40
NORMALISED_SCALE: Final = 1 << 14
TOTALS_INDEX_BITS: Final = 9
NORM_INDEX_BITS: Final = 11
"""Tables are linear in 2^INDEX_BITS intervals; there are fewer variances than sums, and they differ by more."""
_LARGEST_SCALE_BITS: Final = 30
_SPARE: Final = 0.99
"""Of the room up to a power of two; rounding needs a little."""


class BoundError(ValueError):
    """The values of a block are too large for its fixed-point numbers; the message says which."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes of a block and its input."""

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
class Scales:
    """Made by `fitted`."""

    stream: float
    query: float
    key: float
    value: float
    """Of queries, keys and values, cut to FACTOR bits."""
    exponential: tuple[int, ...]
    """Coefficients of the exponential, for an argument with the scale 2^argument_bits."""
    mixing_factor: int
    """What exponentials are multiplied by, so that their products with the values fill their ring."""
    totals_factor: int
    totals_table: Table
    mixed: float
    hidden_bits: int
    gelu_cut: int
    first_table: Table
    first_factor: int
    second_table: Table
    second_factor: int

    @property
    def gelu(self) -> float:
        """Of the GELU of the hidden values, once cut."""
        return 2.0 ** (2 * self.hidden_bits + 3 - self.gelu_cut)


def fitted(
    shape: Shape, bounds: Bounds, *, scale: float, degree: int, steps: int, eps: float, stream: float | None = None
) -> Scales:
    """The scales of a block; `scale`, `degree`, `steps`, `eps` are those of its layers, `stream` the scale of the
    residual stream where another block has fixed it. BoundError if values are too large."""
    if stream is None:
        stream = stream_scale(shape, bounds)
    argument_bits = _argument_bits(bounds.score, degree)
    leading = math.factorial(degree) << (degree * argument_bits)
    boost = math.floor(2**62 * _SPARE / (leading * math.exp(bounds.score)))
    exponential = tuple(
        boost * math.factorial(degree) // math.factorial(i) << (argument_bits * (degree - i)) for i in range(degree + 1)
    )
    weight = exponential[0] / 2 ** (WORD_BITS - COARSE)
    # Centring multiplies scores by the number of tokens.
    products = scale * 2.0 ** (argument_bits + FACTOR - COARSE) / shape.tokens
    key = 2.0 ** round(math.log2(products) / 2)
    value = 2.0**16
    room = 2 ** (MIXING - 2) * _SPARE / (bounds.totals * weight * bounds.value * value)
    if room < 1:
        raise BoundError(
            f"values up to {bounds.value:.6g} and sums up to {bounds.totals:.6g} have products too large for "
            f"{MIXING} bits"
        )
    mixing_factor = math.floor(room)
    weighted = mixing_factor * weight * value / 2 ** (MIXING - FINE)
    mixed = min(_power_of_two(2 ** (FINE - 2) / bounds.value), 2.0**13)
    totals_factor = math.floor(2**WORD_BITS * _SPARE / (bounds.totals * weight))
    totals_table = Table(
        shape=(shape.images, shape.heads, shape.tokens),
        index_bits=TOTALS_INDEX_BITS,
        function="inverse",
        steps=steps,
        unit=2 ** (WORD_BITS - SLOPE_BITS - TOTALS_INDEX_BITS) / (totals_factor * weight),
        offset=0.0,
        divisor=bounds.totals,
        scale=mixed * 2 ** (WORD_BITS - FINE) / weighted,
    )

    def norm(high: float) -> tuple[int, Table]:
        centred = shape.width * stream / 2 ** (FACTOR - FINE)
        square = shape.width * centred**2
        factor = math.floor(2**WORD_BITS * _SPARE / (high * square))
        table = Table(
            shape=(shape.images, shape.tokens),
            index_bits=NORM_INDEX_BITS,
            function="inverse root",
            steps=steps,
            unit=2 ** (WORD_BITS - SLOPE_BITS - NORM_INDEX_BITS) / (factor * square),
            offset=eps,
            divisor=norm_bound(Interval(high, high)) ** 2,
            scale=NORMALISED_SCALE * 2 ** (WORD_BITS - FINE) / centred,
        )
        return factor, table

    first_factor, first_table = norm(bounds.first_variance)
    second_factor, second_table = norm(bounds.second_variance)
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
        totals_factor=totals_factor,
        totals_table=totals_table,
        mixed=mixed,
        hidden_bits=hidden_bits,
        gelu_cut=max(2 * hidden_bits + 3 - 12, 1),
        first_table=first_table,
        first_factor=first_factor,
        second_table=second_table,
        second_factor=second_factor,
    )


def stream_scale(shape: Shape, bounds: Bounds) -> float:
    """The finest power of two for the residual stream."""
    room = min(
        2 ** (FACTOR - 2) / bounds.stream,
        2 ** (FACTOR - 2) / (bounds.centred * shape.width),
        2.0**_LARGEST_SCALE_BITS,
    )
    scale = _power_of_two(room)
    if scale < 2.0**12:
        raise BoundError(
            f"the residual stream reaches {bounds.stream:.6g}, {bounds.centred:.6g} from its mean: that leaves less "
            "than 12 fractional bits"
        )
    return scale


def _argument_bits(score: float, degree: int) -> int:
    """Fractional bits of the exponential's argument, so that its value fits 64 bits."""
    for bits in range(8, 4, -1):
        value = math.factorial(degree) * 2.0 ** (degree * bits) * math.exp(score)
        if value < 2**62 * _SPARE and score * 2**bits < 2 ** (COARSE - 2) * _SPARE:
            return bits
    raise BoundError(
        f"scores up to {score:.6g} are too large for an exponential of degree {degree} with 5 fractional bits; distil "
        "with a smaller largest_score"
    )


def _power_of_two(room: float) -> float:
    return 2.0 ** math.floor(math.log2(room * _SPARE))
