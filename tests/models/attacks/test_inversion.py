"""Images from gradients by search: they come back where nothing protects them, and not where nothing was sent."""

from collections.abc import Callable

import pytest
import timm
import torch
from torch import nn

from tacit.models.attacks.closed_form import label_of
from tacit.models.attacks.inversion import (
    RoundGradients,
    deep_leakage,
    inverting_gradients,
)
from tacit.models.networks import ConvNet, LeNet

MEAN, STD = (0.5,) * 3, (0.25,) * 3
BOX = {"mean": MEAN, "std": STD}
Photograph = Callable[[int], torch.Tensor]
CONVNET_ITERATIONS = 40
Sent = Callable[[nn.Module, torch.Tensor, torch.Tensor], dict[str, torch.Tensor]]


def decibels(found: torch.Tensor, true: torch.Tensor) -> float:
    return float(-10 * ((found - true) * STD[0]).square().mean().log10())


def correlation(found: torch.Tensor, true: torch.Tensor) -> float:
    return float(torch.corrcoef(torch.stack([found.flatten(), true.flatten()]))[0, 1])


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make()


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(1)


@pytest.mark.parametrize("told", [False, True])
def test_deep_leakage_gets_image_and_label_of_a_lenet(photograph: Photograph, sent: Sent, told: bool) -> None:
    model = seeded(lambda: LeNet(channels=3, image_size=10, classes=5))
    x, y = photograph(10), torch.tensor([3])
    gradients = sent(model, x, y)
    costs: list[float] = []
    found = deep_leakage(
        [RoundGradients(model=model, gradients=gradients)],
        (1, 3, 10, 10),
        iterations=25,
        generator=generator(),
        labels=torch.tensor([label_of(model, gradients)]) if told else None,
        progress=costs.append,
    )
    assert found.labels.tolist() == [3]
    assert found.cost == costs[-1] < costs[0] / 1000
    # Float32 gradients have room for far more; 40 dB are an error of 1 % of the range of pixels.
    assert decibels(found.images, x) > 40


def test_absent_layers_are_left_out_or_fed_as_zeros(photograph: Photograph, sent: Sent) -> None:
    model = seeded(lambda: LeNet(channels=3, image_size=8, classes=5))
    x, y = photograph(8), torch.tensor([3])
    gradients = {name: one for name, one in sent(model, x, y).items() if not name.startswith("conv3")}
    results = {
        absent: deep_leakage(
            [RoundGradients(model=model, gradients=gradients, absent=absent)],
            (1, 3, 8, 8),
            iterations=5,
            generator=generator(),
            labels=y,
        )
        for absent in ("left out", "zeros")
    }
    # Gradients of an image cannot fit the zeros, while all others are there to be fitted.
    assert results["left out"].cost < results["zeros"].cost / 10
    assert decibels(results["left out"].images, x) > decibels(results["zeros"].images, x) + 10


@pytest.mark.exhaustive
def test_inverting_gradients_sees_through_a_convnet(photograph: Photograph, sent: Sent) -> None:
    model = seeded(lambda: ConvNet(channels=3, image_size=9, classes=5))
    x = photograph(9)
    gradients = sent(model, x, torch.tensor([3]))
    buffers = {name: one.clone() for name, one in model.named_buffers()}
    costs: list[float] = []
    found = inverting_gradients(
        [RoundGradients(model=model, gradients=gradients)],
        (1, 3, 9, 9),
        **BOX,
        iterations=CONVNET_ITERATIONS,
        restarts=1,
        labels=torch.tensor([label_of(model, gradients)]),
        generator=generator(),
        progress=costs.append,
    )
    assert len(costs) == CONVNET_ITERATIONS
    assert ((found.images * STD[0] + MEAN[0]) >= -1e-6).all()
    assert ((found.images * STD[0] + MEAN[0]) <= 1 + 1e-6).all()
    # With an image of unrelated pixels, 243 of them, six standard deviations of the correlation are 0.39.
    assert correlation(found.images, x) > 0.45
    assert all(torch.equal(one, buffers[name]) for name, one in model.named_buffers())


@pytest.mark.exhaustive
def test_several_rounds_of_a_residual_network_are_matched_at_once(photograph: Photograph, sent: Sent) -> None:
    model = seeded(lambda: timm.create_model("resnet18", num_classes=3))
    models = [model, seeded(lambda: timm.create_model("resnet18", num_classes=3, zero_init_last=False))]
    x, y = photograph(8), torch.tensor([1])
    # Each round sent another half of its layers, and its cosine at the image itself is one.
    observed = [
        RoundGradients(model=model, gradients=dict(list(sent(model, x, y).items())[half::2]))
        for half, model in enumerate(models)
    ]
    costs: list[float] = []
    found = inverting_gradients(
        observed,
        (1, 3, 8, 8),
        **BOX,
        iterations=3,
        restarts=1,
        labels=y,
        generator=generator(),
        progress=costs.append,
    )
    assert len(costs) == 3
    assert found.cost < costs[0]
