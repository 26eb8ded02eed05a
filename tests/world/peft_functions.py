"""A model of timm's with LoRA by the package peft, as its users write it, and data and training for it."""

from __future__ import annotations

import peft
import timm
import torch
from torch import nn
from torch.nn.functional import cross_entropy

CLASSES, SIZE, RANK = 3, 32, 2
Data = tuple[torch.Tensor, torch.Tensor]


def vit() -> nn.Module:
    """Timm's model for tests, its attention adapted, and a head that is trained."""
    plain = timm.create_model("test_vit", num_classes=CLASSES, img_size=SIZE)
    adapted: nn.Module = peft.get_peft_model(
        plain, peft.LoraConfig(r=RANK, target_modules=["qkv"], modules_to_save=["head"])
    )
    return adapted


def images(client: int, clients: int) -> Data:
    generator = torch.Generator().manual_seed(client)
    labels = torch.arange(24) % CLASSES
    noise = torch.randn(24, 3, SIZE, SIZE, generator=generator)
    return noise + labels[:, None, None, None] - 1.0, labels


def step(model: nn.Module, data: Data) -> None:
    optimizer = torch.optim.AdamW((one for one in model.parameters() if one.requires_grad), lr=1e-2)
    for _ in range(4):
        optimizer.zero_grad()
        torch.autograd.backward(cross_entropy(model(data[0]), data[1]))
        optimizer.step()
