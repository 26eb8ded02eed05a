"""The layers in the clear: float32 against float64, polynomials against the functions that they stand for, within the
errors that they state; and copies with other parameters."""

import math
from typing import Any

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from tacit.models.friendly.calibration import calibrate, error_bounds
from tacit.models.friendly.polynomials import Gauge, scaled, whole
from tacit.models.friendly.transformer import Approximation, FriendlyTransformer, LayerNorm, convert, with_parameters
from tests.cases import cases

FLOAT32 = 2.0**-24


def test_a_block_in_float32_is_one_in_float64(friendly: FriendlyTransformer, images: torch.Tensor) -> None:
    """Rounding, relative to the largest value: measured 2 units of float32. The bound leaves room for other processors,
    which add up in another order."""
    tokens = friendly.embed(friendly.patches(images)).detach()
    single = friendly.blocks[0](tokens)
    double = friendly.double().blocks[0](tokens.double())
    assert ((single - double).abs().max() / double.abs().max()).item() < 2.0**5 * FLOAT32


def test_layer_norm_is_off_by_the_error_of_its_inverse_root() -> None:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(4, 5, 16, generator=generator, dtype=torch.float64) * torch.tensor([0.5, 0.7, 1, 2, 3]).view(5, 1)
    norm = nn.LayerNorm(16).double()
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    ours = LayerNorm(norm, Approximation())
    calibrate(ours, x, margin=1.0)
    (bound,) = error_bounds(ours)
    assert 1e-6 < bound.error < 0.05
    error = (ours(x) - norm(x)).abs()
    assert bool((error <= bound.error * (norm(x) - norm.bias).abs() + 1e-9).all())
    assert error.max() > 1e-6


def test_attention_is_off_by_the_errors_of_exponential_and_inverse(
    timm_model: VisionTransformer, images: torch.Tensor
) -> None:
    """Probabilities are positive and sum to one, so a relative error r of every exponential makes one of at most
    2r/(1 - r) of the mixed values."""
    ours: Any = convert(timm_model, Approximation(softmax_degree=16)).double()
    exact: Any = convert(timm_model, Approximation(softmax_degree=None)).double()
    tokens = 0.3 * torch.randn(6, 5, 16, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    calibrate(ours.blocks[0].attn, tokens, margin=1.0)
    bounds = {bound.name.rpartition(".")[2]: bound for bound in error_bounds(ours.blocks[0].attn)}
    # The error of an exponential is absolute, given as a share of the largest; the smallest is its inverse.
    largest = ours.blocks[0].attn.scale * max(map(abs, bounds["products"].interval))
    relative = bounds["products"].error * math.exp(2 * math.ceil(largest))
    assert relative < 1e-3
    values: list[torch.Tensor] = []
    exact.blocks[0].attn.qkv.register_forward_hook(lambda module, inputs, output: values.append(output[..., 32:]))
    difference = ours.blocks[0].attn(tokens) - exact.blocks[0].attn(tokens)
    allowed = (2 * relative / (1 - relative) + bounds["totals"].error) * values[0].abs().amax(1, keepdim=True)
    assert bool((difference.abs() <= allowed @ ours.blocks[0].attn.proj.weight.abs().T + 1e-12).all())


def test_patches_are_what_the_convolution_sees(timm_model: VisionTransformer, images: torch.Tensor) -> None:
    friendly = convert(timm_model, Approximation())
    tokens = friendly.embed(friendly.patches(images))
    network: Any = timm_model
    assert torch.allclose(tokens, network._pos_embed(network.patch_embed(images)), atol=1e-5)
    assert not friendly.patches(images)[:, 0].any()


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda images: images[..., :4], "images of 8 x 4 pixels do not have the 4 patches of 4 x 4 that this model"),
        (lambda images: images.repeat(1, 1, 2, 2), "images of 16 x 16 pixels"),
        (lambda images: images[..., :7], "images of 8 x 7 pixels"),
        (lambda images: images * math.nan, "an image holds a pixel that is not finite"),
        (lambda images: images / 0, "an image holds a pixel that is not finite"),
    ],
)
def test_images_that_do_not_fit_are_refused(
    friendly: FriendlyTransformer, images: torch.Tensor, spoil: Any, reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        friendly(spoil(images))


def test_parameters_are_replaced_in_a_copy(friendly: FriendlyTransformer, images: torch.Tensor) -> None:
    names: list[str] = []

    def double(name: str, tensor: torch.Tensor) -> torch.Tensor:
        names.append(name)
        return tensor.double()

    copy = with_parameters(friendly, double)
    assert names == [name for name, _ in friendly.named_parameters()]
    assert not list(copy.parameters())
    assert copy(images.double()).dtype == torch.float64
    assert torch.allclose(copy(images.double()), friendly(images).double(), atol=1e-3)
    assert all(parameter.dtype == torch.float32 for parameter in friendly.parameters())


def test_the_weight_of_a_linear_layer_may_multiply_by_itself(
    friendly: FriendlyTransformer, images: torch.Tensor
) -> None:
    calls: list[str] = []

    def make(name: str, tensor: torch.Tensor) -> Any:
        if tensor.dim() not in (2, 4) or name == "pos_embed":
            return tensor

        def multiply(x: torch.Tensor) -> torch.Tensor:
            calls.append(name)
            return x @ tensor.reshape(len(tensor), -1).T

        return multiply

    assert torch.allclose(with_parameters(friendly, make)(images), friendly(images), atol=1e-5)
    linear = ["attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2"]
    blocks = [f"blocks.{block}.{layer}.weight" for block in range(2) for layer in linear]
    assert calls == ["patch_embed.proj.weight", *blocks, "head.weight"]


@cases(("bound", "rounded"), [(0.3, 1 / 3), (0.26, 1 / 3), (0.25, 1 / 4), (1.0, 1.0), (1.2, 2.0), (7, 7)])
def test_scales_are_whole_numbers_or_their_inverses(bound: float, rounded: float) -> None:
    assert whole(bound) == rounded
    assert scaled(torch.tensor(6.0), rounded).item() == pytest.approx(6 / rounded)


def test_every_gauge_knows_its_place(friendly: FriendlyTransformer) -> None:
    gauges = {name: part for name, part in friendly.named_modules() if isinstance(part, Gauge)}
    norm, attention, others = 2, 2 + 2 + 3, 2
    assert len(gauges) == 2 * (2 * norm + attention + others) + norm + 2
    assert sum(part.binding for part in gauges.values()) == 2 * 4 + 1
    assert all(part.name == name for name, part in gauges.items())
