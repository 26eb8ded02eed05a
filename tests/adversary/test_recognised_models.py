"""Whether the terms of private inference tell which public checkpoint a model was tuned from: among which it is, not to
the last bit."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any, Final

import pytest
import timm
import torch

from tacit.models.friendly.transformer import STOCK, convert
from tacit.parties.inference.model import PublicModel, fitted_model

SIZES: Final[dict[str, Any]] = {
    "img_size": 16, "patch_size": 4, "embed_dim": 32, "num_heads": 2, "depth": 1, "num_classes": 10
}  # fmt: skip
CANDIDATES: Final = 12
ALIKE: Final = 3
"""Candidates whose weights are as large."""
COPIES: Final = 3
NOISE: Final = 1e-3
"""Relative, of weights: checkpoints of one training that are a few steps apart."""


def checkpoint(seed: int) -> Any:
    torch.manual_seed(seed)
    model = timm.create_model("vit_tiny_patch16_224", **SIZES).eval()
    torch.nn.init.normal_(model.cls_token, std=0.5)
    return model


def noisy(model: Any, amount: float, seed: int) -> Any:
    torch.manual_seed(seed)
    found = copy.deepcopy(model)
    for parameter in found.parameters():
        parameter += amount * parameter.square().mean().sqrt() * torch.randn_like(parameter)
    return found


def terms(model: Any, seed: int) -> PublicModel:
    images = torch.randn(48, 3, 16, 16, generator=torch.Generator().manual_seed(seed))
    return fitted_model(convert(model, STOCK), images, margin=1.5).public


def numbers(public: PublicModel) -> Iterator[float]:
    """What of the terms follows from weights and typical values: reals, and how often they are divided."""
    for block in public.blocks:
        yield from (block.query, block.key, block.value, block.mixed, block.hidden)
        yield from (block.first_norm.variance.inverse.scale, block.second_norm.variance.inverse.scale)
        yield 2.0 ** len(block.exponential.cosines)
        assert block.gelu is not None
        yield 2.0 ** len(block.gelu.cosines)


def distance(one: PublicModel, other: PublicModel) -> float:
    return sum(abs(math.log2(a / b)) for a, b in zip(numbers(one), numbers(other), strict=True))


@pytest.mark.threat("data-owner/recognises-checkpoint")
@torch.no_grad()
def test_terms_tell_a_checkpoint_from_others_but_not_from_its_neighbours() -> None:
    public = [checkpoint(seed) for seed in range(CANDIDATES)]
    for number, model in enumerate(public):  # Trained models differ in how large their weights are; here not all do.
        for name, parameter in model.named_parameters():
            if name.endswith(("qkv.weight", "fc1.weight")):
                parameter *= 1 + number // ALIKE / 2
    true = 3
    tuned = copy.deepcopy(public[true])
    for part in (tuned.blocks[0].mlp.fc2, tuned.head):
        for parameter in part.parameters():
            parameter += 0.01 * parameter.square().mean().sqrt() * torch.randn_like(parameter)
    told = terms(tuned, seed=100)
    distances = [distance(told, terms(model, seed=200)) for model in public]
    nearest = sorted(range(CANDIDATES), key=distances.__getitem__)
    # What docs/inference.md publishes. Of its group the right one is not the nearest, whichever order ties are in.
    assert set(nearest[:ALIKE]) == {3, 4, 5}
    assert distances[true] > min(distances)
    copies = [terms(noisy(public[true], NOISE, seed), seed=200) for seed in range(COPIES)]
    assert distances[true] in [distance(told, each) for each in copies]
