"""The reach of a model is what timm's own model computes on the same images, in float64."""

import math
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer

from tacit.models.friendly.calibration import calibrate, intervals
from tacit.models.friendly.polynomials import ActivationError
from tacit.models.friendly.transformer import STOCK, FriendlyTransformer, convert
from tests.models.friendly.reaching import BlockReach, NormReach, reach, reach_of


def largest(x: torch.Tensor) -> float:
    return x.abs().max().item()


def norm_reach(norm: Any, x: torch.Tensor) -> NormReach:
    variance = x.var(-1, correction=0) + norm.eps
    return NormReach(
        centred=largest(x - x.mean(-1, keepdim=True)), variance=(variance.min().item(), variance.max().item())
    )


def block_reach(block: Any, x: torch.Tensor) -> BlockReach:
    first = block.norm1(x)
    heads, width = block.attn.num_heads, x.shape[-1]
    query, key, value = block.attn.qkv(first).unflatten(-1, (3, heads, width // heads)).permute(2, 3, 0, 1, 4)
    key = key - key.mean(-2, keepdim=True)
    scores = query @ key.transpose(-1, -2) / math.sqrt(width // heads)
    totals = scores.exp().sum(-1)
    middle = x + block.attn(first)
    return BlockReach(
        first_norm=norm_reach(block.norm1, x),
        second_norm=norm_reach(block.norm2, middle),
        queries=tuple(query.norm(dim=-1).amax((1, 2)).tolist()),
        keys=tuple(key.norm(dim=-1).amax((1, 2)).tolist()),
        score=largest(scores),
        totals=(totals.min().item(), totals.max().item()),
        value=largest(value),
        hidden=largest(block.mlp.fc1(block.norm2(middle))),
        stream=max(map(largest, (x, middle, block(x)))),
    )


def test_the_reach_of_a_stock_model(timm_model: VisionTransformer, images: torch.Tensor) -> None:
    network: Any = convert(timm_model, STOCK)
    found = reach_of(network, images)
    assert not intervals(network), "the model stays as it is"
    exact: Any = timm_model.double()
    x = exact._pos_embed(exact.patch_embed(images.double()))
    for block, ours in zip(exact.blocks, found.blocks, strict=True):
        wanted = block_reach(block, x)
        x = block(x)
        for part in fields(BlockReach):
            mine, theirs = getattr(ours, part.name), getattr(wanted, part.name)
            if isinstance(mine, NormReach):
                assert (mine.centred, *mine.variance) == pytest.approx((theirs.centred, *theirs.variance), rel=1e-9)
            else:
                assert mine == pytest.approx(theirs, rel=1e-9), part.name
    timm_model.float()
    wanted_norm = norm_reach(exact.norm, x[:, 0])
    assert (found.norm.centred, *found.norm.variance) == pytest.approx(
        (wanted_norm.centred, *wanted_norm.variance), rel=1e-6
    )
    assert found.pixel == largest(images)
    assert found.logits == pytest.approx(largest(timm_model(images)), rel=1e-5)
    assert all(block.totals.low >= network.size[0] for block in found.blocks)


def test_the_margin_widens_it(friendly: FriendlyTransformer, images: torch.Tensor) -> None:
    tight, wide = reach_of(friendly, images), reach_of(friendly, images, margin=2.0)
    for ours, theirs in zip(tight.blocks, wide.blocks, strict=True):
        assert theirs.queries == pytest.approx([2 * norm for norm in ours.queries])
        assert theirs.first_norm.variance == pytest.approx(
            (ours.first_norm.variance.low / 2, 2 * ours.first_norm.variance.high)
        )
    assert wide.pixel == 2 * tight.pixel


def test_a_calibrated_model_says_the_same(friendly: FriendlyTransformer, images: torch.Tensor) -> None:
    done: list[int] = []
    calibrate(friendly.double(), images.double(), margin=1.25, progress=done.append)
    assert reach(friendly) == reach_of(friendly, images, margin=1.25)
    assert done == [len(images)]


def test_a_model_that_was_not_calibrated_has_none(timm_model: VisionTransformer) -> None:
    with pytest.raises(ValueError, match="pixel: the model is not calibrated there; calibrate it in the clear"):
        reach(convert(timm_model, STOCK))


def test_scores_too_large_for_an_exponential_are_refused(
    build: Callable[..., VisionTransformer], images: torch.Tensor
) -> None:
    model = convert(build(), STOCK)
    with torch.no_grad():
        model.get_parameter("blocks.0.attn.qkv.weight").mul_(100)
    with pytest.raises(ActivationError, match=r"blocks\.0\.attn\.totals: a value is not finite; .* or far too large"):
        reach_of(model, images)
