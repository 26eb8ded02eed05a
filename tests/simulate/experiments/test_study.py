"""How accuracies of two arms are compared."""

import math
from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest

from tacit.models.configuration import ModelConfiguration, TrainingConfiguration
from tacit.parties.runs.experiment import Experiment
from tacit.simulate.experiments.study import Arm, ArmResult, Size, compare, differences, spread

ARM = Arm(name="arm", experiment=Experiment())


@pytest.mark.parametrize(
    ("arm", "baseline", "verdict"),
    [
        ([0.90, 0.91, 0.92], [0.90, 0.92, 0.91], "equal"),
        ([0.50, 0.90], [0.54, 0.86], "equal"),  # the mean alone decides within the margin
        ([0.88, 0.88], [0.90, 0.90], "equal"),  # at the margin
        ([0.87, 0.87], [0.90, 0.90], "lower"),
        ([0.93, 0.93], [0.90, 0.90], "higher"),
        ([0.80, 0.88, 0.84], [0.90, 0.90, 0.90], "lower"),  # -6 points, standard error 2.3
        ([0.70, 0.90, 0.95], [0.90, 0.90, 0.90], "undecided"),  # -5 points, standard error 7.6
        ([0.60], [0.90], "undecided"),  # one seed says nothing about the spread
    ],
)
def test_verdicts_of_a_comparison(
    make_result: Callable[..., ArmResult], arm: list[float], baseline: list[float], verdict: str
) -> None:
    assert compare(make_result(ARM, arm), make_result(ARM, baseline)) == verdict


def test_arms_that_start_from_one_model_have_one_model() -> None:
    other = msgspec.structs.replace(ARM.experiment, model=ModelConfiguration(width=64))
    arms = (replace(ARM, pretrained=True), Arm(name="other", experiment=other, pretrained=True))
    for chosen in (arms, (ARM,)):
        with pytest.raises(ValueError, match="all of these have the same model"):
            Size(arms=chosen, differences=(), pretraining=TrainingConfiguration())
    assert Size(arms=arms, differences=()).pretrained_model is None


def test_differences_are_taken_seed_by_seed(make_result: Callable[..., ArmResult]) -> None:
    found = differences(make_result(ARM, [0.5, 0.75]), make_result(ARM, [0.25, 1.0]))
    assert found == [0.25, -0.25]


def test_one_run_has_no_spread() -> None:
    assert math.isnan(spread([1.0]))
    assert spread([1.0, 3.0]) == pytest.approx(math.sqrt(2), rel=1e-12)
