"""The outputs of blocks against backbones that are cut short, and backbones that can have no adapters."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from tacit.models.adapters.features import block_outputs, final_norm
from tacit.models.friendly.blocks import STOCK, Approximation, norm_bound
from tacit.models.friendly.calibration import calibrate
from tacit.models.friendly.convert import convert
from tacit.models.friendly.gauge import ActivationError
from tacit.models.friendly.polynomials import inverse_root_error
from tacit.models.friendly.transformer import FriendlyTransformer

IMAGES = torch.randn(5, 1, 8, 8, generator=torch.Generator().manual_seed(3))
EPSILON = 2.0**-24  # unit roundoff of float32


def vit(**options: Any) -> VisionTransformer:
    sizes = {
        "img_size": 8,
        "patch_size": 4,
        "in_chans": 1,
        "num_classes": 3,
        "embed_dim": 8,
        "depth": 3,
        "num_heads": 2,
    }
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return VisionTransformer(**{**sizes, **options})


def calibrated() -> FriendlyTransformer:
    model = convert(vit(), Approximation())
    calibrate(model, IMAGES, margin=1.5)
    return model


@pytest.mark.parametrize("make", [vit, calibrated])
def test_the_outputs_are_those_of_a_backbone_cut_short(make: Callable[[], Any]) -> None:
    backbone = make().eval()
    outputs = block_outputs(backbone, IMAGES, batch_size=2)
    assert (outputs.shape, outputs.dtype, outputs.requires_grad) == ((3, 5, 5, 8), torch.float32, False)
    for block in range(3):
        backbone_cut = make().eval()
        backbone_cut.blocks = backbone_cut.blocks[: block + 1]
        backbone_cut.norm = backbone_cut.head = nn.Identity()
        tokens = backbone_cut(IMAGES)
        # Batches of other sizes may sum in another order: chains of some 100 sums of at most 50 terms.
        expected = outputs[block, :, 0]
        assert (tokens - expected).norm() < 1000 * EPSILON * expected.norm()


@pytest.mark.parametrize("make", [vit, calibrated])
def test_the_norm_behind_the_last_output_is_that_of_the_backbone(make: Callable[[], Any]) -> None:
    backbone = make().eval()
    tokens = final_norm(backbone)(block_outputs(backbone, IMAGES)[-1, :, 0])
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
        assert (backbone(IMAGES) - tokens).norm() < tolerance * tokens.norm()


def test_the_friendly_form_of_a_model_has_the_same_outputs() -> None:
    backbone = vit().eval()
    outputs = block_outputs(backbone, IMAGES)
    difference = block_outputs(convert(backbone, STOCK), IMAGES) - outputs
    assert difference.norm() < 1000 * EPSILON * outputs.norm()


@pytest.mark.parametrize("training", [True, False])
def test_the_backbone_stays_as_it_is_and_computes_as_when_it_is_judged(training: bool) -> None:
    backbone = vit(proj_drop_rate=0.5).train(training)
    assert torch.equal(block_outputs(backbone, IMAGES), block_outputs(backbone, IMAGES))
    assert backbone.training is training
    assert not any(module._forward_hooks for module in backbone.modules())


def test_a_value_beyond_the_calibrated_intervals_is_an_error() -> None:
    with pytest.raises(ActivationError, match="beyond the calibrated interval"):
        block_outputs(calibrated(), 100 * torch.ones(1, 1, 8, 8) * IMAGES[:1])


@pytest.mark.parametrize(
    ("backbone", "message"),
    [
        (nn.Linear(2, 2), "a Linear has no adapters"),
        (vit(global_pool="avg"), 'global_pool = "avg"'),
        (vit(class_token=False, global_pool="max"), 'global_pool = "max"'),
        (vit(final_norm=False), "final norm .* is Identity"),
        (vit(fc_norm=True), "no fc_norm"),
    ],
)
def test_other_backbones_are_refused(backbone: nn.Module, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        block_outputs(backbone, IMAGES)


def test_no_images_are_refused() -> None:
    with pytest.raises(ValueError, match="of no images"):
        block_outputs(vit(), IMAGES[:0])
