"""No input exceeds what the weights permit, and inputs made for it come as close as the linear bounds allow."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from tacit.models.friendly.calibration import block_ceiling, folded, logit_ceiling, token_ceiling
from tacit.models.friendly.transformer import STOCK, Approximation, convert
from tests.models.friendly.reaching import reach_of

QUADRATIC = Approximation(softmax_degree=None, inverse_steps=None)
WIDTH, TOKENS = 16, 5
ROUNDING = 1 + 1e-12
"""Of float64, in sums of some hundred products."""


def network(approximation: Approximation, *, seed: int, spread: float) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = VisionTransformer(
            img_size=8, patch_size=4, in_chans=2, num_classes=3, embed_dim=WIDTH, depth=1, num_heads=2, mlp_ratio=2.0
        )
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=spread)
    return convert(model, approximation).double().eval().requires_grad_(False)


def tokens_of(seed: int, kind: str) -> torch.Tensor:
    """Inputs [8, T, D] of very different forms."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(8, TOKENS, WIDTH, generator=generator, dtype=torch.float64)
    if kind == "large":
        return x * 1e6
    if kind == "one value":
        return x * torch.eye(WIDTH, dtype=torch.float64)[seed % WIDTH] * 1e3
    if kind == "opposite tokens":
        x[:, 1:] = -x[:, :1]
    return x


KINDS = ("normal", "large", "one value", "opposite tokens")


@pytest.mark.parametrize("approximation", [STOCK, QUADRATIC])
@settings(max_examples=40)
@given(
    weights=st.integers(0, 2**32), seed=st.integers(0, 2**32), spread=st.floats(1e-3, 4), kind=st.sampled_from(KINDS)
)
def test_no_input_exceeds_it(approximation: Approximation, weights: int, seed: int, spread: float, kind: str) -> None:
    block: Any = network(approximation, seed=weights, spread=spread).blocks[0]
    ceiling, x = block_ceiling(block, TOKENS), tokens_of(seed, kind)
    query, key, value = block.attn.qkv(block.norm1(x)).unflatten(-1, (3, 2, WIDTH // 2)).permute(2, 0, 3, 1, 4)
    key = key - key.mean(-2, keepdim=True)
    assert bool((query.norm(dim=-1).amax((0, 2)) <= torch.tensor(ceiling.queries) * ROUNDING).all())
    assert bool((key.norm(dim=-1).amax((0, 2)) <= torch.tensor(ceiling.keys) * ROUNDING).all())
    assert (query @ key.mT).abs().max().item() * block.attn.scale <= ceiling.score * ROUNDING
    assert value.abs().max().item() <= ceiling.value * ROUNDING
    added = block.attn(block.norm1(x))
    assert bool((added.abs().amax((0, 1)) <= torch.tensor(ceiling.attention.entries) * ROUNDING).all())
    assert added.norm(dim=-1).max().item() <= ceiling.attention.norm * ROUNDING
    assert block.mlp.fc1(block.norm2(x)).abs().max().item() <= ceiling.hidden * ROUNDING
    added = block.mlp(block.norm2(x))
    assert bool((added.abs().amax((0, 1)) <= torch.tensor(ceiling.mlp.entries) * ROUNDING).all())
    assert added.norm(dim=-1).max().item() <= ceiling.mlp.norm * ROUNDING


def top(matrix: torch.Tensor) -> torch.Tensor:
    """The direction that a matrix stretches most, by power iteration, with the norm of LayerNorm's output."""
    x = torch.ones(matrix.shape[1], dtype=torch.float64) + torch.arange(matrix.shape[1])
    for _ in range(2000):
        x = matrix.T @ (matrix @ x)
        x = x / x.norm()
    return x * math.sqrt(len(x))


@pytest.mark.parametrize("seed", range(5))
def test_linear_bounds_are_attained(seed: int) -> None:
    """By tokens along a row, or a singular vector; they are large, so that epsilon is nothing beside their variance."""
    block: Any = network(STOCK, seed=seed, spread=0.5).blocks[0]
    for part in (block.attn.qkv, block.norm1):  # Queries attain theirs without a bias.
        nn.init.zeros_(part.bias)
    ceiling = block_ceiling(block, TOKENS)
    weight, _ = folded(block.norm1, block.attn.qkv)
    close = pytest.approx
    for head in range(2):
        mine = weight.reshape(3, 2, WIDTH // 2, WIDTH)[:, head]
        query = block.attn.qkv(block.norm1(1e6 * top(mine[0])[None]))[0, :WIDTH].reshape(2, -1)[head]
        assert query.norm().item() == close(ceiling.queries[head], rel=1e-6)
        opposite = 1e6 * top(mine[1]) * torch.tensor([1.0] + [-1.0] * (TOKENS - 1), dtype=torch.float64)[:, None]
        keys = block.attn.qkv(block.norm1(opposite))[:, WIDTH : 2 * WIDTH].reshape(TOKENS, 2, -1)[:, head]
        assert (keys[0] - keys.mean(0)).norm().item() == close(ceiling.keys[head], rel=1e-6)
    rows = weight[2 * WIDTH :]
    values = block.attn.qkv(block.norm1(1e6 * rows))[:, 2 * WIDTH :]
    assert values.diagonal().max().item() == close(ceiling.value, rel=1e-6)
    rows, bias = folded(block.norm2, block.mlp.fc1)
    hidden = block.mlp.fc1(block.norm2(1e6 * rows * bias.sign()[:, None]))
    assert hidden.diagonal().abs().max().item() == close(ceiling.hidden, rel=1e-6)


def test_tokens_and_logits(images: torch.Tensor) -> None:
    model = network(STOCK, seed=3, spread=0.5)
    pixel = images.abs().max().item()
    tokens = model.embed(model.patches(images.double()))
    assert bool((tokens.abs().amax((0, 1)) <= torch.tensor(token_ceiling(model, pixel)) * ROUNDING).all())
    assert model(images.double()).abs().max().item() <= logit_ceiling(model) * ROUNDING
    # The worst image of a value of a token has all its pixels at the limit, with the signs of the weights.
    weight = model.patch_embed.proj.weight
    worst = pixel * weight[7].sign().repeat(1, 2, 2)[None]
    reached = torch.stack([model.embed(model.patches(sign * worst))[..., 7].abs().max() for sign in (1, -1)])
    assert reached.max().item() == pytest.approx(token_ceiling(model, pixel)[7])
    rows, bias = folded(model.norm, model.head)
    logits = model.head(model.norm(1e6 * rows * bias.sign()[:, None]))
    assert logits.diagonal().abs().max().item() == pytest.approx(logit_ceiling(model), rel=1e-6)


def test_what_images_reach_is_below(build: Callable[..., VisionTransformer], images: torch.Tensor) -> None:
    model = convert(build(qkv_bias=False), STOCK)
    found = reach_of(model, images)
    for number, block in enumerate(model.blocks):
        ceiling, name = block_ceiling(block, TOKENS), f"blocks.{number}"
        assert block.attn.scale * found[f"{name}.attn.products"].high <= ceiling.score
        assert found[f"{name}.attn.value"].high <= ceiling.value
        assert found[f"{name}.mlp.hidden"].high <= ceiling.hidden
