"""A converted model computes what timm's computes, but for its polynomials; what cannot be converted is named."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import timm
import torch
from timm import layers as timm_layers
from timm.models.deit import VisionTransformerDistilled
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


VARIANTS: dict[str, dict[str, Any]] = {
    "layer scale": {"init_values": 0.1},
    "layer scale without biases": {"init_values": 0.1, "proj_bias": False},
    "registers": {"reg_tokens": 2},
    "registers without position": {"reg_tokens": 2, "no_embed_class": True},
    "a class token without position": {"no_embed_class": True},
    "no positions": {"pos_embed": "none"},
    "no classifier": {"num_classes": 0},
    "a norm before the blocks": {"pre_norm": True},
    "the mean before the norm": {"global_pool": "avg"},
    "the mean behind the norm": {"global_pool": "avg", "fc_norm": False},
    "the class token before the norm": {"fc_norm": True},
    "no class token": {"class_token": False, "global_pool": "avg"},
    "registers alone": {"class_token": False, "reg_tokens": 3, "global_pool": "avg", "fc_norm": False},
    "an attention pool": {"class_token": False, "global_pool": "map"},
    "an attention pool without biases": {"class_token": False, "global_pool": "map", "num_classes": 0, "depth": 1},
    "an attention pool of all tokens": {"reg_tokens": 2, "global_pool": "map", "pool_include_prefix": True},
    "GELU of timm": {"act_layer": layers.GELU},
    "GELU by a tanh": {"act_layer": layers.GELUTanh},
    "torch's GELU by a tanh": {"act_layer": partial(nn.GELU, approximate="tanh")},
    "quick GELU": {"act_layer": "quick_gelu"},
    "images of any size, of this one": {"dynamic_img_size": True},
    "two heads": {"kind": VisionTransformerDistilled},
    "two heads without classes": {"kind": VisionTransformerDistilled, "num_classes": 0},
    "all at once": {
        "init_values": 0.2, "reg_tokens": 2, "pre_norm": True, "global_pool": "avg", "act_layer": "quick_gelu",
        "num_classes": 0,
    },
}  # fmt: skip


@pytest.mark.parametrize("case", VARIANTS)
def test_a_stock_form_of_every_supported_variant_is_timms_model(build: Build, images: torch.Tensor, case: str) -> None:
    """In float64, since what folds is rounded once more in float32."""
    teacher = build(**VARIANTS[case]).double()
    stock = convert(teacher, STOCK)
    expected = teacher(images.double())
    assert torch.allclose(stock(images.double()), expected, rtol=1e-10, atol=1e-10)


def test_polynomials_take_the_place_of_every_activation(build: Build, images: torch.Tensor) -> None:
    for activation in (layers.GELUTanh, "quick_gelu"):
        teacher = build(act_layer=activation)
        exact = convert(teacher, Approximation(softmax_degree=None, inverse_steps=None)).double().eval()
        expected = with_quadratic_gelu(teacher).double()(images.double())
        assert torch.allclose(exact(images.double()), expected, rtol=1e-10, atol=1e-10)


def test_what_folds_away_leaves_the_weights_of_the_model_as_they_were(build: Build) -> None:
    teacher = build(init_values=0.5, reg_tokens=2)
    before = {name: value.clone() for name, value in teacher.state_dict().items()}
    convert(teacher, STOCK)
    assert all(torch.equal(value, before[name]) for name, value in teacher.state_dict().items())


UNSUPPORTED: dict[str, tuple[dict[str, Any], str]] = {
    "norms of queries": ({"qk_norm": True}, r"blocks\.0\.attn\.q_norm \(LayerNorm\)"),
    "another activation": ({"act_layer": nn.SiLU}, r"blocks\.0\.mlp\.act \(SiLU\)"),
    "another norm": ({"norm_layer": partial(nn.RMSNorm, eps=1e-6)}, r"blocks\.0\.norm1 \(RMSNorm\)"),
    "a norm without weights": (
        {"norm_layer": partial(nn.LayerNorm, elementwise_affine=False)},
        r"blocks\.0\.norm1 without weight and bias",
    ),
    "no norm": ({"final_norm": False}, "no LayerNorm behind the blocks"),
    "other blocks": ({"block_fn": ResPostBlock}, r"blocks\.0 \(ResPostBlock\)"),
    "attention pooling of patches alone": ({"global_pool": "map"}, "attn_pool without the tokens before the patches"),
    "attention pooling of another form": ({"global_pool": "prr"}, r"attn_pool \(AttentionPoolPrr\)"),
    "the largest of the tokens": ({"global_pool": "max"}, 'global_pool = "max"'),
    "the mean of all tokens": ({"global_pool": "avg", "pool_include_prefix": True}, "pool_include_prefix"),
}


@pytest.mark.parametrize("case", UNSUPPORTED)
def test_the_first_unsupported_part_is_named_in_one_line(build: Build, case: str) -> None:
    options, named = UNSUPPORTED[case]
    with pytest.raises(ConversionError, match=rf"^{named} is not supported; supported are ") as refusal:
        convert(build(**options), Approximation())
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 500


def test_attention_of_another_form_is_refused(build: Build) -> None:
    for options, named in (
        ({"gated": True}, r"blocks\.1\.attn\.gate \(Linear\)"),
        ({"attn_head_dim": 12}, "heads whose width is not that of a token over 2"),
        ({"scale_norm": True, "norm_layer": nn.LayerNorm}, r"blocks\.1\.attn\.norm \(LayerNorm\)"),
    ):
        teacher = build()
        teacher.blocks[1].attn = layers.Attention(16, num_heads=2, **options)
        with pytest.raises(ConversionError, match=rf"^{named} is not supported; supported are "):
            convert(teacher, STOCK)


def test_another_architecture_is_refused() -> None:
    for model in (timm.create_model("resnet10t", num_classes=3), nn.Linear(2, 2)):
        with pytest.raises(ConversionError, match=f"^the architecture {type(model).__name__} is not supported"):
            convert(model, Approximation())
