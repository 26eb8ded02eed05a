"""Lookup tables on shares: functions and range checks of a value that is opened once under a mask; and LayerNorm.

With c = x + r modulo 2^PLACE opened, x is (c mod 2^m) - (r mod 2^m) away from the lower end of the interval number (c
>> m) - (r >> m): in it or, if that is negative, in the previous one. The dealer's DPF keys are for the interval of r,
so the inner product with any public table, rotated by c, is a share of the function's value, linear around each lower
end (one-time truth tables, Ishai et al., TCC 2013, with the keys of Boyle, Gilboa and Ishai). Bounds are compared with
the highest bits alone, in which x is floor(x / 2^m) or one more, by one DCF key at two positions (Boyle et al.,
Eurocrypt 2021, section 4): a value beyond a bound is always detected.

Both owners compute the tables themselves, in float64 with individually rounded operations (IEEE 754), so that they are
equal to the last bit. LayerNorm takes three rounds: squares and products cost no more than the opening of the inverse
root, since the stream, whose mean is zero, is opened under its mask.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Annotated, Any, Final, Literal

import msgspec
import numpy as np
import torch
from msgspec import Meta

from tacit.models.friendly.polynomials import Interval, goldschmidt_inverse, goldschmidt_inverse_root
from tacit.parties.correlated.trees import PointKeys, ThresholdKeys, Words, below, point_words
from tacit.parties.inference.material import AnyBlockRequest, Lookup, Narrow
from tacit.parties.inference.operations import MODEL, NarrowValue, Party, Program
from tacit.parties.inference.ring import WORD_BITS, shifted
from tacit.protocol.inference.schedule import CENTRED, PLACE, STREAM, THRESHOLD_LEVELS

Integers = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Range:
    """Permitted values from `low` up to, and without, `high`, in units of the compared bits."""

    low: int
    high: int


@dataclass(frozen=True, repr=False)
class Trees:
    """An owner's DPF and DCF keys of a request: its roots, and the corrections that both owners receive."""

    threshold_roots: Words
    thresholds: ThresholdKeys
    point_roots: Words
    points: PointKeys | None


def trees_of(request: Lookup, words: Sequence[torch.Tensor]) -> Trees:
    """Keys from an owner's words, without the mask."""
    plain = [each.cpu().numpy().view(np.uint64) for each in words]
    levels, index, roots = request.levels, request.index, 1 + (request.index > 0)
    seeds, controls, values = plain[roots : roots + 3]
    thresholds = ThresholdKeys(
        seeds.reshape(-1, levels, 2), controls.reshape(-1, levels).astype(np.uint8), values.reshape(-1, levels + 1)
    )
    points = None
    if index:
        seeds, controls, values = plain[-3:]
        points = PointKeys(
            seeds.reshape(-1, index, 2), controls.reshape(-1, index).astype(np.uint8), values.reshape(-1, 2)
        )
    return Trees(plain[0].reshape(-1, 2), thresholds, plain[roots - 1].reshape(-1, 2), points)


class LookedUp:
    """A lookup for one use: prepared ahead of the value, `masked`, then `settle`d."""

    def __init__(self, party: Party, request: Lookup) -> None:
        self._rank, self._request, self._device = party.rank, request, party.device
        self._mask, *words = party.take(request)
        self._trees = trees_of(request, words)
        points = self._trees.points
        self._points = (
            None if points is None else point_words(party.rank, self._trees.point_roots, points).view(np.int64)
        )
        self._place = self._mask

    @property
    def levels(self) -> int:
        return self._request.levels

    def masked(self, share: torch.Tensor) -> tuple[torch.Tensor, int]:
        return share + self._mask, PLACE

    def settle(self, opened: torch.Tensor, limits: Range) -> torch.Tensor:
        """Process the opened sum; returns the share modulo 2^PLACE of the number of values out of range."""
        self.place(opened)
        return self.outside(limits).sum()

    def place(self, opened: torch.Tensor) -> None:
        self._place = opened & ((1 << PLACE) - 1)

    def outside(self, limits: Range) -> torch.Tensor:
        """The shares modulo 2^PLACE of 1 for each value out of range, of 0 for each other."""
        return outside([(self, limits)])[0]

    def _compared(self, limits: Range) -> tuple[torch.Tensor, torch.Tensor]:
        """Positions [n, 2] at which each threshold is evaluated, and the excess of 1 in the results [n]."""
        levels = self.levels
        units = (self._place >> (PLACE - levels)).reshape(-1, 1).cpu()
        # Strictly above the unit of the lower bound, since a value may seem to be one higher than it is.
        bounds = torch.tensor([limits.low + 1 if limits.low else 0, limits.high])
        inside = (units < bounds).long()
        return (units - bounds) & ((1 << levels) - 1), inside[:, 1] - inside[:, 0]

    def stepped(self, inverse: SteppedInverse) -> tuple[torch.Tensor, torch.Tensor]:
        """The share modulo 2^64 of a stepped inverse, and that modulo 2^PLACE of the number of values out of range."""
        levels, (ends, values) = self.levels, inverse.steps
        units = (self._place >> (PLACE - levels)).reshape(-1, 1).cpu()
        places: Words = ((units - ends) & ((1 << levels) - 1)).numpy().view(np.uint64)
        trees = self._trees
        found = torch.from_numpy(below(self._rank, trees.threshold_roots, trees.thresholds, places).view(np.int64))
        if self._rank == MODEL:
            found += units < ends
        share = (found.diff(dim=-1) * values).sum(-1)
        outside = found[:, 0] - found[:, -1] + (self._rank == MODEL)
        return share.reshape(self._place.shape).to(self._device), outside.sum().to(self._device)

    def value(self, values: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
        """The share modulo 2^64 of a function: int64 [2^index] values at the intervals' lower ends, and slopes."""
        assert self._points is not None
        interval, rest = (part.numpy() for part in self._request.place(self._place.reshape(-1).cpu()))
        level, slope = (_windows(table, interval) for table in (values, slopes))
        ones, places = self._points[..., 0], self._points[..., 1]
        share = _sums(ones, level) + rest * _sums(ones, slope) - _sums(places, slope)
        return torch.from_numpy(share).reshape(self._place.shape).to(self._device)


def outside(several: Sequence[tuple[LookedUp, Range]]) -> list[torch.Tensor]:
    """`LookedUp.outside` for several lookups of one party with equal compared bits: evaluating many trees together
    takes hardly longer than a few."""
    first = several[0][0]
    places, extra = zip(*(looked_up._compared(limits) for looked_up, limits in several), strict=True)
    trees = [looked_up._trees for looked_up, _ in several]
    keys = ThresholdKeys(
        *(
            np.concatenate([getattr(each.thresholds, name) for each in trees])
            for name in ("seeds", "controls", "values")
        )
    )
    words: Words = torch.cat(places).numpy().view(np.uint64)
    found = below(first._rank, np.concatenate([each.threshold_roots for each in trees]), keys, words)
    lower, upper = torch.from_numpy(found.view(np.int64)).unbind(1)
    share = lower - upper
    if first._rank == MODEL:
        share += 1 - torch.cat(extra)
    parts = torch.split(share, [len(each) for each in extra])
    return [
        part.reshape(looked_up._place.shape).to(looked_up._device)
        for part, (looked_up, _) in zip(parts, several, strict=True)
    ]


def _sums(words: Integers, table: Integers) -> Integers:
    """Inner products of rows modulo 2^64, without a copy of either."""
    found: Integers = np.einsum("ij,ij->i", words, table)
    return found


def _windows(table: torch.Tensor, intervals: Integers) -> Integers:
    """For each interval c the words of a table [size] at c - j modulo size, for j = 0 ... size - 1: copied as
    contiguous slices of the reversed table, repeated twice."""
    size, backwards = len(table), table.flip(0).cpu().numpy()
    parts = np.lib.stride_tricks.sliding_window_view(np.concatenate([backwards, backwards]), size)
    found: Integers = parts[size - 1 - intervals]
    return found


Positive = Annotated[float, Meta(ge=2.0**-100, le=2.0**100)]
Steps = Annotated[int, Meta(ge=1, le=16)]
LARGEST_FACTOR: Final = 1 << 62
Factor = Annotated[int, Meta(ge=1, le=LARGEST_FACTOR)]
Units = Annotated[int, Meta(ge=0, le=1 << PLACE)]

FILLED: Final = 0.9
_SLOPE_BITS: Final = 4
LEAST_INTERVALS: Final = 16
"""Default number of intervals below the least value in range: there the relative error of 1/x is at most about
(1 / 16)^2, that of 1/sqrt(x) 3/8 of it, and it falls with the square of the value: to a fifth at the least value of
typical images."""
_FEWEST_INTERVALS: Final = 4
"""The same for the largest domains. With so large an error an inverse is too small, so that bounds that follow from
it hold."""
MOST_INDEX_BITS: Final = 14
_TABLE_LEVELS: Final = 20
"""Compared bits of a sum that is looked up."""


class BoundError(ValueError):
    """The values of a model are too large for fixed-point numbers, or have no bound; the message names them."""


class Inverse(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Inverse, or inverse root, of a positive variable, exactly or by its polynomial."""

    function: Literal["inverse", "inverse root"]
    unit: Positive
    """Value of one unit of a position."""
    offset: Annotated[float, Meta(ge=0.0, le=2.0**100)]
    """Addend of the variable."""
    scale: Positive
    """Representation of 1 in the result."""
    steps: Steps | None = None
    """Steps of Goldschmidt's iteration; None: no polynomial."""
    divisor: Positive = 1.0
    """Divisor of the variable, as in the clear, to reach the iteration's region of convergence."""

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
    factor: Factor
    low: Units
    high: Units
    """In units of the highest `levels` bits."""
    levels: Annotated[int, Meta(ge=1, le=PLACE)] = THRESHOLD_LEVELS

    @property
    def limits(self) -> Range:
        return Range(self.low, self.high)


class SteppedInverse(CheckedSum, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The same with a piecewise constant inverse, whose steps grow by factors of sqrt(2)."""

    scale: Positive
    """Inverse of a unit in the result."""

    def request(self, shape: tuple[int, ...]) -> Lookup:
        return Lookup(shape, levels=self.levels, words=WORD_BITS)

    @property
    def steps(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Ends of the steps in units, int64 [n + 1], and the values between them, int64 [n]."""
        return _steps(self)


_ROOT: Final = 27_146
"""sqrt(2) - 1 in 2^16."""


@lru_cache(maxsize=256)
def _steps(inverse: SteppedInverse) -> tuple[torch.Tensor, torch.Tensor]:
    ends = [inverse.low + 1]
    while ends[-1] < inverse.high:
        ends.append(min(ends[-1] + max((ends[-1] * _ROOT) >> 16, 1), inverse.high))
    values = [min(round(inverse.scale / math.sqrt(low * high)), LARGEST_FACTOR) for low, high in pairwise(ends)]
    return torch.tensor(ends), torch.tensor(values, dtype=torch.int64)


class Table(CheckedSum, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The same with an inverse of values in range. ValueError for intervals that do not fit their domain."""

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
        """int64 [2^index]: values at the lower ends of the intervals, and slopes for a unit of a position."""
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
    """`Table.words` for a function of the lower ends of 2^index intervals of 2^slope units, float64."""
    ends = torch.arange(-1, (1 << index) + 1, dtype=torch.float64) * (1 << slope)
    values = function(ends)
    # A position may be evaluated from its interval's upper end, so a slope averages both sides.
    slopes = (values[2:] - values[:-2]) / (2 << slope)
    return values[1:-1].clamp(max=2.0**61).round().long(), slopes.clamp(min=-(2.0**61)).round().long()


def fitted_sum(
    name: str, *, bits: int, unit: float, most: float, low: float, high: float, levels: int = THRESHOLD_LEVELS
) -> CheckedSum:
    """Check of a sum in a ring of `bits` that is at most `most` for every input, and in range from `low` to `high`.
    unit: representation of 1. BoundError if no factor lets the ring resolve it."""
    factor = min(math.floor(2**bits * FILLED / (most * unit)), LARGEST_FACTOR)
    worth = factor * unit / 2 ** (bits - levels)
    if factor < 1 or high * worth < 4:
        raise BoundError(
            f"{name}: {most:.4g} is possible and {high:.4g} is in range, which is too far apart to be told on shares"
        )
    # The compared number is the unit of a sum, or one more. The permitted range may exceed the possible one.
    most_units = min(math.floor(high * worth) + 2, 1 << levels)
    return CheckedSum(factor=factor, low=max(math.floor(low * worth) - 1, 0), high=most_units, levels=levels)


_LEAST_UNITS: Final = 16
"""Least number of compared units in the least sum in range, for a stepped inverse."""


def fitted_steps(
    name: str, *, bits: int, unit: float, most: float, low: float, high: float, scale: float
) -> SteppedInverse:
    """`fitted_sum` with a stepped inverse; scale: the inverse of 1 in the result."""
    levels = min(math.ceil(math.log2(most / low / FILLED * _LEAST_UNITS)) + 1, PLACE)
    place = fitted_sum(name, bits=bits, unit=unit, most=most, low=low, high=high, levels=levels)
    if place.low < _LEAST_UNITS:
        raise BoundError(f"{name} from {low:.4g} to {high:.4g} are in range, which differ too much for {PLACE} bits")
    worth = place.factor * unit / 2.0 ** (bits - levels)
    return SteppedInverse(factor=place.factor, low=place.low, high=place.high, levels=levels, scale=scale * worth)


def step_ratios(inverse: SteppedInverse) -> Interval:
    """Interval of the product of a sum in range and its stepped inverse, where that of 1 is 1. The compared number is
    the sum's unit, or one more."""
    ends, values = (part.double() for part in inverse.steps)
    low, high = (ends[:-1] - 1) * (values - 0.5), ends[1:] * (values + 0.5)
    return Interval(low.min().item() / inverse.scale, high.max().item() / inverse.scale)


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
    """The same with an inverse, whose unit is derived; intervals: number of them below `low`.

    BoundError if the range of values is too wide."""
    place = fitted_sum(name, bits=bits, unit=unit, most=most, low=low, high=high, levels=levels)
    domain, index = _intervals(place, intervals)
    # A polynomial that approximates an inverse stays small near zero, as it does in the clear.
    if inverse.steps is None and _too_few(place, domain, index):
        # The range ends anywhere in the upper half of a domain; with a smaller factor it ends with the lower half.
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
    """Bits of a domain that holds the range, and of the number of its intervals. below: requested intervals below the
    least value."""
    bits = max((place.high - 1).bit_length(), 1)
    domain = bits + PLACE - place.levels
    wanted = math.ceil(math.log2(below * 2**bits / max(place.low, 0.25)))
    return domain, min(max(wanted, 4), MOST_INDEX_BITS, domain)


def _too_few(place: CheckedSum, domain: int, index: int) -> bool:
    return place.low << (PLACE - place.levels) < _FEWEST_INTERVALS << (domain - index)


def largest(place: CheckedSum, *, bits: int, unit: float) -> float:
    """Largest sum that passes the check."""
    return place.high * 2.0 ** (bits - place.levels) / (place.factor * unit)


Lift = Annotated[int, Meta(ge=1, le=1 << 12)]
SQUARES: Final = 56
"""Ring bits of sums of squares."""


class Norm(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    variance: Table
    """Inverse root of the sum of squares."""
    dropped: Annotated[int, Meta(ge=1, le=STREAM - CENTRED)]
    """Truncated bits of the stream, which leaves CENTRED bits for the possible values."""
    lift: tuple[Lift, Lift] = (1, 1)
    """Factors of the first token, the class token, and of all others, which make their variances alike."""
    cut: Annotated[int, Meta(ge=0, le=WORD_BITS - STREAM)]
    """Truncated bits of the result, which is then modulo 2^STREAM or wider; 0: modulo 2^WORD_BITS."""
    normalised: Positive
    """Scale of the truncated result."""

    @property
    def ring(self) -> int:
        return max(STREAM + self.cut, SQUARES) if self.cut else WORD_BITS


def layer_norm_requests(shape: tuple[int, int, int], norm: Norm) -> tuple[AnyBlockRequest, ...]:
    return (norm.variance.request(shape[:-1]), Narrow(shape, CENTRED, 2, (*shape[:-1], 1), norm.ring))


class LayerNormProgram:
    def __init__(self, party: Party, operation: str, shape: tuple[int, int, int], norm: Norm) -> None:
        self._party, self._operation, self._norm = party, operation, norm
        self._lookup = LookedUp(party, norm.variance.request(shape[:-1]))
        self._value = NarrowValue(party, shape, CENTRED, degree=2, factor=(*shape[:-1], 1), ring=norm.ring)

    def run(self, stream: torch.Tensor) -> Program[tuple[torch.Tensor, torch.Tensor]]:
        """Map [B, T, D] modulo 2^STREAM to the normalised values, and the share of the number of rows out of range."""
        party, operation, norm, value = self._party, self._operation, self._norm, self._value
        first, others = norm.lift
        lifted = torch.cat([stream[:, :1] * first, stream[:, 1:] * others], 1)
        value.settle(
            *(yield from party.open(operation, value.masked(shifted(lifted, CENTRED + norm.dropped, norm.dropped))))
        )
        squares = value.polynomial((0, 0, 1)).sum(-1) * norm.variance.factor
        place = shifted(squares, SQUARES, SQUARES - PLACE)
        (opened,) = yield from party.open(operation, self._lookup.masked(place))
        outside = self._lookup.settle(opened, norm.variance.limits)
        inverse = self._lookup.value(*norm.variance.words)[..., None]
        normalised = value.times(*(yield from party.open(operation, value.masked_factor(inverse))))
        return shifted(normalised, norm.ring, norm.cut) if norm.cut else normalised, outside
