"""The networks of Chen et al. 2023: sized as in their Table I, 43 classes (GTSRB), 32 x 32 x 3."""

import io
import math

import pytest
import torch
from torch import nn

from tacit.models.configuration import ModelConfiguration
from tacit.models.layout import Layout
from tacit.models.networks import build
from tests.cases import cases

TABLE_1 = {"lenet": (166, 3, 41_203), "convnet": (3625, 9, 921_387), "resnet18": (43828, 17, 11_208_171)}
"""Kilobytes and convolutions as published, and the size of the state that these imply."""


@pytest.mark.parametrize("name", TABLE_1)
def test_sizes_are_those_of_table_1(name: str) -> None:
    kilobytes, convolutions, coordinates = TABLE_1[name]
    model = build(ModelConfiguration(name=name), classes=43, channels=3, seed=0)
    assert Layout.of(model).size == coordinates
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    # The published sizes are those of files with longer names in them: 2 KB more, and 200 bytes a tensor.
    assert 0 < kilobytes - len(file.getvalue()) / 1024 < 2 + 0.2 * len(model.state_dict())
    maps = {kind: [m for m in model.modules() if isinstance(m, kind)] for kind in (nn.Conv2d, nn.Linear)}
    # The table does not count the three that bring a shortcut of a ResNet to another size.
    assert len(maps[nn.Conv2d]) - (3 if name == "resnet18" else 0) == convolutions
    assert len(maps[nn.Linear]) == 1


@cases("name", ["lenet", "convnet"])
@cases(("size", "channels"), [(9, 1), (16, 3), (33, 2)])
def test_they_take_images_of_any_size(name: str, size: int, channels: int) -> None:
    model = build(ModelConfiguration(name=name, image_size=size), classes=5, channels=channels, seed=0)
    assert model(torch.zeros(2, channels, size, size)).shape == (2, 5)


def test_the_convnet_refuses_images_that_it_would_pool_to_nothing() -> None:
    with pytest.raises(ValueError, match="image_size 8: the convnet pools twice by 3; take at least 9"):
        build(ModelConfiguration(name="convnet", image_size=8), classes=2, channels=1, seed=0)


def test_the_lenet_starts_uniform_in_plus_minus_one_half() -> None:
    model = build(ModelConfiguration(name="lenet"), classes=43, channels=3, seed=0)
    flat = Layout.of(model).flatten(model)
    assert abs(flat).max() <= 0.5
    # Five standard deviations of the mean of squares of uniform numbers: E = 1/12, variance 1/180.
    assert abs((flat.astype("f8") ** 2).mean() - 1 / 12) < 5 * math.sqrt(1 / 180 / flat.size)
