"""What is known of a network before it is built."""

import pytest

from tacit.models.configuration import ModelConfiguration, check_memory, parameters
from tacit.models.networks import build
from tests.cases import cases

SIZES = [
    {},
    {"image_size": 24, "patch_size": 8, "width": 96, "depth": 3, "heads": 3, "mlp_ratio": 2.7},
    {"width": 8, "depth": 1, "heads": 2, "mlp_ratio": 0.3},
]


@cases("sizes", SIZES)
@cases(("classes", "channels"), [(10, 1), (1, 3)])
def test_parameters_are_counted_without_building(sizes: dict[str, float], classes: int, channels: int) -> None:
    model = ModelConfiguration(**sizes)
    built = build(model, classes=classes, channels=channels, seed=0)
    expected = sum(parameter.numel() for parameter in built.parameters())
    assert parameters(model, classes=classes, channels=channels) == expected


def test_other_networks_are_not_known() -> None:
    assert parameters(ModelConfiguration(name="resnet18"), classes=10, channels=3) is None
    check_memory(ModelConfiguration(name="resnet18"), bytes_each=28, available=0)


def test_a_model_that_does_not_fit_is_refused_with_the_numbers() -> None:
    model = ModelConfiguration()
    needed = 28 * (parameters(model, classes=1, channels=1) or 0)
    check_memory(model, bytes_each=28, available=needed)
    check_memory(model, bytes_each=28, available=None)
    with pytest.raises(ValueError, match=r"^model\.width = 128, model\.depth = 2: 0 million parameters take"):
        check_memory(model, bytes_each=28, available=needed - 1)
