"""Which layers Chen et al. can have masked, by the costs of their Table II and the sizes of our models' layers."""

from collections.abc import Sequence
from functools import cache

import numpy as np

from tacit.models.configuration import ModelConfiguration
from tacit.models.layers import Granularity, layers
from tacit.models.layout import Layout
from tacit.models.networks import build
from tacit.simulate.experiments.fedrsm_table2 import MODELS, PUBLISHED
from tests.cases import cases

UPLOADS = 10 * 300
"""Of ten clients in 300 rounds, each with one masked layer."""


@cache
def shares(model: str, granularity: Granularity) -> dict[str, float]:
    built = build(ModelConfiguration(name=model), classes=43, channels=3, seed=0)
    layout = Layout.of(built)
    sizes = dict(zip((entry.name for entry in layout.entries), layout.tensor_sizes, strict=True))
    whole = sum(sizes.values())
    return {layer.name: sum(sizes[name] for name in layer.tensors) / whole for layer in layers(built, granularity)}


def fits(model: str, masked: Sequence[float]) -> list[bool]:
    """Whether layers of these shares, masked equally often by chance, save what GTSRB and CIFAR-10 cost less."""
    found = []
    # Of a mean of so many draws, two standard deviations.
    chance = 2 * np.std(masked) / UPLOADS**0.5
    for ours, whole in zip(PUBLISHED["fedrsm"], PUBLISHED["fedavg"], strict=True):
        sent, full = (float(cells[MODELS.index(model)].split(", ")[1]) for cells in (ours, whole))
        # Both figures have two decimals.
        least, most = (1 - (sent + off) / (full - off) for off in (0.005, -0.005))
        found.append(bool(least - chance <= np.mean(masked) <= most + chance))
    return found


STAGES = ("layer1", "layer2", "layer3", "layer4")
READINGS: dict[str, dict[str, tuple[Granularity, Sequence[str]]]] = {
    "convolutions, and stages": {
        "lenet": ("layer", ("conv1", "conv2", "conv3")),
        "convnet": ("layer", tuple(f"conv{number}" for number in range(9))),
        "resnet18": ("stage", STAGES),
    },
    "classifier too": {
        "lenet": ("layer", ("conv1", "conv2", "conv3", "fc")),
        "convnet": ("layer", (*(f"conv{number}" for number in range(9)), "fc")),
        "resnet18": ("stage", (*STAGES, "fc")),
    },
    "single convolutions": {"resnet18": ("layer", ())},
    "blocks": {"resnet18": ("block", ())},
    "first convolution and stages": {"resnet18": ("stage", ("conv1", *STAGES))},
}


@cases(
    ("reading", "model", "expected"),
    [
        *(("convolutions, and stages", model, [True, True]) for model in MODELS),
        ("classifier too", "lenet", [False, False]),
        # 10.0 % in place of 10.6 and 10.4.
        ("classifier too", "convnet", [False, False]),
        ("classifier too", "resnet18", [False, False]),
        ("single convolutions", "resnet18", [False, False]),
        ("blocks", "resnet18", [False, False]),
        ("first convolution and stages", "resnet18", [False, False]),
    ],
)
def test_one_reading_saves_what_the_paper_saves(reading: str, model: str, expected: list[bool]) -> None:
    granularity, names = READINGS[reading][model]
    found = shares(model, granularity)
    # Nothing named: all but the classifier.
    chosen = [found[name] for name in names or [name for name in found if name != "fc"]]
    assert fits(model, chosen) == expected
