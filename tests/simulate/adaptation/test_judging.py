"""Adapters judged in the clear, beside the model that they were learned for."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from tacit.models.adapters.configuration import AdaptationConfiguration
from tacit.models.adapters.parallel import each
from tacit.models.configuration import ModelConfiguration
from tacit.parties.runs.adaptation import AdaptationExperiment
from tacit.simulate.adaptation.plan import Folder, read_learning
from tacit.simulate.adaptation.run import Prepared, make_folder, prepare
from tacit.simulate.adaptation.summary import Judge

EXPERIMENT = AdaptationExperiment(
    model=ModelConfiguration(image_size=8, patch_size=4, width=16, depth=1, heads=2),
    adaptation=AdaptationConfiguration(batch=4, backbone_epochs=1),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    return Folder(tmp_path_factory.mktemp("prepared") / "run")


@pytest.fixture(scope="module")
def prepared(folder: Folder) -> Prepared:
    make_folder(EXPERIMENT, folder)
    return prepare(EXPERIMENT, folder, seed=2, show=lambda event: None)


@pytest.fixture(scope="module")
def judge(prepared: Prepared) -> Judge:
    return Judge(prepared.learning, prepared.setting.served.transformer, prepared.setting.test)


def test_what_is_public_is_kept(prepared: Prepared, folder: Folder, tmp_path: Path) -> None:
    assert read_learning(folder) == prepared.learning
    (tmp_path / folder.learning.name).write_bytes(b"nothing")
    with pytest.raises(ValueError, match="is not what `tacit adapt` writes"):
        read_learning(Folder(tmp_path))


def test_before_learning_all_classes_are_alike(prepared: Prepared, judge: Judge) -> None:
    found = judge.judged(prepared.learning.initial())
    assert found.loss == pytest.approx(math.log(5), abs=1e-12)
    assert found.balanced_accuracy == pytest.approx(1 / 5, abs=1e-12)


def test_a_head_that_says_one_class_is_right_as_often_as_that_comes(prepared: Prepared, judge: Judge) -> None:
    first = each(torch.clone, prepared.learning.initial())
    first.head_bias[3] = 1.0
    labels = prepared.setting.test.labels
    found = judge.judged(first)
    share = (labels == 3).double().mean().item()
    assert found.accuracy == share
    assert found.balanced_accuracy == pytest.approx(1 / 5, abs=1e-12)
    normaliser = math.log(math.e + 4)
    assert found.loss == pytest.approx(normaliser - share, abs=1e-12)
    assert judge.logits(first).shape == (len(labels), 5)
