"""What sizes of a study are, and how values spread."""

import math
from dataclasses import replace

import msgspec
import pytest

from tacit.models.configuration import ModelConfiguration, TrainingConfiguration
from tacit.parties.runs.experiment import Experiment
from tacit.simulate.experiments.study import Arm, Size, spread

ARM = Arm(name="arm", experiment=Experiment())


def test_arms_that_start_from_one_model_have_one_model() -> None:
    other = msgspec.structs.replace(ARM.experiment, model=ModelConfiguration(width=64))
    arms = (replace(ARM, pretrained=True), Arm(name="other", experiment=other, pretrained=True))
    for chosen in (arms, (ARM,)):
        with pytest.raises(ValueError, match="all of these have the same model"):
            Size(arms=chosen, differences=(), pretraining=TrainingConfiguration())
    assert Size(arms=arms, differences=()).pretrained_model is None


def test_one_run_has_no_spread() -> None:
    assert math.isnan(spread([1.0]))
    assert spread([1.0, 3.0]) == pytest.approx(math.sqrt(2), rel=1e-12)
