"""Every way to adapt a backbone, on both kinds: what is trained, where it begins, and that it learns."""

import copy
import math
from collections.abc import Callable

import pytest
import torch
from torch import nn

from tacit.models.adapters.configuration import LinearProbeConfiguration, ParallelConfiguration
from tacit.models.adapters.methods import Adaptation, Adapters, FullFineTuning, LowRankAdaptation, trained
from tacit.models.adapters.parallel import block_outputs
from tacit.models.configuration import TrainingConfiguration
from tacit.models.friendly.transformer import STOCK, FriendlyTransformer, convert
from tacit.models.training import CPU, judge, train

LORA = pytest.param(LowRankAdaptation(rank=2), id="lora")
PARALLEL = pytest.param(Adapters(configuration=ParallelConfiguration(rank=2)), id="parallel")
METHODS = [
    PARALLEL,
    pytest.param(Adapters(configuration=LinearProbeConfiguration()), id="linear-probe"),
    pytest.param(FullFineTuning(), id="full"),
    LORA,
]
LABELS = torch.tensor([0, 3, 1, 2, 1])
HEAD = 4 * 9
"""Parameters of the head for 4 classes: 8 weights and an offset each."""


@pytest.mark.parametrize("method", METHODS)
def test_all_begin_with_equal_probabilities(method: Adaptation, backbone: nn.Module, images: torch.Tensor) -> None:
    model = method.adapt(backbone, classes=4, seed=1)
    assert torch.equal(model(images), torch.zeros(5, 4))


@pytest.mark.parametrize(
    ("method", "count"),
    [
        # Each of 3 blocks: 2 x 2 matrices of 2 x 8 and of 2 x 5, and a scale.
        pytest.param(Adapters(configuration=ParallelConfiguration(rank=2)), 3 * (4 * (8 + 5) + 1) + HEAD),
        pytest.param(Adapters(configuration=LinearProbeConfiguration()), HEAD),
        # Each of 3 blocks: from 8 to 2, and from 2 to 24.
        pytest.param(LowRankAdaptation(rank=2), 3 * (2 * 8 + 24 * 2) + HEAD),
    ],
)
def test_as_much_is_trained_as_the_method_says(method: Adaptation, count: int, backbone: nn.Module) -> None:
    model = method.adapt(backbone, classes=4, seed=1)
    assert sum(parameter.numel() for parameter in trained(model).values()) == count


def test_full_fine_tuning_trains_every_parameter(backbone: nn.Module) -> None:
    model = FullFineTuning().adapt(backbone.requires_grad_(False), classes=4, seed=1)
    assert trained(model).keys() == dict(model.named_parameters()).keys()
    assert trained(model).keys() == dict(backbone.named_parameters()).keys()


@pytest.mark.parametrize("method", METHODS)
def test_what_is_trained_moves_and_nothing_else(method: Adaptation, backbone: nn.Module, images: torch.Tensor) -> None:
    before_backbone = copy.deepcopy(backbone.state_dict())
    model = method.adapt(backbone, classes=4, seed=1)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    configuration = TrainingConfiguration(epochs=3, batch_size=5, learning_rate=0.1, optimizer="sgd", weight_decay=0.0)
    statistics = train(model, images, LABELS, configuration, seed=1, device=CPU)
    assert statistics.loss_sum / 5 < math.log(4)
    moved = {name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])}
    # Without adapters their tensors are empty.
    assert moved == {name for name, parameter in trained(model).items() if parameter.numel()}
    assert all(torch.equal(value, backbone.state_dict()[name]) for name, value in before_backbone.items())


@pytest.mark.parametrize("method", [pytest.param(FullFineTuning(), id="full"), LORA])
@pytest.mark.parametrize("bias", [True, False])
def test_blocks_compute_the_same_before_they_are_trained(
    method: Adaptation, bias: bool, vit: Callable[..., nn.Module], images: torch.Tensor
) -> None:
    timm = vit(qkv_bias=bias)
    for backbone in (timm, convert(timm, STOCK)):
        with torch.no_grad():
            backbone.get_submodule("blocks.0.attn.qkv").get_parameter("weight").normal_()
        adapted = method.adapt(backbone, classes=4, seed=1)
        assert torch.equal(block_outputs(adapted, images), block_outputs(backbone, images))


@pytest.mark.parametrize("method", [PARALLEL, LORA])
def test_what_begins_at_random_is_drawn_from_the_seed(method: Adaptation, backbone: nn.Module) -> None:
    first, again, other = (trained(method.adapt(backbone, classes=4, seed=seed)) for seed in (1, 1, 2))
    assert all(torch.equal(parameter, again[name]) for name, parameter in first.items())
    assert not all(torch.equal(parameter, other[name]) for name, parameter in first.items())


def test_the_backbone_of_adapters_is_never_in_training(friendly: FriendlyTransformer, images: torch.Tensor) -> None:
    """In training the polynomials of a friendly one would be scaled to the batch."""
    model = Adapters(configuration=ParallelConfiguration(rank=2)).adapt(friendly, classes=4, seed=1)
    assert not model.eval().adapters.training
    assert model.train().adapters.training
    assert not any(part.training for part in model.backbone.modules())
    assert judge(model, images, LABELS, batch_size=2, device=CPU).samples == 5


@pytest.mark.parametrize("method", METHODS)
def test_a_backbone_without_class_token_is_refused(method: Adaptation) -> None:
    with pytest.raises(ValueError, match="a Linear has no adapters"):
        method.adapt(nn.Linear(2, 2), classes=4, seed=1)
