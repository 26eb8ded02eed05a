"""The reach of a model is what timm's own model computes on the same images, in float64."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer

from tacit.models.friendly.calibration import calibrate, intervals
from tacit.models.friendly.polynomials import ActivationError
from tacit.models.friendly.transformer import STOCK, FriendlyTransformer, convert
from tests.models.friendly.reaching import reach_of

Named = Iterator[tuple[str, tuple[float, float]]]


def around_zero(*several: torch.Tensor) -> tuple[float, float]:
    largest = max(x.abs().max().item() for x in several)
    return -largest, largest


def ends(x: torch.Tensor) -> tuple[float, float]:
    return x.min().item(), x.max().item()


def of_norm(name: str, norm: Any, x: torch.Tensor) -> Named:
    yield f"{name}.centred", around_zero(x - x.mean(-1, keepdim=True))
    yield f"{name}.variance", ends(x.var(-1, correction=0) + norm.eps)


def of_block(name: str, block: Any, x: torch.Tensor) -> Named:
    first = block.norm1(x)
    heads, width = block.attn.num_heads, x.shape[-1]
    query, key, value = block.attn.qkv(first).unflatten(-1, (3, heads, width // heads)).permute(2, 3, 0, 1, 4)
    key = key - key.mean(-2, keepdim=True)
    products = query @ key.transpose(-1, -2)
    middle = x + block.attn(first)
    yield from of_norm(f"{name}.norm1", block.norm1, x)
    yield from of_norm(f"{name}.norm2", block.norm2, middle)
    for head in range(heads):
        yield f"{name}.attn.queries.{head}", around_zero(query[head].norm(dim=-1))
        yield f"{name}.attn.keys.{head}", around_zero(key[head].norm(dim=-1))
    yield f"{name}.attn.products", around_zero(products)
    yield f"{name}.attn.totals", ends((products / math.sqrt(width // heads)).exp().sum(-1))
    yield f"{name}.attn.value", around_zero(value)
    yield f"{name}.mlp.hidden", around_zero(block.mlp.fc1(block.norm2(middle)))
    yield f"{name}.stream", around_zero(x, middle, block(x))


def test_the_reach_of_a_stock_model(timm_model: VisionTransformer, images: torch.Tensor) -> None:
    network: Any = convert(timm_model, STOCK)
    found = reach_of(network, images)
    assert not intervals(network), "the model stays as it is"
    exact: Any = timm_model.double()
    x = exact._pos_embed(exact.patch_embed(images.double()))
    wanted = {"pixel": around_zero(images), "logits": around_zero(exact(images.double()))}
    for number, block in enumerate(exact.blocks):
        wanted |= of_block(f"blocks.{number}", block, x)
        x = block(x)
    wanted |= of_norm("norm", exact.norm, x[:, 0])
    timm_model.float()
    assert found.keys() == wanted.keys()
    for name, interval in wanted.items():
        assert found[name] == pytest.approx(interval, rel=1e-9), name


def test_a_calibrated_model_says_the_same(friendly: FriendlyTransformer, images: torch.Tensor) -> None:
    done: list[int] = []
    calibrate(friendly.double(), images.double(), margin=1.25, progress=done.append)
    assert intervals(friendly) == reach_of(friendly, images, margin=1.25)
    assert done == [len(images)]


def test_scores_too_large_for_an_exponential_are_refused(
    build: Callable[..., VisionTransformer], images: torch.Tensor
) -> None:
    model = convert(build(), STOCK)
    with torch.no_grad():
        model.get_parameter("blocks.0.attn.qkv.weight").mul_(100)
    with pytest.raises(ActivationError, match=r"blocks\.0\.attn\.totals: a value is not finite; .* or far too large"):
        reach_of(model, images)
