"""A transformer small enough to train in milliseconds, a few images, and one thread, for sums in a fixed order."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tacit.models.configuration import ModelConfiguration
from tacit.models.networks import build

SMALL = ModelConfiguration(image_size=8, patch_size=4, width=8, depth=1, heads=2)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def small_configuration() -> ModelConfiguration:
    return SMALL


@pytest.fixture
def small_model() -> nn.Module:
    return build(SMALL, classes=3, channels=1, seed=1)


@pytest.fixture
def arrays() -> dict[str, Any]:
    """Seven training and three test images of 4 x 6 pixels and two channels, in three classes."""
    generator = np.random.default_rng(1)
    return {
        "x_train": generator.integers(0, 256, (7, 4, 6, 2), dtype=np.uint8),
        "y_train": np.array([0, 1, 2, 0, 1, 2, 0], dtype=np.uint8),
        "x_test": generator.integers(0, 256, (3, 4, 6, 2), dtype=np.uint8),
        "y_test": np.array([2, 1, 0], dtype=np.int32),
    }
