"""The outputs of blocks against backbones that are cut short, and backbones that can have no adapters."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from tacit.models.adapters.parallel import block_outputs, final_norm
from tacit.models.friendly.polynomials import ActivationError, Interval, inverse_root_error
from tacit.models.friendly.transformer import STOCK, FriendlyTransformer, convert, norm_bound

EPSILON = 2.0**-24  # unit roundoff of float32

Vit = Callable[..., VisionTransformer]


def test_the_outputs_are_those_of_a_backbone_cut_short(backbone: nn.Module, images: torch.Tensor) -> None:
    outputs = block_outputs(backbone, images, batch_size=2)
    assert (outputs.shape, outputs.dtype, outputs.requires_grad) == ((3, 5, 5, 8), torch.float32, False)
    for block in range(3):
        short: Any = copy.deepcopy(backbone)
        short.blocks = short.blocks[: block + 1]
        short.norm = short.head = nn.Identity()
        tokens = short(images)
        # Batches of other sizes may sum in another order: chains of some 100 sums of at most 50 terms.
        expected = outputs[block, :, 0]
        assert (tokens - expected).norm() < 1000 * EPSILON * expected.norm()


def test_the_norm_behind_the_last_output_is_that_of_the_backbone(backbone: nn.Module, images: torch.Tensor) -> None:
    tokens = final_norm(backbone)(block_outputs(backbone, images)[-1, :, 0])
    tolerance = 100 * EPSILON
    if isinstance(backbone, FriendlyTransformer):
        # All that differs is the root; weights are 1 and offsets 0, so that its relative error is that of the token.
        seen, steps = backbone.norm.variance.interval, backbone.norm.steps
        assert seen is not None
        assert steps is not None
        bound = norm_bound(seen)
        tolerance += inverse_root_error(seen.low / bound**2, seen.high / bound**2, steps)
    backbone.head = nn.Identity()
    with torch.no_grad():
        assert (backbone(images) - tokens).norm() < tolerance * tokens.norm()


def test_the_norm_is_a_copy(backbone: Any) -> None:
    norm = final_norm(backbone)
    with torch.no_grad():
        backbone.norm.weight += 1
    assert torch.equal(norm.weight + 1, final_norm(backbone).weight)


def test_the_friendly_form_of_a_model_has_the_same_outputs(vit: Vit, images: torch.Tensor) -> None:
    backbone = vit()
    outputs = block_outputs(backbone, images)
    difference = block_outputs(convert(backbone, STOCK), images) - outputs
    assert difference.norm() < 1000 * EPSILON * outputs.norm()


@pytest.mark.parametrize("training", [True, False])
def test_the_backbone_stays_as_it_is_and_computes_as_when_it_is_judged(
    vit: Vit, images: torch.Tensor, training: bool
) -> None:
    backbone = vit(proj_drop_rate=0.5).train(training)
    assert torch.equal(block_outputs(backbone, images), block_outputs(backbone, images))
    assert backbone.training is training
    assert not any(module._forward_hooks for module in backbone.modules())


def test_a_value_beyond_the_calibrated_intervals_is_an_error(
    friendly: FriendlyTransformer, images: torch.Tensor
) -> None:
    with pytest.raises(ActivationError, match="beyond the calibrated interval"):
        block_outputs(friendly, 100 * images)


def test_a_final_norm_that_is_not_used_does_not_refuse(friendly: FriendlyTransformer, images: torch.Tensor) -> None:
    outputs = block_outputs(friendly, images)
    friendly.norm.variance.interval = Interval(1e-9, 2e-9)
    with pytest.raises(ActivationError, match=r"norm\.variance"):
        friendly(images)
    assert torch.equal(block_outputs(friendly, images), outputs)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"global_pool": "avg"}, 'global_pool = "avg"'),
        ({"class_token": False, "global_pool": "max"}, 'global_pool = "max"'),
        ({"fc_norm": True}, "no fc_norm"),
        ({"final_norm": False}, "final norm .* is Identity"),
    ],
)
def test_a_head_that_sees_something_else_is_refused(
    vit: Vit, images: torch.Tensor, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        block_outputs(vit(**options), images)


def test_other_models_are_refused(images: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="a Linear has no adapters"):
        block_outputs(nn.Linear(2, 2), images)


def test_no_images_are_refused(backbone: nn.Module, images: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="of no images"):
        block_outputs(backbone, images[:0])
