"""Labels come out of the gradient of the classifier: that of one image always, counts of a batch nearly always."""

from typing import Any

import pytest
import torch
from torch import nn

from tacit.models.attacks.closed_form import label_counts, label_of
from tacit.models.configuration import ModelConfiguration, TrainingConfiguration
from tacit.models.networks import build
from tacit.models.training import train

BATCHES = 25


@pytest.fixture(scope="module")
def trained(small_vit: Any, digits: Any) -> nn.Module:
    model, data = small_vit(), digits(16)
    once = TrainingConfiguration(optimizer="adamw", learning_rate=1e-3, epochs=1, batch_size=32)
    train(model, data.x_train, data.y_train, once, seed=1, device=torch.device("cpu"))
    return model.eval()


def test_the_label_of_one_image_is_always_right(small_vit: Any, trained: nn.Module, digits: Any, sent: Any) -> None:
    data = digits(16)
    lenet = build(ModelConfiguration(name="lenet", image_size=16), classes=10, channels=1, seed=1)
    for model in (small_vit(), trained, lenet):
        name = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)][-1]
        for index in range(20):
            found = sent(model, data.x_train[[index]], data.y_train[[index]])
            assert label_of(model, found) == data.y_train[index]
            del found[f"{name}.bias"]
            assert label_of(model, found) == data.y_train[index]


def wrong(model: nn.Module, digits: Any, sent: Any, images: int) -> float:
    """Part of the labels of batches that the counts have wrong."""
    data, missed = digits(16), 0
    for start in range(0, BATCHES * images, images):
        y = data.y_train[start : start + images]
        counts = label_counts(model, sent(model, data.x_train[start : start + images], y), images=images)
        assert counts.sum() == images
        missed += int((counts - y.bincount(minlength=10)).clamp_min(0).sum())
    return missed / (BATCHES * images)


@pytest.mark.parametrize(("images", "most"), [(2, 0.02), (8, 0.02), (32, 0.02)])
def test_counts_of_a_batch(small_vit: Any, digits: Any, sent: Any, images: int, most: float) -> None:
    assert wrong(small_vit(), digits, sent, images) <= most  # 0, 0, 0
