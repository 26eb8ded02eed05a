"""Methods of adapting a backbone to other classes: adapters, and alternatives for comparison.

Each is an object whose `adapt` makes a model for the new classes from a copy of the backbone. A model is an nn.Module
on images, whose parameters that require gradients are trained, by training.train for instance; others stay fixed. New
heads start at zero (parallel.py), so that all methods start with the same predictions.

Only adapters, including linear probing, need no gradients of the backbone; the other methods need the backbone itself.
A FriendlyTransformer whose own weights were trained has to be calibrated again before evaluation.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn

from tacit.models.adapters.configuration import AdapterConfiguration
from tacit.models.adapters.parallel import (
    QUADRATIC_GELU,
    Activation,
    AdapterParameters,
    block_outputs,
    final_norm,
    initial,
    logits,
)
from tacit.models.friendly.transformer import FriendlyTransformer, LinearLayer
from tacit.models.low_rank import add_low_rank
from tacit.models.training import seeded


class Adaptation(Protocol):
    def adapt(self, backbone: nn.Module, *, classes: int, seed: int) -> nn.Module:
        """Build a model that maps images float32 [B, C, S, S] to logits [B, classes]; `seed` decides its random
        weights. The backbone stays unchanged. ValueError for one that `features.final_norm` refuses."""


@dataclass(frozen=True, kw_only=True)
class Adapters:
    """Parallel adapters and a head, or the head alone, by the configuration."""

    configuration: AdapterConfiguration
    activation: Activation = QUADRATIC_GELU

    def adapt(self, backbone: nn.Module, *, classes: int, seed: int) -> AdaptedTransformer:
        final_norm(backbone)
        network: Any = backbone
        tokens, width = network.pos_embed.shape[1:]
        sizes = {"blocks": len(network.blocks), "tokens": tokens, "width": width, "classes": classes}
        return AdaptedTransformer(backbone, initial(self.configuration, **sizes, seed=seed), self.activation)


@dataclass(frozen=True)
class FullFineTuning:
    def adapt(self, backbone: nn.Module, *, classes: int, seed: int) -> nn.Module:
        model: nn.Module = _with_head(backbone, classes)
        return model.requires_grad_(True)


@dataclass(frozen=True, kw_only=True)
class LowRankAdaptation:
    """LoRA (low_rank.py) of the queries, keys and values of every block, which are one matrix, and a new head."""

    rank: int = 8

    def adapt(self, backbone: nn.Module, *, classes: int, seed: int) -> nn.Module:
        model = _with_head(backbone, classes)
        if isinstance(backbone, FriendlyTransformer):
            for block in model.blocks:
                block.attn.qkv = _as_torch(block.attn.qkv)
        with seeded(seed):
            add_low_rank(model, self.rank)
        adapted: nn.Module = model
        adapted.get_submodule("head").requires_grad_(True)
        return adapted


class AdaptedTransformer(nn.Module):
    """A frozen copy of a backbone, always in evaluation mode, with trained adapters."""

    def __init__(self, backbone: nn.Module, parameters: AdapterParameters, activation: Activation) -> None:
        super().__init__()
        self.backbone = copy.deepcopy(backbone).requires_grad_(False).eval()
        self.adapters = nn.ParameterDict(parameters.tensors)
        self.activation = activation

    @property
    def parameters_of_adapters(self) -> AdapterParameters:
        return AdapterParameters(**self.adapters)

    def train(self, mode: bool = True) -> AdaptedTransformer:
        super().train(mode)
        self.backbone.eval()
        return self

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Map [B, C, S, S] to [B, classes]. Raises as `block_outputs` does."""
        outputs = block_outputs(self.backbone, images)
        return logits(self.parameters_of_adapters, final_norm(self.backbone), outputs, activation=self.activation)


def trained(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def _with_head(backbone: nn.Module, classes: int) -> Any:
    width = len(final_norm(backbone).weight)
    model: Any = copy.deepcopy(backbone)
    head = LinearLayer(torch.zeros(classes, width), torch.zeros(classes))
    model.head = head if isinstance(backbone, FriendlyTransformer) else _as_torch(head)
    return model


def _as_torch(layer: LinearLayer) -> nn.Linear:
    """Return the layer as one of torch, the only kind that timm has and LoRA adapts."""
    made = nn.Linear(layer.weight.shape[1], layer.weight.shape[0], bias=layer.bias is not None)
    made.weight = layer.weight
    if layer.bias is not None:
        made.bias = layer.bias
    return made
