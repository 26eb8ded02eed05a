"""Contributions without secure aggregation: what is written is read, exactly, and nothing else is taken."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.secagg.packing import Total, WeightForm
from tacit.secagg.plain import PlainPacking, PlainSum
from tests.cases import cases

SIZES, METRICS = (3, 4), ("samples", "pixels")
LARGEST = 2**48 - 1
SHAPES = {WeightForm.SCALAR: (), WeightForm.TENSOR: (2,), WeightForm.COORDINATE: (7,)}


def packing(form: WeightForm = WeightForm.SCALAR, max_weight: int = 100) -> PlainPacking:
    return PlainPacking(clients=4, max_weight=max_weight, form=form, tensor_sizes=SIZES, metrics=METRICS)


def total(layout: PlainPacking, words: list[Any], order: list[int]) -> Total:
    """The sum of contributions that come in this order; the last member never does."""
    found = PlainSum(layout, len(words) + 1)
    for place in order:
        found.add(place, words[place])
    found.skip(len(words))
    return layout.decode(found.total, contributors=len(words))


@cases("max_weight", [1, 255, 256, 2**31])
@cases("form", list(SHAPES))
def test_sums_are_exact_in_whatever_order_contributions_come(form: WeightForm, max_weight: int) -> None:
    layout, generator = packing(form, max_weight), np.random.default_rng(max_weight)
    values = [scale * generator.normal(size=7).astype(np.float32) for scale in (1.0, 1e20, -1e20, 1e-30)][:3]
    weights = [np.asarray(generator.integers(0, max_weight, SHAPES[form], endpoint=True)) for _ in values]
    metrics = [{"samples": place, "pixels": LARGEST} for place in range(3)]
    words = [layout.encode(*each).words for each in zip(values, weights, metrics, strict=True)]
    spread = [np.repeat(one, SIZES) if form is WeightForm.TENSOR else one for one in weights]
    products = [one.astype(np.float64) * weight for one, weight in zip(values, spread, strict=True)]
    for order in ([0, 1, 2], [2, 1, 0], [1, 2, 0]):
        found = total(layout, words, order)
        assert np.array_equal(found.values, (products[0] + products[1]) + products[2])
        assert found.weights.shape == SHAPES[form]
        assert np.array_equal(found.weights, sum(weights))
        assert found.metrics == {"samples": 3, "pixels": 3 * LARGEST}
    alone = layout.decode(words[0], contributors=1)
    assert np.array_equal(alone.values, products[0])
    assert alone.metrics == metrics[0]


@cases("form", list(SHAPES))
@cases("max_weight", [1, 256])
def test_every_part_of_a_contribution_passes_the_check(form: WeightForm, max_weight: int) -> None:
    layout = packing(form, max_weight)
    weights: Any = np.full(SHAPES[form], max_weight)
    words = layout.encode(np.full(7, -3e38, np.float32), weights, {"samples": LARGEST, "pixels": 0}).words
    for cut in range(layout.length + 1):
        layout.check(words[:cut])
        layout.check(words[cut:], cut)


@given(st.integers(0, 11), st.integers(0, 2**32 - 1), st.integers(0, 11))
def test_a_changed_word_is_refused_or_harmless(place: int, word: int, cut: int) -> None:
    """Whatever passes is a finite value, a weight or a metric within its bounds; in chunks as in one."""
    layout = packing()
    words = layout.encode(np.ones(7, np.float32), 7, dict.fromkeys(METRICS, 1)).words
    words[place] = word

    def refused(*parts: tuple[Any, int]) -> bool:
        try:
            for part, start in parts:
                layout.check(part, start)
        except ValueError:
            return True
        return False

    assert refused((words, 0)) == refused((words[:cut], 0), (words[cut:], cut))
    if not refused((words, 0)):
        found = layout.decode(words, contributors=1)
        assert np.isfinite(found.values).all()
        assert 0 <= int(found.weights) <= layout.max_weight
        assert max(found.metrics.values()) <= LARGEST


def test_where_the_weight_is_zero_nothing_is_sent() -> None:
    values = np.array([np.nan] * 3 + [1.0] * 4, np.float32)
    words = packing(WeightForm.TENSOR).encode(values, np.array([0, 2]), dict.fromkeys(METRICS, 0)).words
    assert not words[:3].any()
    with pytest.raises(ValueError, match="value 0 is nan: only finite"):
        packing().encode(values, 2, dict.fromkeys(METRICS, 0))


def test_a_total_is_not_given_before_everybody_has_come_or_is_skipped() -> None:
    layout = packing()
    found = PlainSum(layout, 2)
    found.add(1, layout.encode(np.ones(7, np.float32), 1, dict.fromkeys(METRICS, 0)).words)
    with pytest.raises(ValueError, match="member 0 has neither come nor been skipped"):
        _ = found.total


def test_weights_whose_sum_could_overflow_are_refused() -> None:
    with pytest.raises(ValueError, match="weights of 64 bits; 63 are possible"):
        PlainPacking(clients=2**32, max_weight=2**31, form=WeightForm.SCALAR, tensor_sizes=(1,), metrics=())
