"""Who has what before a model is adapted: the model owner's classes, the others divided, and a model that is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec import structs

from tacit.models.adapters.configuration import AdaptationConfiguration
from tacit.models.configuration import DataConfiguration, ModelConfiguration
from tacit.models.data import load
from tacit.parties.runs.adaptation import AdaptationExperiment
from tacit.simulate.adaptation.setting import BACKBONE, AdaptationSetting, setting

MODEL = ModelConfiguration(image_size=8, patch_size=4, width=16, depth=1, heads=2)


def experiment(**keys: Any) -> AdaptationExperiment:
    return AdaptationExperiment(model=MODEL, adaptation=AdaptationConfiguration(backbone_epochs=1, **keys))


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="module")
def found(directory: Path) -> AdaptationSetting:
    return setting(experiment(), directory, seed=3)


def test_classes_that_the_model_owner_does_not_know_are_divided(found: AdaptationSetting) -> None:
    data = load(experiment().data, image_size=8)
    assert found.classes == ("5", "6", "7", "8", "9")
    assert set(found.own.labels.tolist()) == {0, 1, 2, 3, 4}
    assert len(found.owners) == 4
    labels = torch.cat([found.of_owner(number).labels for number in range(4)])
    # Every image of a class that is not known is one data owner's.
    assert torch.equal(labels.bincount(minlength=5), data.y_train.bincount(minlength=10)[5:])
    assert torch.equal(found.test.labels.bincount(minlength=5), data.y_test.bincount(minlength=10)[5:])


def test_images_are_those_of_the_source_prepared_alike(found: AdaptationSetting) -> None:
    data = load(experiment().data, image_size=8)
    assert torch.equal(found.test.images, data.x_test[data.y_test >= 5])


def test_a_model_is_taken_up_where_it_was_left(found: AdaptationSetting, directory: Path) -> None:
    weights = directory / BACKBONE / "model.safetensors"
    before = weights.stat().st_mtime_ns
    again = setting(experiment(), directory, seed=3)
    assert weights.stat().st_mtime_ns == before
    for one, other in ((found.of_owner(number), again.of_owner(number)) for number in range(4)):
        assert torch.equal(one.images, other.images)
        assert torch.equal(one.labels, other.labels)
    assert torch.equal(found.served.transformer(found.test.images), again.served.transformer(found.test.images))


def test_images_without_a_test_are_refused(directory: Path, found: AdaptationSetting, tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", x_train=np.zeros((8, 8, 8), np.uint8), y_train=np.arange(8) % 2)
    asked = structs.replace(
        experiment(backbone=str(directory / BACKBONE), known_classes=()),
        data=DataConfiguration(source=str(tmp_path / "own.npz")),
    )
    with pytest.raises(ValueError, match=r"holds no test images .* x_test"):
        setting(asked, tmp_path, seed=3)


@pytest.mark.parametrize(
    ("known", "reason"),
    [
        ((0, 10), "adaptation.known_classes has 10, and the images have the classes 0 to 9"),
        (tuple(range(9)), "adaptation.known_classes has 9 of 10 classes: two at least are to be left"),
    ],
)
def test_classes_that_do_not_fit_are_refused(tmp_path: Path, known: tuple[int, ...], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        setting(experiment(known_classes=known), tmp_path, seed=3)
    assert list(tmp_path.iterdir()) == []
