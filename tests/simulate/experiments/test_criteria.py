"""What accuracies of a few seeds decide."""

from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from tacit.parties.runs.experiment import Experiment
from tacit.simulate.experiments.criteria import compare, differences, half_width, is_above, verdict
from tacit.simulate.experiments.federations import Arm
from tacit.simulate.experiments.results import StudyRow
from tests.cases import cases

ARM = Arm(name="arm", experiment=Experiment())


@pytest.mark.parametrize("count", [2, 3, 10, 100])
def test_the_interval_is_that_of_scipy(count: int) -> None:
    values = np.random.default_rng(count).normal(0.3, 0.1, count)
    low, high = stats.t.interval(0.95, count - 1, loc=values.mean(), scale=stats.sem(values))
    assert half_width(values.tolist()) == pytest.approx((high - low) / 2)


def test_a_single_seed_has_no_interval() -> None:
    assert half_width([0.5]) == float("inf")


@cases(
    ("found", "word"),
    [
        ([0.0, -0.001, 0.001], "equal"),
        ([-0.011, 0.0, 0.011], "undecided"),  # the mean is 0, the interval 2.7 points to each side
        ([-0.02, -0.02], "equal"),  # at the margin
        ([-0.03, -0.03], "lower"),
        ([0.03, 0.03], "higher"),
        ([-0.10, -0.02, -0.06], "undecided"),  # -6 points, standard error 2.3, of which 4.303 are too many
        ([-0.07, -0.05, -0.06], "lower"),
        ([-0.015, -0.03, -0.012], "undecided"),  # within the margin, but for the interval
        ([-0.3], "undecided"),  # one seed says nothing about the spread
    ],
)
def test_words_of_a_comparison(found: list[float], word: str) -> None:
    assert compare(found) == word


@cases(
    ("values", "above"),
    [([0.1, 0.1], True), ([-0.1, -0.1], False), ([0.0, 0.0], None), ([0.1, 0.2, 0.3], None), ([0.1], None), ([], None)],
)
def test_above_a_bound_by_the_whole_interval(values: list[float], above: bool | None) -> None:
    assert is_above(values, 0.0) is above


def test_differences_are_taken_seed_by_seed(make_row: Callable[..., StudyRow]) -> None:
    found = differences(make_row(ARM, [0.5, 0.75]), make_row(ARM, [0.25, 1.0]))
    assert found == [0.25, -0.25]


def test_a_verdict_names_what_is_not_so_and_what_is_undecided() -> None:
    found = verdict({"a": [0.1, 0.1], "b": [-0.1, -0.1], "c": [0.5]}, claim="all", above=0.0)
    assert (found.reproduced, found.detail) == (
        False,
        "a +10.0 points, b -10.0 points, c +50.0 points; not so: b; undecided: c",
    )
    assert "4.303 standard errors" in found.criterion
