"""A timm vision transformer as a friendly one, weights kept; whatever cannot be converted is named with the reason."""

from __future__ import annotations

import re
from typing import Any, Final

import torch
from timm import layers as timm_layers
from timm.models import vision_transformer as timm_vit
from timm.models.vision_transformer import Block as TimmBlock
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from tacit.models.friendly.blocks import Approximation, Attention, Block, LayerNorm, LinearLayer, Mlp
from tacit.models.friendly.gauge import Gauge
from tacit.models.friendly.transformer import FriendlyTransformer, Projection

# timm does not declare what it exports; attention is at this place in every version.
_layers: Any = timm_layers
_Attention: Any = vars(timm_vit)["Attention"]

_NOTHING: Final = (nn.Identity, nn.Dropout, _layers.DropPath)
"""Layers that do nothing in a trained model."""
_NORM: Final = (nn.LayerNorm, _layers.LayerNorm)
_LAYERS: Final[dict[str, tuple[tuple[type[nn.Module], ...], str]]] = {
    r"patch_embed": ((_layers.PatchEmbed,), "patches have to come from one convolution"),
    r"patch_embed\.proj": ((nn.Conv2d,), "patches have to come from one convolution"),
    r"blocks": ((nn.Sequential,), "the blocks have to follow each other"),
    r"blocks\.\d+": ((TimmBlock,), "only pre-norm blocks are supported"),
    r"blocks\.\d+\.norm[12]|norm": (_NORM, "only LayerNorm is supported"),
    r"blocks\.\d+\.attn": ((_Attention,), "only plain multi-head self-attention is supported"),
    r"blocks\.\d+\.attn\.(qkv|proj)": ((nn.Linear,), "only linear layers are supported"),
    r"blocks\.\d+\.mlp": ((_layers.Mlp,), "only two linear layers with GELU between them are supported"),
    r"blocks\.\d+\.mlp\.fc[12]|head": ((nn.Linear,), "only linear layers are supported"),
    r"blocks\.\d+\.mlp\.act": ((nn.GELU, _layers.GELU, _layers.GELUTanh), "only GELU is supported"),
}
"""What may stand where. Elsewhere only layers that do nothing may."""


class ConversionError(ValueError):
    """A model that cannot be converted; the message names every layer concerned, and why."""


def convert(model: nn.Module, approximation: Approximation) -> FriendlyTransformer:
    """The friendly form of timm's `VisionTransformer`, with copies of its weights, not calibrated.

    With the approximation STOCK it computes what timm's does. Dropout is left out. Raises ConversionError for another
    model or one with other layers, and where GELU itself is to be kept for one that is computed by a tanh.
    """
    if not isinstance(model, VisionTransformer):
        raise ConversionError(f"a {type(model).__name__} cannot be converted; only timm's VisionTransformer can")
    if problems := [*_wrong_layers(model), *_wrong_settings(model), *_other_gelu(model, approximation)]:
        raise ConversionError(f"the model cannot be converted: {'; '.join(problems)}")
    timm: Any = model
    friendly = FriendlyTransformer(
        cls_token=timm.cls_token,
        pos_embed=timm.pos_embed,
        projection=Projection(timm.patch_embed.proj),
        blocks=[_block(block, approximation) for block in timm.blocks],
        norm=LayerNorm(timm.norm, approximation),
        head=_linear(timm.head),
    )
    for name, part in friendly.named_modules():
        if isinstance(part, Gauge):
            part.name = name
    return friendly


def _block(block: Any, approximation: Approximation) -> Block:
    attention = Attention(
        _linear(block.attn.qkv),
        _linear(block.attn.proj),
        heads=block.attn.num_heads,
        scale=block.attn.scale,
        approximation=approximation,
    )
    return Block(
        LayerNorm(block.norm1, approximation),
        attention,
        LayerNorm(block.norm2, approximation),
        Mlp(_linear(block.mlp.fc1), _linear(block.mlp.fc2), approximation),
    )


def _linear(layer: nn.Linear) -> LinearLayer:
    bias: torch.Tensor | None = layer.bias
    return LinearLayer(layer.weight.detach().clone(), None if bias is None else bias.detach().clone())


def _wrong_layers(model: nn.Module) -> list[str]:
    problems: dict[str, str] = {}
    for name, layer in model.named_modules():
        if not name or any(name.startswith(f"{other}.") for other in problems):
            continue
        expected, reason = next(
            (found for pattern, found in _LAYERS.items() if re.fullmatch(pattern, name)),
            (_NOTHING, "the friendly transformer has no such layer"),
        )
        # Not isinstance: a subclass may compute something else.
        if type(layer) not in expected:
            problems[name] = reason
    kinds = dict(model.named_modules())
    return [f"{name} ({type(kinds[name]).__name__}): {reason}" for name, reason in problems.items()]


def _other_gelu(model: nn.Module, approximation: Approximation) -> list[str]:
    if approximation.quadratic_gelu:
        return []
    return [
        f"{name} ({type(layer).__name__}): only GELU itself is supported, not the one by a tanh"
        for name, layer in model.named_modules()
        if isinstance(layer, _layers.GELUTanh) or (isinstance(layer, nn.GELU) and layer.approximate != "none")
    ]


def _wrong_settings(model: Any) -> list[str]:
    norms = [(name, layer) for name, layer in model.named_modules() if type(layer) in _NORM]
    settings = {
        "global_pool": (model.global_pool != "token", "the class token has to be classified"),
        "cls_token": (model.cls_token is None, "there has to be a class token"),
        "reg_token": (getattr(model, "reg_token", None) is not None, "register tokens are not supported"),
        "pos_embed": (model.pos_embed is None, "there has to be a position embedding"),
        "no_embed_class": (model.no_embed_class, "the class token has to have a position"),
        "dynamic_img_size": (model.dynamic_img_size, "the size of the images has to be fixed"),
        **{
            name: (layer.weight is None or layer.bias is None, "LayerNorm has to have weight and bias")
            for name, layer in norms
        },
    }
    return [f"{name}: {reason}" for name, (wrong, reason) in settings.items() if wrong]
