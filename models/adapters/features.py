"""What adapters need of a frozen backbone: the outputs of all its blocks, and its final norm.

A backbone is timm's `VisionTransformer` with a class token, or a `FriendlyTransformer`. Both have their blocks in
`blocks`, where hooks read the outputs of an ordinary pass in evaluation mode.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from tacit.models.adapters.parallel import FinalNorm
from tacit.models.friendly.blocks import LayerNorm
from tacit.models.friendly.transformer import FriendlyTransformer
from tacit.models.training import EVALUATION_BATCH


@torch.no_grad()
def block_outputs(backbone: nn.Module, images: torch.Tensor, *, batch_size: int = EVALUATION_BATCH) -> torch.Tensor:
    """b_1 ... b_L of images [B, C, S, S]: float32 [L, B, T, D] without gradients, on the device of the images.

    The backbone computes where its parameters are, `batch_size` images at a time, and stays as it is. All outputs of an
    image together take 4 L T D bytes: 21 MB for ViT-B of 384 x 384 pixels. Raises ValueError as `final_norm` does, and
    for no images; of a FriendlyTransformer, ActivationError (gauge.py) beyond its calibrated intervals.
    """
    final_norm(backbone)
    if len(images) == 0:
        raise ValueError("the outputs of blocks were asked for of no images; at least one is needed")
    device = next(backbone.parameters()).device
    # The polynomial of a friendly model's final norm is not used, so that it must not refuse what is beyond it.
    run = backbone.through_blocks if isinstance(backbone, FriendlyTransformer) else backbone
    with _evaluating(backbone), noted(backbone) as seen:
        parts = []
        for batch in torch.split(images, batch_size):
            seen.clear()
            run(batch.to(device))
            parts.append(torch.stack(seen).to(images.device, torch.float32))
    return torch.cat(parts, dim=1)


def final_norm(backbone: nn.Module) -> FinalNorm:
    """The norm between the last block and the head, with float32 copies of its weights. That of a FriendlyTransformer
    is taken as LayerNorm itself: its polynomial is calibrated for b_L, and what adapters add may leave its interval.

    ValueError for a backbone that is neither of both kinds, or whose head does not see the class token through this
    norm alone.
    """
    network: Any = backbone
    if isinstance(backbone, FriendlyTransformer):
        norm: nn.LayerNorm | LayerNorm = network.norm
    elif type(backbone) is not VisionTransformer:
        raise ValueError(
            f"a {type(backbone).__name__} has no adapters; timm's VisionTransformer and a FriendlyTransformer can have"
        )
    else:
        norm = network.norm
        if not (
            network.global_pool == "token" and network.has_class_token and isinstance(network.fc_norm, nn.Identity)
        ):
            raise ValueError(
                f'this VisionTransformer has global_pool = "{network.global_pool}"; adapters need one that '
                'classifies its class token, with global_pool = "token" and no fc_norm'
            )
        if not isinstance(norm, nn.LayerNorm) or norm.weight is None or norm.bias is None:
            raise ValueError(
                f"the final norm of this VisionTransformer is {norm}; adapters need a LayerNorm with weight and bias"
            )
    weight, bias = (tensor.detach().to(torch.float32, copy=True) for tensor in (norm.weight, norm.bias))
    return FinalNorm(weight=weight, bias=bias, epsilon=norm.eps)


@contextmanager
def noted(backbone: Any) -> Iterator[list[torch.Tensor]]:
    """A list to which every block adds its output."""
    seen: list[torch.Tensor] = []
    handles = [
        block.register_forward_hook(lambda _block, _inputs, output: seen.append(output)) for block in backbone.blocks
    ]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    before = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(before)
