"""The best assignment against scipy's, with many ties among them, and what is refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import linear_sum_assignment

from tacit.models.assignment import best_assignment

# Whole numbers, whose sums are exact; small ones for ties.
WHOLE = st.integers(-3, 3) | st.integers(-(2**40), 2**40)
SQUARES = st.integers(0, 8).flatmap(lambda size: arrays(np.float64, (size, size), elements=WHOLE.map(float)))


@given(SQUARES)
def test_no_assignment_has_a_larger_sum(gains: np.ndarray) -> None:
    rows = best_assignment(gains)
    assert rows.dtype == np.int64
    assert sorted(rows) == [*range(len(gains))]
    reference = gains[linear_sum_assignment(gains, maximize=True)]
    assert gains[rows, np.arange(len(gains))].sum() == reference.sum()


def test_larger_ones_too() -> None:
    gains = np.random.default_rng(0).standard_normal((60, 60))
    rows, columns = linear_sum_assignment(gains, maximize=True)
    np.testing.assert_array_equal(best_assignment(gains)[columns], rows)


@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 2, 2)])
def test_other_shapes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="square matrix of gains"):
        best_assignment(np.zeros(shape))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_gains_that_are_not_finite_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match="finite gains"):
        best_assignment(np.array([[0.0, value], [0.0, 0.0]]))
