"""A converted model computes what timm's computes, but for its polynomials; what cannot be converted is named."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import timm
import torch
from timm import layers as timm_layers
from timm.models.vision_transformer import ResPostBlock, VisionTransformer
from torch import nn

from tacit.models.friendly.calibration import calibrate, error_bounds
from tacit.models.friendly.transformer import STOCK, Approximation, ConversionError, convert
from tacit.models.layout import Layout

Build = Callable[..., VisionTransformer]
layers: Any = timm_layers  # It does not declare what it exports.


class QuadraticGelu(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 0.125 * x**2 + 0.25 * x + 0.5


def with_quadratic_gelu(model: Any) -> Any:
    for block in model.blocks:
        block.mlp.act = QuadraticGelu()
    return model


@pytest.mark.parametrize(
    "options", [{}, {"qkv_bias": False}, {"depth": 1, "num_heads": 4}, {"drop_rate": 0.1, "drop_path_rate": 0.1}]
)
def test_with_exact_functions_it_is_timms_model(build: Build, images: torch.Tensor, options: dict[str, Any]) -> None:
    """All that differs is GELU. float64: the two take sums in other orders."""
    teacher = build(**options)
    exact = convert(teacher, Approximation(softmax_degree=None, inverse_steps=None)).double().eval()
    expected = with_quadratic_gelu(teacher).double()(images.double())
    assert torch.allclose(exact(images.double()), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("options", [{}, {"qkv_bias": False}, {"act_layer": layers.GELU}])
def test_a_stock_model_is_timms_model(build: Build, images: torch.Tensor, options: dict[str, Any]) -> None:
    teacher = build(**options)
    stock = convert(teacher, STOCK).double()
    assert torch.allclose(stock(images.double()), teacher.double()(images.double()), rtol=1e-10, atol=1e-10)


def test_a_stock_vit_small_is_timms_model() -> None:
    """float32, in which both differ from the exact logits by roundings of 2^-24 each, on logits of about 1."""
    teacher = timm.create_model("vit_small_patch16_224", depth=2, num_classes=10).eval()
    images = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        assert torch.allclose(convert(teacher, STOCK).eval()(images), teacher(images), rtol=0, atol=1e-5)


def test_polynomials_of_high_degree_come_close_to_it(build: Build, images: torch.Tensor) -> None:
    teacher = build()
    model = convert(teacher, Approximation(softmax_degree=16, inverse_steps=12)).double()
    calibrate(model, images.double(), margin=1.0)
    assert max(bound.error for bound in error_bounds(model)) < 1e-3
    expected = with_quadratic_gelu(teacher).double()(images.double())
    assert torch.allclose(model(images.double()), expected, rtol=1e-2, atol=1e-2)


def test_weights_are_kept_and_not_shared(build: Build) -> None:
    teacher = build()
    model = convert(teacher, Approximation())
    assert Layout.of(model) == Layout.of(teacher)
    before = {name: value.clone() for name, value in teacher.state_dict().items()}
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert all(torch.equal(value, before[name]) for name, value in teacher.state_dict().items())


def test_models_that_timm_knows_by_name_are_converted() -> None:
    for name in ("vit_tiny_patch16_224", "vit_small_patch16_224", "deit_tiny_patch16_224"):
        teacher = timm.create_model(name, img_size=32, num_classes=3)
        assert Layout.of(convert(teacher, Approximation())) == Layout.of(teacher)


UNSUPPORTED: dict[str, tuple[dict[str, Any], list[str]]] = {
    "layer scale": ({"init_values": 0.1}, [r"blocks\.0\.ls1 \(LayerScale\): .* no such layer", r"blocks\.1\.ls2"]),
    "norms of queries": ({"qk_norm": True}, [r"blocks\.0\.attn\.q_norm \(LayerNorm\)", r"blocks\.1\.attn\.k_norm"]),
    "another activation": ({"act_layer": nn.SiLU}, [r"blocks\.0\.mlp\.act \(SiLU\): only GELU is supported"]),
    "another norm": (
        {"norm_layer": partial(nn.RMSNorm, eps=1e-6)},
        [r"blocks\.0\.norm1 \(RMSNorm\): only LayerNorm", r"norm \(RMSNorm\)"],
    ),
    "a norm without weights": (
        {"norm_layer": partial(nn.LayerNorm, elementwise_affine=False)},
        [r"blocks\.1\.norm2: LayerNorm has to have weight and bias"],
    ),
    "other blocks": ({"block_fn": ResPostBlock}, [r"blocks\.0 \(ResPostBlock\): only pre-norm blocks"]),
    "registers": ({"reg_tokens": 2}, ["reg_token: register tokens are not supported"]),
    "the mean of the tokens": (
        {"global_pool": "avg"},
        [r"fc_norm \(LayerNorm\)", r"norm \(Identity\)", "global_pool: the class token has to be classified"],
    ),
    "no class token": ({"class_token": False, "global_pool": "avg"}, ["cls_token: there has to be a class token"]),
    "no positions": ({"pos_embed": "none"}, ["pos_embed: there has to be a position embedding"]),
    "a class token without position": ({"no_embed_class": True}, ["no_embed_class: the class token has to have"]),
    "images of any size": ({"dynamic_img_size": True}, ["dynamic_img_size: the size of the images has to be fixed"]),
    "a norm before the blocks": ({"pre_norm": True}, [r"norm_pre \(LayerNorm\)"]),
    "no classifier": ({"num_classes": 0}, [r"head \(Identity\): only linear layers"]),
}


@pytest.mark.parametrize("case", UNSUPPORTED)
def test_every_unsupported_layer_is_named(build: Build, case: str) -> None:
    options, named = UNSUPPORTED[case]
    with pytest.raises(ConversionError, match=r"^the model cannot be converted: ") as refusal:
        convert(build(**options), Approximation())
    for pattern in named:
        assert refusal.match(pattern)


@pytest.mark.parametrize("activation", [layers.GELUTanh, partial(nn.GELU, approximate="tanh")])
def test_a_stock_model_has_gelu_itself(build: Build, activation: Callable[[], nn.Module]) -> None:
    teacher = build(act_layer=activation)
    convert(teacher, Approximation())
    with pytest.raises(
        ConversionError, match=r"blocks\.0\.mlp\.act \(\w+\): only GELU itself is supported, not the one"
    ):
        convert(teacher, STOCK)


def test_another_architecture_is_refused() -> None:
    with pytest.raises(ConversionError, match="a ResNet cannot be converted; only timm's VisionTransformer can"):
        convert(timm.create_model("resnet10t", num_classes=3), Approximation())


@pytest.mark.parametrize("setting", ["softmax_degree", "inverse_steps"])
def test_impossible_approximations_are_refused(setting: str) -> None:
    with pytest.raises(ValueError, match=f"{setting} = 0: at least 1 is needed"):
        Approximation(**{setting: 0})
