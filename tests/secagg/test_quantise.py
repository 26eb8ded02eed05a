"""Stochastic rounding: exact where it must be, unbiased where it may not be exact."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.secagg.ring import Quantiser
from tests.cases import cases

ALL_BITS = range(2, 33)


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@cases("bits", ALL_BITS)
def test_levels_are_hit_exactly(bits: int) -> None:
    quantiser = Quantiser(limit=4.0, bits=bits)
    assert quantiser.levels == 2 ** (bits - 1) - 1
    assert quantiser.step == 4.0 / quantiser.levels
    # A power of two scales exactly, so the ends and zero have no fraction and no draw may move them.
    quantised, clipped = quantiser.quantise(np.tile([-4.0, 0.0, 4.0], 2000), generator())
    assert quantised.dtype == np.int32
    assert quantised.tolist() == [-quantiser.levels, 0, quantiser.levels] * 2000
    assert clipped == 0


@settings(max_examples=100)
@given(
    bits=st.integers(2, 32),
    limit=st.floats(1e-6, 1e6),
    parts=st.lists(st.floats(-1, 1), max_size=50),
    seed=st.integers(0, 2**32),
)
def test_error_stays_below_one_step(bits: int, limit: float, parts: list[float], seed: int) -> None:
    quantiser = Quantiser(limit, bits)
    values = np.array(parts, np.float64) * limit
    quantised, clipped = quantiser.quantise(values, generator(seed))
    assert clipped == 0
    assert np.abs(quantised.astype(np.int64)).max(initial=0) <= quantiser.levels
    # Scaling and its reversal round a handful of times, each by 2^-53 of at most `limit`.
    error = np.abs(quantiser.dequantise(quantised.astype(np.int64)) - values)
    assert (error < quantiser.step + limit * 2.0**-50).all()


@settings(max_examples=50)
@given(bits=st.integers(2, 32), values=st.lists(st.floats(-2, 2, width=32), max_size=40), seed=st.integers(0, 99))
def test_is_the_floor_plus_a_draw(bits: int, values: list[float], seed: int) -> None:
    quantiser = Quantiser(1.5, bits)
    quantised, clipped = quantiser.quantise(np.array(values, np.float32), generator(seed))
    draws = generator(seed).random(len(values)).tolist()
    assert clipped == sum(abs(value) > 1.5 for value in values)
    for value, draw, number in zip(values, draws, quantised.tolist(), strict=True):
        scaled = min(max(value * (quantiser.levels / 1.5), -quantiser.levels), quantiser.levels)
        assert number == math.floor(scaled) + (draw < scaled - math.floor(scaled))


@cases("bits", [2, 8, 16, 24])
@cases("value", [-0.9999, -0.3, -1e-3, 1e-3, 0.123, 0.77])
def test_mean_is_unbiased(bits: int, value: float) -> None:
    """A rounded value has a standard deviation of at most half a step; five deviations of the mean are allowed."""
    quantiser = Quantiser(1.0, bits)
    draws = 100_000
    quantised, _ = quantiser.quantise(np.full(draws, value), generator(bits))
    error = abs(quantiser.dequantise(quantised.astype(np.int64)).mean() - value)
    assert error < 5 * quantiser.step / 2 / math.sqrt(draws)


def test_clips_counts_and_leaves_its_input_alone() -> None:
    quantiser, values = Quantiser(1.0, 8), [1.0, 1.5, -1e30, -1.0, 0.0, 0.3]
    given = np.array(values)
    quantised, clipped = quantiser.quantise(given, generator())
    assert clipped == 2
    assert quantised.tolist()[:5] == [127, 127, -127, -127, 0]
    assert given.tolist() == values


@cases("dtype", [np.float32, np.float64])
def test_pieces_equal_the_whole(dtype: type) -> None:
    values = generator(1).uniform(-1, 1, 1000).astype(dtype)
    quantiser = Quantiser(1.0, 12)
    whole, _ = quantiser.quantise(values, generator(2))
    shared = generator(2)
    pieces = [quantiser.quantise(values[low : low + 300], shared)[0] for low in range(0, 1000, 300)]
    assert np.array_equal(np.concatenate(pieces), whole)


@cases("bad", [math.nan, math.inf, -math.inf])
@cases("dtype", [np.float32, np.float64])
def test_refuses_what_is_not_finite(bad: float, dtype: type) -> None:
    values = np.zeros(5, dtype)
    values[[2, 4]] = bad
    with pytest.raises(ValueError, match=f"value 102 is {bad}"):
        Quantiser(1.0, 8).quantise(values, generator(), offset=100)
    with pytest.raises(ValueError, match=f"value 2 is {bad}"):
        Quantiser(1.0, 8).quantise(values, generator())


def test_refuses_other_widths_and_limits() -> None:
    for bits in (1, 0, 33):
        with pytest.raises(ValueError, match="2 to 32 bits"):
            Quantiser(1.0, bits)
    for limit in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="positive number"):
            Quantiser(limit, 8)
