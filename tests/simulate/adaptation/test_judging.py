"""Adapters judged in the clear, beside the model that they were learned for."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from tacit.models.adapters.configuration import AdaptationConfiguration
from tacit.models.adapters.parallel import each
from tacit.models.configuration import ModelConfiguration
from tacit.parties.adaptation.public import PublicLearning
from tacit.parties.runs.adaptation import AdaptationExperiment
from tacit.simulate.adaptation.clear import Judge
from tacit.simulate.adaptation.plan import AdaptationPlan, Folder, read_learning
from tacit.simulate.adaptation.run import make_folder, prepare
from tacit.simulate.adaptation.setting import AdaptationSetting, Labelled

EXPERIMENT = AdaptationExperiment(
    model=ModelConfiguration(image_size=8, patch_size=4, width=16, depth=1, heads=2),
    adaptation=AdaptationConfiguration(batch=4, backbone_epochs=1),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    return Folder(tmp_path_factory.mktemp("prepared") / "run")


@pytest.fixture(scope="module")
def prepared(folder: Folder) -> tuple[AdaptationSetting, AdaptationPlan]:
    make_folder(EXPERIMENT, folder)
    return prepare(EXPERIMENT, folder, seed=2, device="cpu", show=lambda event: None)


@pytest.fixture(scope="module")
def test(prepared: tuple[AdaptationSetting, AdaptationPlan]) -> Labelled:
    return prepared[0].test


@pytest.fixture(scope="module")
def learning(prepared: tuple[AdaptationSetting, AdaptationPlan]) -> PublicLearning:
    return prepared[1].learning


@pytest.fixture(scope="module")
def judge(prepared: tuple[AdaptationSetting, AdaptationPlan]) -> Judge:
    found, plan = prepared
    return Judge(plan.learning, found.served.transformer, found.test)


def test_what_is_public_is_kept(learning: PublicLearning, folder: Folder, tmp_path: Path) -> None:
    assert read_learning(folder) == learning
    wrong = Folder(tmp_path).learning
    wrong.parent.mkdir(parents=True)
    wrong.write_bytes(b"nothing")
    with pytest.raises(ValueError, match="cannot be used"):
        read_learning(Folder(tmp_path))


def test_before_learning_all_classes_are_alike(learning: PublicLearning, judge: Judge) -> None:
    found = judge.judged(learning.initial())
    assert found.loss == pytest.approx(math.log(5), abs=1e-12)
    assert found.balanced_accuracy == pytest.approx(1 / 5, abs=1e-12)


def test_a_head_that_says_one_class_is_right_as_often_as_that_comes(
    learning: PublicLearning, judge: Judge, test: Labelled
) -> None:
    first = each(torch.clone, learning.initial())
    first.head_bias[3] = 1.0
    labels = test.labels
    found = judge.judged(first)
    share = (labels == 3).double().mean().item()
    assert found.accuracy == share
    assert found.balanced_accuracy == pytest.approx(1 / 5, abs=1e-12)
    normaliser = math.log(math.e + 4)
    assert found.loss == pytest.approx(normaliser - share, abs=1e-12)
    assert judge.logits(first).shape == (len(labels), 5)
