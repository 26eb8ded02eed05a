"""What is looked up of a shared sum: its place in a ring that it fills, its bounds, and an inverse of it, as public
numbers. (The protocol's transition tables are in tacit.protocol.inference.tables.)

Tables are computed by both owners, in float64 with operations that are rounded by themselves (IEEE 754), so that they
are equal to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Annotated, Final, Literal

import msgspec
import torch
from msgspec import Meta

from tacit.models.friendly.polynomials import goldschmidt_inverse, goldschmidt_inverse_root
from tacit.parties.inference.lookup import Range
from tacit.parties.inference.material import Lookup
from tacit.protocol.inference.schedule import PLACE, THRESHOLD_LEVELS

Positive = Annotated[float, Meta(ge=2.0**-100, le=2.0**100)]
Steps = Annotated[int, Meta(ge=1, le=16)]
LARGEST_FACTOR: Final = 1 << 62
Factor = Annotated[int, Meta(ge=1, le=LARGEST_FACTOR)]
Units = Annotated[int, Meta(ge=0, le=1 << PLACE)]

FILLED: Final = 0.9
"""Of a ring that a sum may fill."""
_SLOPE_BITS: Final = 4
LEAST_INTERVALS: Final = 16
"""Below a value that is in range, if not said otherwise: there the relative error of 1/x is about (1 / 16)^2 at most,
that of 1/sqrt(x) 3/8 of it, and it falls with the square of the value: to a fifth at the least that typical images
reach."""
_FEWEST_INTERVALS: Final = 4
"""The same where there are as many as there can be. Where the error is that large an inverse is too small, so that
bounds that follow from it hold."""
MOST_INDEX_BITS: Final = 14
_TABLE_LEVELS: Final = 20
"""Bits that are compared of a sum that is looked up."""


class BoundError(ValueError):
    """The values of a model are too large for fixed-point numbers, or have no bound; the message says which."""


class Inverse(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An inverse, or inverse root, of a positive variable, itself or by the polynomial that stands for it."""

    function: Literal["inverse", "inverse root"]
    unit: Positive
    """What one unit of a place is worth."""
    offset: Annotated[float, Meta(ge=0.0, le=2.0**100)]
    """What is added to the variable."""
    scale: Positive
    """What a value of 1 is in the result."""
    steps: Steps | None = None
    """Of Goldschmidt's iteration; None: no polynomial."""
    divisor: Positive = 1.0
    """What the variable is divided by first, as in the clear, to be where the iteration converges."""

    def __call__(self, variable: torch.Tensor) -> torch.Tensor:
        """float64 of float64, without the scale."""
        points = (variable + self.offset) / self.divisor
        if self.function == "inverse":
            value = 1 / points if self.steps is None else goldschmidt_inverse(points, self.steps)
            return value / self.divisor
        value = 1 / points.sqrt() if self.steps is None else goldschmidt_inverse_root(points, self.steps)
        found: torch.Tensor = value / math.sqrt(self.divisor)
        return found


class CheckedSum(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of a sum, multiplied so that it fills its ring, of which the highest PLACE bits are looked at."""

    factor: Factor
    low: Units
    high: Units
    """In units of the highest `levels` bits."""
    levels: Annotated[int, Meta(ge=1, le=PLACE)] = THRESHOLD_LEVELS

    @property
    def limits(self) -> Range:
        return Range(self.low, self.high)


class Table(CheckedSum, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The same with an inverse of what is in range. ValueError for intervals that do not fit their domain."""

    domain: Annotated[int, Meta(ge=1, le=PLACE)]
    index: Annotated[int, Meta(ge=1, le=14)]
    slope: Annotated[int, Meta(ge=0, le=16)]
    inverse: Inverse

    def __post_init__(self) -> None:
        if self.index + self.slope > self.domain:
            raise ValueError(f"intervals of {self.index} + {self.slope} bits do not fit a domain of {self.domain}")

    def request(self, shape: tuple[int, ...]) -> Lookup:
        return Lookup(shape, self.domain, self.index, self.slope, self.levels)

    @property
    def words(self) -> tuple[torch.Tensor, torch.Tensor]:
        """int64 [2^index]: values at the lower ends of the intervals, and slopes for a unit of a place."""
        return _words(self.inverse, self.index, self.slope)


@lru_cache(maxsize=256)
def _words(inverse: Inverse, index: int, slope: int) -> tuple[torch.Tensor, torch.Tensor]:
    # The lowest interval is out of range, or the offset keeps it from infinity.
    return interpolated(
        lambda ends: inverse((ends * inverse.unit).clamp(min=inverse.unit)) * inverse.scale, index, slope
    )


def interpolated(
    function: Callable[[torch.Tensor], torch.Tensor], index: int, slope: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `Table.words`, of a function of the lower ends of 2^index intervals of 2^slope units, float64."""
    ends = torch.arange(-1, (1 << index) + 1, dtype=torch.float64) * (1 << slope)
    values = function(ends)
    # A place may be looked up from the upper end of its interval (lookup.py), so a slope is of both sides.
    slopes = (values[2:] - values[:-2]) / (2 << slope)
    return values[1:-1].clamp(max=2.0**61).round().long(), slopes.clamp(min=-(2.0**61)).round().long()


def fitted_sum(
    name: str, *, bits: int, unit: float, most: float, low: float, high: float, levels: int = THRESHOLD_LEVELS
) -> CheckedSum:
    """Of a sum in a ring of `bits` that is at most `most` whatever goes in, and in range from `low` to `high`; a sum of
    1 is `unit` whole numbers. BoundError where no factor lets the ring resolve it."""
    factor = min(math.floor(2**bits * FILLED / (most * unit)), LARGEST_FACTOR)
    worth = factor * unit / 2 ** (bits - levels)
    if factor < 1 or high * worth < 4:
        raise BoundError(
            f"{name}: {most:.4g} is possible and {high:.4g} is in range, which is too far apart to be told on shares"
        )
    # What is in range may be more than is possible.
    most_units = min(math.ceil(high * worth) + 1, 1 << levels)
    return CheckedSum(factor=factor, low=max(math.floor(low * worth) - 1, 0), high=most_units, levels=levels)


def fitted_table(
    name: str,
    inverse: Inverse,
    *,
    bits: int,
    unit: float,
    most: float,
    low: float,
    high: float,
    intervals: int = LEAST_INTERVALS,
    levels: int = _TABLE_LEVELS,
) -> Table:
    """The same with an inverse, whose unit is found; intervals: how many are below `low`.

    BoundError where what is in range differs by too much."""
    place = fitted_sum(name, bits=bits, unit=unit, most=most, low=low, high=high, levels=levels)
    domain, index = _intervals(place, intervals)
    # A polynomial that stands for an inverse stays small near zero, as it does in the clear.
    if inverse.steps is None and _too_few(place, domain, index):
        # What is in range ends anywhere in the upper half of a domain; with a smaller factor it ends with the lower.
        most *= place.high / (2 ** (domain - 1 - PLACE + levels) - 2)
        place = fitted_sum(name, bits=bits, unit=unit, most=most, low=low, high=high, levels=levels)
        domain, index = _intervals(place, intervals)
        if _too_few(place, domain, index):
            raise BoundError(
                f"{name} from {low:.4g} to {high:.4g} are in range, which differ too much to be told by a table"
            )
    slope = min(_SLOPE_BITS, domain - index)
    worth = 2 ** (domain - index - slope) * 2 ** (bits - PLACE) / (place.factor * unit)
    return Table(
        factor=place.factor,
        low=place.low,
        high=place.high,
        levels=place.levels,
        domain=domain,
        index=index,
        slope=slope,
        inverse=msgspec.structs.replace(inverse, unit=worth),
    )


def _intervals(place: CheckedSum, below: int) -> tuple[int, int]:
    """Bits of a domain that holds what is in range, and of the number of its intervals. below: how many are wanted
    below the least."""
    bits = max((place.high - 1).bit_length(), 1)
    domain = bits + PLACE - place.levels
    wanted = math.ceil(math.log2(below * 2**bits / max(place.low, 0.25)))
    return domain, min(max(wanted, 4), MOST_INDEX_BITS, domain)


def _too_few(place: CheckedSum, domain: int, index: int) -> bool:
    """Whether the least in range has too few intervals below it."""
    return place.low << (PLACE - place.levels) < _FEWEST_INTERVALS << (domain - index)


def largest(place: CheckedSum, *, bits: int, unit: float) -> float:
    """What a sum that was found in range is at most."""
    return place.high * 2.0 ** (bits - place.levels) / (place.factor * unit)
