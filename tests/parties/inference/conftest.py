"""A small calibrated block with its scales, made once."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from tacit.models.configuration import ModelConfiguration
from tacit.models.friendly.blocks import Approximation, Block, with_parameters
from tacit.models.friendly.calibration import calibrate
from tacit.models.friendly.convert import convert
from tacit.models.vision_transformer import build
from tacit.parties.inference.bounds import Bounds, measured
from tacit.parties.inference.scales import Scales, Shape, fitted

WIDTH, HEADS, TOKENS, IMAGES = 16, 2, 5, 3


@dataclass(frozen=True)
class Example:
    block: Block
    x: torch.Tensor
    """float64 [B, T, D]."""
    expected: torch.Tensor
    shape: Shape
    bounds: Bounds
    scales: Scales


@pytest.fixture(scope="session")
def example() -> Example:
    torch.manual_seed(0)
    model = build(
        ModelConfiguration(image_size=8, patch_size=4, width=WIDTH, depth=1, heads=HEADS), classes=3, channels=1, seed=1
    )
    with torch.no_grad():
        for tensor in model.parameters():
            torch.nn.init.normal_(tensor, std=0.4)
        # What all keys have in common: without centring, scores would leave the range of the exponential.
        model.get_parameter("blocks.0.attn.qkv.bias")[WIDTH : 2 * WIDTH] += 20
    friendly = convert(model, Approximation())
    images = torch.randn(20, 1, 8, 8)
    calibrate(friendly, images, margin=1.5)
    friendly.requires_grad_(False)
    block = friendly.blocks[0]
    assert isinstance(block, Block)
    x = friendly.embed(friendly.patches(images))
    bounds = measured(block, x, margin=1.5)
    hidden = block.mlp.fc1.weight.shape[0]
    shape = Shape(images=IMAGES, tokens=TOKENS, width=WIDTH, heads=HEADS, hidden=hidden)
    scales = fitted(shape, bounds, scale=block.attn.scale, degree=6, steps=7, eps=block.norm1.eps)
    x = x[:IMAGES].double()
    expected = with_parameters(block, lambda name, tensor: tensor.double())(x)
    return Example(block, x, expected, shape, bounds, scales)
