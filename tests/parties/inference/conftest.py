"""Small calibrated transformers with their scales, made once."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from sklearn.datasets import load_digits

from tacit.models.configuration import ModelConfiguration
from tacit.models.friendly.blocks import Approximation, Block, with_parameters
from tacit.models.friendly.calibration import calibrate
from tacit.models.friendly.convert import convert
from tacit.models.friendly.transformer import FriendlyTransformer
from tacit.models.vision_transformer import build
from tacit.parties.inference.model import PublicModel, fitted_model
from tacit.parties.inference.private_model import PrivateModel, prepared_model
from tacit.parties.inference.scales import Bounds, Scales, Shape, measured


@dataclass(frozen=True)
class Transformer:
    """A calibrated transformer with large random weights, and images of two kinds."""

    friendly: FriendlyTransformer
    public: PublicModel
    images: torch.Tensor
    """float32 [20, C, S, S], which it was calibrated on."""

    def exact(self) -> FriendlyTransformer:
        """In float64."""
        return with_parameters(self.friendly, lambda name, tensor: tensor.double())


def transformer(sizes: ModelConfiguration, *, classes: int, images: torch.Tensor, std: float) -> Transformer:
    width, channels = sizes.width, images.shape[1]
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        model = build(sizes, classes=classes, channels=channels, seed=1)
        for tensor in model.parameters():
            torch.nn.init.normal_(tensor, std=std)
    with torch.no_grad():
        # What all keys have in common: without centring, scores would leave the range of the exponential.
        model.get_parameter("blocks.0.attn.qkv.bias")[width : 2 * width] += 20
    friendly = convert(model, Approximation())
    calibrate(friendly, images, margin=1.5)
    friendly.requires_grad_(False)
    return Transformer(friendly, fitted_model(friendly, images, margin=1.5), images)


@pytest.fixture(scope="session")
def one_block() -> Transformer:
    """One block, on noise."""
    sizes = ModelConfiguration(image_size=8, patch_size=4, width=16, depth=1, heads=2)
    noise = torch.randn(20, 1, 8, 8, generator=torch.Generator().manual_seed(2))
    return transformer(sizes, classes=3, images=noise, std=0.4)


@pytest.fixture(scope="session")
def private(one_block: Transformer) -> PrivateModel:
    """`one_block` as its owner holds it."""
    return prepared_model(one_block.friendly, one_block.images, margin=1.5)


@pytest.fixture(scope="session")
def student() -> Transformer:
    """Of the size of a student distilled on digits, on digits."""
    sizes = ModelConfiguration(image_size=32, patch_size=8, width=32, depth=2, heads=4)
    digits = torch.from_numpy(load_digits().images[:20]).float()[:, None] / 8 - 1
    images = torch.nn.functional.interpolate(digits, size=32).expand(-1, 3, -1, -1)
    return transformer(sizes, classes=10, images=images, std=0.15)


@dataclass(frozen=True)
class Example:
    """The block of `one_block`."""

    block: Block
    public: PublicModel
    x: torch.Tensor
    """float64 [B, T, D]."""
    expected: torch.Tensor
    shape: Shape
    bounds: Bounds
    scales: Scales


@pytest.fixture(scope="session")
def example(one_block: Transformer) -> Example:
    friendly = one_block.friendly
    block = friendly.blocks[0]
    assert isinstance(block, Block)
    x = friendly.embed(friendly.patches(one_block.images))
    bounds = measured(block, x, margin=1.5)
    shape = one_block.public.shape(3)
    x = x[:3].double()
    expected = with_parameters(block, lambda name, tensor: tensor.double())(x)
    return Example(block, one_block.public, x, expected, shape, bounds, one_block.public.blocks[0])
