"""Low-rank adaptation (LoRA): Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models".

Beside the frozen matrix W of a linear layer two small ones are trained: W x + B A x, with A [r, inputs] and B [outputs,
r]. A starts like a torch linear layer and B at zero, so the initial output is unchanged. The product is not scaled
(alpha = r). After training it can be merged (merging.py): W + B A is linear again.

The layer keeps the names `weight` and `bias`, so the tensors of the frozen model keep theirs.
"""

from __future__ import annotations

import math
from typing import Final

import torch
from torch import nn
from torch.nn.functional import linear

ATTENTION: Final = "qkv"
"""The adapted layer of every block: queries, keys and values as one matrix, by timm's name."""


class LowRankLinear(nn.Linear):
    """A frozen linear layer with a low-rank product beside it. Its weights are those of `layer`, not copies."""

    def __init__(self, layer: nn.Linear, rank: int) -> None:
        # On the meta device, to draw no weights that are replaced at once.
        super().__init__(layer.in_features, layer.out_features, bias=layer.bias is not None, device="meta")
        self.weight, self.bias = layer.weight, layer.bias
        self.requires_grad_(False)
        self.lora_a = nn.Parameter(layer.weight.new_empty(rank, layer.in_features))
        self.lora_b = nn.Parameter(layer.weight.new_zeros(layer.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_a, a=math.sqrt(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., inputs] to [..., outputs]."""
        return super().forward(x) + linear(linear(x, self.lora_a), self.lora_b)


def add_low_rank(model: nn.Module, rank: int) -> None:
    """Adapt the attention of all blocks in place, and freeze all else; draws come from torch's generator. Raises
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
