"""A transformer small enough to train in milliseconds, and one thread, for sums in a fixed order."""

from collections.abc import Iterator

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
