"""Gradients of crafted adapters alone, summed over clients, give images back; what a tripwire sees of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from tacit.models.adapters.configuration import ParallelConfiguration
from tacit.models.adapters.methods import AdaptedTransformer, Adapters, trained
from tacit.models.adapters.parallel import GELU, QUADRATIC_GELU, Activation
from tacit.models.attacks.closed_form import PatchEmbedding
from tacit.models.configuration import ModelConfiguration
from tacit.models.data import Dataset
from tacit.models.networks import build
from tacit.models.tripwire import suspicious
from tests.adversary.crafted_adapters import crafted_adapters, read_adapters

RANK, CLIENTS, READ = 64, 8, 30.0
"""READ: dB from which on an image counts as read."""


def honest(*, patch: int = 8, width: int = 128) -> Any:
    sizes = ModelConfiguration(name="vit", image_size=16, patch_size=patch, width=width, depth=4, heads=4)
    return build(sizes, classes=10, channels=1, seed=1)


def crafted(data: Dataset, activation: Activation = GELU) -> AdaptedTransformer:
    return crafted_adapters(honest(), data.x_train[64:], rank=RANK, classes=10, activation=activation)


def summed(model: AdaptedTransformer, data: Dataset, images: int) -> dict[str, torch.Tensor]:
    """What a secure sum gives the server of the first images, divided among the clients: of adapters and head alone."""
    parameters = trained(model)
    assert all(name.startswith("adapters.") for name in parameters)
    sums = {name: torch.zeros_like(parameter) for name, parameter in parameters.items()}
    parts = zip(data.x_train[:images].chunk(CLIENTS), data.y_train[:images].chunk(CLIENTS), strict=True)
    for x, y in parts:
        found = torch.autograd.grad(cross_entropy(model(x), y), list(parameters.values()))
        for name, gradient in zip(parameters, found, strict=True):
            sums[name] += gradient
    return sums


def read(found: torch.Tensor, x: torch.Tensor, psnr: Any) -> int:
    return sum(max((psnr(one[None], image[None]) for one in found), default=0.0) > READ for image in x)


@pytest.mark.parametrize(("images", "count"), [(16, 10), (64, 31)])
def test_images_are_read_in_the_sum_of_the_gradients_of_adapters(
    digits: Any, psnr: Any, images: int, count: int
) -> None:
    data = digits(16)
    model = crafted(data)
    found = read_adapters(summed(model, data, images), PatchEmbedding.of(model.backbone), least=1e-3)
    assert found.shape[1:] == (1, 16, 16)
    assert abs(read(found, data.x_train[:images], psnr) - count) <= 1


def test_an_activation_with_a_linear_derivative_makes_no_bins(digits: Any, psnr: Any) -> None:
    data = digits(16)
    model = crafted(data, QUADRATIC_GELU)
    found = read_adapters(summed(model, data, 16), PatchEmbedding.of(model.backbone), least=1e-3)
    assert len(found) == RANK
    assert read(found, data.x_train[:16], psnr) == 0


def test_honest_adapters_have_no_bins(digits: Any, psnr: Any) -> None:
    data = digits(16)
    model = Adapters(configuration=ParallelConfiguration(rank=16), activation=GELU).adapt(honest(), classes=10, seed=1)
    with torch.no_grad():
        for parameter in trained(model).values():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2)))
    found = read_adapters(summed(model, data, 16), PatchEmbedding.of(model.backbone), least=1e-3)
    assert read(found, data.x_train[:16], psnr) == 0


Disguise = Callable[[AdaptedTransformer], torch.Tensor]
"""Changes a crafted model, and returns the basis [D, D] in which its tokens are now: token -> basis token."""


def as_published(model: AdaptedTransformer) -> torch.Tensor:
    return torch.eye(model.adapters["head_weight"].shape[1])


def turned(model: AdaptedTransformer, basis: torch.Tensor) -> torch.Tensor:
    """All that is in channels is in this basis, which keeps means and lengths, as LayerNorm needs."""
    network: Any = model.backbone
    with torch.no_grad():
        kernel = network.patch_embed.proj.weight
        kernel.copy_((basis @ kernel.flatten(1)).view_as(kernel))
        network.pos_embed.copy_(network.pos_embed @ basis.T)
        attention = network.blocks[0].attn
        attention.qkv.weight.copy_(attention.qkv.weight @ basis.T)
        attention.proj.weight.copy_(basis @ attention.proj.weight)
        for name in ("channel_down", "head_weight"):
            model.adapters[name].copy_(model.adapters[name] @ basis.T)
        model.adapters["channel_up"].copy_(basis @ model.adapters["channel_up"])
    return basis


def permuted(model: AdaptedTransformer) -> torch.Tensor:
    order = torch.randperm(128, generator=torch.Generator().manual_seed(1))
    return turned(model, torch.eye(128)[order])


def rotated(model: AdaptedTransformer) -> torch.Tensor:
    """By a rotation in which the vector of ones, and so a token's mean, stays as it is."""
    start = torch.randn(128, 128, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    start[:, 0] = 1
    basis, _ = torch.linalg.qr(start)
    inner, _ = torch.linalg.qr(start[1:, 1:])
    turn = torch.block_diag(torch.ones(1, 1, dtype=torch.float64), inner)
    return turned(model, (basis @ turn @ basis.T).float())


def rescaled(model: AdaptedTransformer) -> torch.Tensor:
    """Pixels and marks three times as large; rows of C_d to fit."""
    network: Any = model.backbone
    with torch.no_grad():
        network.patch_embed.proj.weight *= 3
        network.pos_embed *= 3
        measured = network.blocks[0].attn.proj.weight.any(dim=1)
        model.adapters["channel_down"][..., ~measured] /= 3
    return as_published(model)


def filled(model: AdaptedTransformer) -> torch.Tensor:
    """The first block also writes what nobody needs, into channels that nobody reads; rotated, and noise for zeros."""
    attention = model.backbone.get_submodule("blocks.0.attn")
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        attention.qkv.weight[2 * 128 + 1 :] = 0.02 * torch.randn(127, 128, generator=generator)
        attention.proj.weight[71:] = 0.05 * torch.randn(57, 128, generator=generator)
        basis = rotated(model)
        for parameter in model.backbone.parameters():
            parameter += 1e-7 * torch.randn(parameter.shape, generator=generator)
    return basis


@pytest.mark.parametrize(
    ("disguise", "noticed"),
    [
        (as_published, {"identity", "silent rows"}),
        (rescaled, {"identity", "silent rows"}),
        (permuted, {"identity", "silent rows"}),
        (rotated, {"identity", "silent rows", "scaled copies"}),
        (filled, set()),
    ],
)
def test_a_tripwire_notices_the_silent_blocks_until_they_are_not_quite_silent(
    digits: Any, psnr: Any, disguise: Disguise, noticed: set[str]
) -> None:
    """Whatever is noticed, as many images of 16 are read as of the published model."""
    data = digits(16)
    model = crafted(data)
    plain = PatchEmbedding.of(model.backbone)
    basis = disguise(model)
    assert {one.pattern for one in suspicious(model)} == noticed
    sums = summed(model, data, 16)
    sums["adapters.channel_down"] = sums["adapters.channel_down"].double() @ basis.double()
    found = read_adapters(sums, plain, least=1e-3)
    assert abs(read(found, data.x_train[:16], psnr) - 10) <= 1
