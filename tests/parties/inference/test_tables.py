"""Places and tables of inverses: how far they are from the function, and that both owners have the same words."""

from __future__ import annotations

import math
from typing import Any, Literal

import msgspec
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tacit.models.friendly.polynomials import goldschmidt_inverse, goldschmidt_inverse_root
from tacit.parties.inference.tables import BoundError, CheckedSum, Inverse, Table, fitted_sum, fitted_table, largest
from tacit.protocol.inference.schedule import PLACE, THRESHOLD_LEVELS

Function = Literal["inverse", "inverse root"]


def inverse(function: Function, **changes: Any) -> Inverse:
    return Inverse(**{"function": function, "unit": 1.0, "offset": 0.0, "scale": 2.0**40} | changes)


def at(table: Table, units: torch.Tensor, *, borrowed: bool) -> torch.Tensor:
    """What owners compute at whole places, from the lower end of their interval or, borrowed, from its upper end."""
    values, slopes = table.words
    interval, rest = units >> table.slope, units & ((1 << table.slope) - 1)
    if borrowed:
        interval, rest = (interval + 1) & ((1 << table.index) - 1), rest - (1 << table.slope)
    return values[interval] + slopes[interval] * rest


@settings(max_examples=40, deadline=None)
@given(
    function=st.sampled_from(["inverse", "inverse root"]),
    high=st.floats(0.01, 1e4),
    ratio=st.floats(1.1, 60),
    headroom=st.floats(1.0, 3.0),
    offset=st.sampled_from([0.0, 1e-6, 1e-3]),
)
def test_inverses_are_within_their_bounds_over_the_whole_range(
    function: Function, high: float, ratio: float, headroom: float, offset: float
) -> None:
    """At every place that is in range, seen from either end of its interval.

    At t from an end, |t| <= h, the line that has the slope from h before to h behind is off by half
    the second derivative times t^2 and a sixth of the third times h^2 |t| at most, both taken 2 h lower. Of 1/x they
    are 2 / x^3 and 6 / x^4; of its root 3/4 x^(-5/2) and 15/8 x^(-7/2).
    """
    low, bits, unit = high / ratio, 64, 2.0**20
    table = fitted_table(
        "it", inverse(function, offset=offset), bits=bits, unit=unit, most=high * headroom, low=low, high=high
    )
    worth = 2.0 ** (table.domain - table.index - table.slope)
    first = math.ceil(table.low * 2.0 ** (PLACE - table.levels) / worth)
    last = min((table.high << (PLACE - table.levels)) // worth, (1 << (table.index + table.slope)) - 1)
    units = torch.arange(first, int(last) + 1)
    variable = units.double() * table.inverse.unit
    # The place is that of a sum of these units.
    assert table.inverse.unit == worth * 2.0 ** (bits - PLACE) / (table.factor * unit)
    width = (1 << table.slope) * table.inverse.unit
    lowest = (variable - 2 * width).clamp(min=table.inverse.unit) + offset
    x = variable + offset
    if function == "inverse":
        exact, bound = 1 / x, width**2 / lowest**3 + width**3 / lowest**4
    else:
        exact, bound = 1 / x.sqrt(), 3 / 8 * width**2 / lowest**2.5 + 15 / 48 * width**3 / lowest**3.5
    for borrowed in (False, True):
        # A value is rounded by half a unit, and a slope too, 2^slope times.
        rounding = (0.5 + (1 << table.slope) / 2) / table.inverse.scale
        error = (at(table, units, borrowed=borrowed).double() / table.inverse.scale - exact).abs()
        inside = (variable >= max(low, 4 * width)) & (units < (1 << (table.index + table.slope)) - (1 << table.slope))
        assert (error <= bound + rounding)[inside].all()
        if table.index < 11:
            share = 1.0 if function == "inverse" else 3 / 8
            # Where 16 intervals are below, and bounds are of whole units, three of them are less than a fifth.
            stated = share * (1 / 16) ** 2 / (1 - 3 / 16) ** 3
            assert (error / exact <= stated + rounding / exact)[inside].all()


@pytest.mark.parametrize("function", ["inverse", "inverse root"])
def test_polynomials_stand_for_the_inverses_of_a_student(function: Function) -> None:
    steps, divisor = 7, 3.0
    own = inverse(function, steps=steps, divisor=divisor)
    table = fitted_table("it", own, bits=64, unit=2.0**20, most=5.0, low=0.5, high=3.0)
    ends = torch.arange(1 << table.index) << table.slope
    inside = ends[ends.double() * table.inverse.unit >= 0.5][:-1]
    x = inside.double() * table.inverse.unit / divisor
    polynomial = goldschmidt_inverse if function == "inverse" else goldschmidt_inverse_root
    scale = own.scale / (divisor if function == "inverse" else math.sqrt(divisor))
    assert ((at(table, inside, borrowed=False) - polynomial(x, steps) * scale).abs() <= 1).all()


def test_whatever_is_within_the_limits_has_words_that_fit() -> None:
    for unit in (2.0**-100, 1.0, 2.0**100):
        for scale in (2.0**-100, 2.0**100):
            for function in ("inverse", "inverse root"):
                for steps in (None, 1, 16):
                    own = inverse(function, unit=unit, scale=scale, divisor=2.0**-100, steps=steps)
                    values, slopes = Table(factor=1, low=0, high=1, domain=32, index=12, slope=16, inverse=own).words
                    assert values.shape == slopes.shape == (1 << 12,)


@settings(max_examples=100, deadline=None)
@example(high=1.0, ratio=1.0, headroom=1.2, bits=40, power=6)
@given(
    high=st.floats(1e-3, 1e6), ratio=st.floats(1.0, 1e3), headroom=st.floats(0.1, 1e3),
    bits=st.sampled_from([40, 64]), power=st.integers(6, 12),
)  # fmt: skip
def test_a_place_lets_everything_in_range_through_and_stays_in_its_ring(
    high: float, ratio: float, headroom: float, bits: int, power: int
) -> None:
    """Also where more is in range than is possible, which a small model has."""
    unit, most, low = 2.0**power, high * headroom, min(high, high * headroom) / ratio
    try:
        place = fitted_sum("sums", bits=bits, unit=unit, most=most, low=low, high=high)
    except BoundError:
        return
    assert most * unit * place.factor <= 0.9 * 2.0**bits * (1 + 2**-50)
    worth = place.factor * unit / 2.0 ** (bits - THRESHOLD_LEVELS)
    # What is seen is the unit or one more, and the lower bound excludes its own.
    possible = min(high, most)
    assert place.low == 0 or place.low + 1 <= math.floor(low * worth)
    assert math.floor(possible * worth) + 1 < place.high or place.high == 1 << THRESHOLD_LEVELS
    assert place.low < place.high <= 1 << THRESHOLD_LEVELS
    assert largest(place, bits=bits, unit=unit) >= possible
    assert msgspec.convert(msgspec.to_builtins(place), CheckedSum) == place


@settings(max_examples=50, deadline=None)
@given(high=st.floats(1e-3, 1e6), ratio=st.floats(1.0, 100), headroom=st.floats(0.1, 100))
def test_a_fitted_table_is_one_that_the_other_owner_accepts(high: float, ratio: float, headroom: float) -> None:
    try:
        table = fitted_table(
            "sums",
            inverse("inverse"),
            bits=40,
            unit=64.0,
            most=high * headroom,
            low=min(high, high * headroom) / ratio,
            high=high,
        )
    except BoundError:
        return
    assert msgspec.convert(msgspec.to_builtins(table), Table) == table
    assert table.request((2,)).domain == table.domain


@pytest.mark.parametrize("high", [2.1, 3.0, 3.9])
def test_what_is_in_range_may_differ_by_as_much_wherever_it_ends(high: float) -> None:
    def fitted(ratio: float) -> Table:
        own = inverse("inverse root")
        return fitted_table("it", own, bits=64, unit=2.0**20, most=2.0**6, low=high / ratio, high=high, levels=28)

    table = fitted(3900.0)
    assert 0.99 < (table.high << (PLACE - 28)) / 2**table.domain <= 1
    with pytest.raises(BoundError, match="which differ too much to be told by a table"):
        fitted(4200.0)


def test_sums_that_no_ring_resolves_are_named() -> None:
    with pytest.raises(BoundError, match=r"variances: 1e\+09 is possible and 0.001 is in range, which is too far"):
        fitted_sum("variances", bits=40, unit=64.0, most=1e9, low=1e-4, high=1e-3)
