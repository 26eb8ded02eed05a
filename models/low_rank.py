"""Low-rank adaptation (LoRA): Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models".

Beside a frozen matrix W of a linear layer two small ones are trained: W x + B A x, with A [r, inputs] and B
[outputs, r]. A begins as a linear layer of torch does and B at zero, so that the layer computes the same at first. The
product is not scaled, as with an alpha of r. Once trained it can be merged: W + B A is a linear layer again.

The layer keeps the names `weight` and `bias`, so that the tensors of the frozen model are called as they were.
"""

from __future__ import annotations

import copy
import math
from typing import Final

import torch
from torch import nn
from torch.nn.functional import linear

ATTENTION: Final = "qkv"
"""The layer of every block that is adapted: queries, keys and values as one matrix, which timm calls so."""
DOWN: Final = "lora_a"
UP: Final = "lora_b"


class LowRankLinear(nn.Linear):
    """A frozen linear layer with a low-rank product beside it. Its weights are those of `layer`, not copies."""

    def __init__(self, layer: nn.Linear, rank: int) -> None:
        # On the meta device, so that no weights are drawn that are replaced at once.
        super().__init__(layer.in_features, layer.out_features, bias=layer.bias is not None, device="meta")
        self.weight, self.bias = layer.weight, layer.bias
        self.requires_grad_(False)
        like = {"dtype": layer.weight.dtype, "device": layer.weight.device}
        self.lora_a = nn.Parameter(torch.empty(rank, layer.in_features, **like))
        self.lora_b = nn.Parameter(torch.zeros(layer.out_features, rank, **like))
        nn.init.kaiming_uniform_(self.lora_a, a=math.sqrt(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., inputs] to [..., outputs]."""
        return super().forward(x) + linear(linear(x, self.lora_a), self.lora_b)

    def merged(self) -> nn.Linear:
        """One linear layer that computes the same."""
        made = nn.Linear(self.in_features, self.out_features, bias=self.bias is not None, device="meta")
        made.weight = nn.Parameter(merged_weight(self.weight.detach(), self.lora_a.detach(), self.lora_b.detach()))
        made.bias = self.bias
        return made


def merged_weight(weight: torch.Tensor, down: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """W + B A, added in float64 and rounded once."""
    found = weight.double() + up.double() @ down.double()
    return found.to(weight.dtype)


def add_low_rank(model: nn.Module, rank: int) -> None:
    """Adapt the attention of all blocks, in place, and freeze all else; torch's generator draws what is random.
    ValueError for a model without such layers."""
    layers = {name: layer for name, layer in model.named_modules() if name.rpartition(".")[2] == ATTENTION}
    if not layers or not all(type(layer) is nn.Linear for layer in layers.values()):
        raise ValueError(
            f"a {type(model).__name__} has no attention with queries, keys and values as one linear layer {ATTENTION}"
        )
    model.requires_grad_(False)
    for name, layer in layers.items():
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, LowRankLinear(layer, rank))


def merged(model: nn.Module) -> nn.Module:
    """The model with every product merged, as a copy; itself where there is none."""
    layers = [name for name, layer in model.named_modules() if isinstance(layer, LowRankLinear)]
    if not layers:
        return model
    made = copy.deepcopy(model)
    for name in layers:
        parent, _, child = name.rpartition(".")
        setattr(made.get_submodule(parent), child, made.get_submodule(name).merged())
    return made
