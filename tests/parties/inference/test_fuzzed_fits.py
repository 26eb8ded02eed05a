"""Models with weights and images of all kinds: what is answered is right, and everything else is refused.

All groups together fit 100 models, and ask each about 20 images."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest
import timm
import torch

from tacit.models.friendly.transformer import STOCK, convert, with_parameters
from tacit.parties.inference.model import FittedModel, fitted_model
from tacit.parties.inference.operations import DATA
from tacit.parties.inference.ranking import logits
from tacit.parties.inference.tables import BoundError
from tacit.parties.inference.waves import FitError
from tacit.protocol.inference.schedule import LOGITS
from tests.parties.inference.in_memory import Pass

GROUPS: Final = 10
MODELS: Final = 10
"""Of a group, fitted."""
IMAGES: Final = 20
SIDE: Final = 16
WRONG: Final = 3e-2
"""Relative error of logits. The tolerances of a block (docs/inference.md, Accuracy) come to 1e-2 at most where values
are as spread as here, and no model has over three blocks; one value that wrapped changes logits by far more."""


def model(generator: torch.Generator, number: int) -> Any:
    """Heavy tails, large offsets, a class token next to zero, one massive channel: each in some models."""
    tail, gain = (0.0, 1.0, 2.0)[number // 3 % 3], (0.5, 1.0, 1.5, 2.0)[number // 9 % 4]
    found = timm.create_model(
        "vit_tiny_patch16_224", img_size=SIDE, patch_size=4, embed_dim=32, num_heads=2, depth=1 + number % 3,
        num_classes=10,
    ).eval()  # fmt: skip
    found.cls_token.normal_(std=(1e-6, 0.5)[number % 2], generator=generator)
    for name, parameter in found.named_parameters():
        draws = torch.randn(parameter.shape, generator=generator)
        if parameter.dim() == 2:
            rows = torch.exp(tail * 0.5 * torch.randn(len(parameter), 1, generator=generator))
            parameter.copy_(draws * gain / parameter.shape[1] ** 0.5 * rows)
        elif "norm" in name and name.endswith("weight"):
            parameter.copy_(torch.exp(tail * 0.7 * draws))
        elif name.endswith("bias"):
            parameter.copy_(draws * 0.2 * (1 + tail))
    if number % 7 == 0:
        found.blocks[0].mlp.fc2.bias[3] += 200.0
    return found


def typical(generator: torch.Generator, number: int) -> torch.Tensor:
    return torch.randn(number, 3, SIDE, SIDE, generator=generator).clamp(-2.5, 2.5)


def images(generator: torch.Generator, stock: Any, limit: float) -> Iterator[torch.Tensor]:
    """Typical ones, brighter and darker ones, those at the limit, and those that ascend the largest score."""
    yield from typical(generator, 7)
    for factor in (0.02, 0.3, 1.4, 1.4):
        yield (typical(generator, 1)[0] * factor).clamp(-limit, limit)
    yield torch.full((3, SIDE, SIDE), limit)
    yield torch.full((3, SIDE, SIDE), -limit)
    for _ in range(2):
        yield torch.sign(torch.randn(3, SIDE, SIDE, generator=generator)) * limit
    patch = torch.zeros(3, SIDE, SIDE)
    patch[:, 4:8, 4:8] = limit
    yield patch
    direction = torch.linalg.svd(stock.patch_embed.proj.weight.flatten(1))[2][0].reshape(3, 4, 4)
    yield (direction / direction.abs().max() * limit).repeat(1, 4, 4)
    for _ in range(3):
        yield ascended(stock, torch.randn(1, 3, SIDE, SIDE, generator=generator) * 0.5, limit)


def ascended(stock: Any, image: torch.Tensor, limit: float) -> torch.Tensor:
    attention = stock.blocks[-1].attn
    for _ in range(15):
        with torch.enable_grad():
            image.requires_grad_(True)
            hidden = stock._pos_embed(stock.patch_embed(image))
            for block in stock.blocks[:-1]:
                hidden = block(hidden)
            joint = attention.qkv(stock.blocks[-1].norm1(hidden))
            query, key, _ = joint.reshape(1, 17, 3, 2, 16).permute(2, 0, 3, 1, 4)
            largest = (query @ (key - key.mean(2, keepdim=True)).transpose(2, 3)).max()
            (gradient,) = torch.autograd.grad(largest, image)
        image = (image.detach() + gradient.sign() * 0.15).clamp(-limit, limit)
    return image[0]


def fitted_models(generator: torch.Generator, group: int) -> Iterator[tuple[Any, FittedModel]]:
    found, number = 0, group * 1000
    while found < MODELS:
        stock = model(generator, number)
        number += 1
        try:
            fitted = fitted_model(convert(stock, STOCK), typical(generator, 64), margin=1.5)
        except (BoundError, FitError):  # It is refused, by a name; another one then.
            continue
        found += 1
        yield stock, fitted


@pytest.mark.exhaustive
@pytest.mark.parametrize("group", range(GROUPS))
@torch.no_grad()
def test_no_answer_is_wrong_unseen(group: int) -> None:
    generator = torch.Generator().manual_seed(group)
    errors, refused = [], 0
    for stock, fitted in fitted_models(generator, group):
        friendly = convert(stock, STOCK)
        exact = with_parameters(friendly, lambda _, tensor: tensor.double())
        for image in images(generator, stock, fitted.public.embedding.largest):
            run = Pass(friendly, fitted, image[None].float())
            if not run.finish():
                refused += 1
                continue
            expected, found = exact(image[None].double()), logits(run.shares[DATA], LOGITS)
            errors.append(((found - expected).norm() / expected.norm()).item())
    assert len(errors) + refused == MODELS * IMAGES
    print(f"group {group}: {len(errors)} answered, {refused} refused, largest error {max(errors):.1e}")
    assert max(errors) < WRONG
