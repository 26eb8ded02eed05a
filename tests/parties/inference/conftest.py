"""Small calibrated transformers with their scales, made once."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from sklearn.datasets import load_digits

from tacit.models.configuration import ModelConfiguration
from tacit.models.friendly.calibration import calibrate
from tacit.models.friendly.transformer import STOCK, Approximation, Block, FriendlyTransformer, convert, with_parameters
from tacit.models.networks import build
from tacit.parties.inference.model import FittedModel, PublicModel, fitted_model
from tacit.parties.inference.private_model import PrivateModel, prepared_model
from tacit.parties.inference.scales import Scales, Shape

MARGIN = 1.5


@dataclass(frozen=True)
class Transformer:
    """A calibrated transformer with large random weights, and typical images."""

    friendly: FriendlyTransformer
    fitted: FittedModel
    images: torch.Tensor
    """float32 [20, C, S, S], which it was calibrated on."""

    @property
    def public(self) -> PublicModel:
        return self.fitted.public

    def exact(self) -> FriendlyTransformer:
        """In float64."""
        return with_parameters(self.friendly, lambda name, tensor: tensor.double())


def transformer(
    sizes: ModelConfiguration,
    *,
    classes: int,
    images: torch.Tensor,
    std: float,
    approximation: Approximation | None = None,
    sharper: float = 1.0,
    offsets: float = 1.0,
) -> Transformer:
    """std: of the weights; sharper: by which queries and keys are multiplied; offsets: the same of the class token and
    of positions, lest variances of blank patches be too far below others for a table. None: polynomials."""
    width, channels = sizes.width, images.shape[1]
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        model = build(sizes, classes=classes, channels=channels, seed=1)
        for tensor in model.parameters():
            torch.nn.init.normal_(tensor, std=std)
    with torch.no_grad():
        for index in range(sizes.depth):
            model.get_parameter(f"blocks.{index}.attn.qkv.weight")[: 2 * width] *= sharper
        model.get_parameter("cls_token").mul_(offsets)
        model.get_parameter("pos_embed").mul_(offsets)
        # What all keys have in common: without centring, scores would leave the range of the exponential.
        model.get_parameter("blocks.0.attn.qkv.bias")[width : 2 * width] += 20
    friendly = convert(model, approximation or Approximation())
    calibrate(friendly, images, margin=MARGIN)
    friendly.requires_grad_(False)
    return Transformer(friendly, fitted_model(friendly, images, margin=MARGIN), images)


SMALL = ModelConfiguration(image_size=8, patch_size=4, width=16, depth=1, heads=2)
NOISE = torch.randn(20, 1, 8, 8, generator=torch.Generator().manual_seed(2))


@pytest.fixture(scope="session")
def one_block() -> Transformer:
    return transformer(SMALL, classes=3, images=NOISE, std=0.4)


@pytest.fixture(scope="session")
def stock_block() -> Transformer:
    return transformer(SMALL, classes=3, images=NOISE, std=0.4, approximation=STOCK)


@pytest.fixture(scope="session")
def squared_block() -> Transformer:
    """The same with a softmax that squares, as scores are large."""
    found = transformer(SMALL, classes=3, images=NOISE, std=0.4, approximation=STOCK, sharper=2.5)
    assert found.public.sizes.form(0).squarings
    return found


@pytest.fixture(scope="session")
def private(one_block: Transformer) -> PrivateModel:
    """`one_block` as its owner holds it."""
    return prepared_model(one_block.friendly, one_block.images, margin=MARGIN)


STUDENT = ModelConfiguration(image_size=32, patch_size=8, width=32, depth=2, heads=4)


def digits() -> torch.Tensor:
    found = torch.from_numpy(load_digits().images[:20]).float()[:, None] / 8 - 1
    return torch.nn.functional.interpolate(found, size=32).expand(-1, 3, -1, -1)


@pytest.fixture(scope="session")
def student() -> Transformer:
    """Of the size of a student distilled on digits, on digits."""
    return transformer(STUDENT, classes=10, images=digits(), std=0.15, offsets=4.0)


@pytest.fixture(scope="session")
def stock() -> Transformer:
    """The same with the functions themselves, as it may have been trained."""
    return transformer(STUDENT, classes=10, images=digits(), std=0.15, offsets=4.0, approximation=STOCK)


@dataclass(frozen=True)
class Example:
    block: Block
    fitted: FittedModel
    x: torch.Tensor
    """float64 [B, T, D], every token less its mean."""
    expected: torch.Tensor
    """The same of what the block makes of it."""
    shape: Shape

    @property
    def public(self) -> PublicModel:
        return self.fitted.public

    @property
    def scales(self) -> Scales:
        return self.public.blocks[0]


def example_of(model: Transformer) -> Example:
    block = model.friendly.blocks[0]
    assert isinstance(block, Block)
    x = model.exact().embed(model.friendly.patches(model.images[:3].double()))
    expected = with_parameters(block, lambda name, tensor: tensor.double())(x)
    # The residual stream on shares is centred, which LayerNorm does not see.
    x, expected = (values - values.mean(-1, keepdim=True) for values in (x, expected))
    return Example(block, model.fitted, x, expected, model.public.shape(3))


@pytest.fixture(scope="session", params=["one_block", "stock_block", "squared_block"])
def example(request: pytest.FixtureRequest) -> Example:
    return example_of(request.getfixturevalue(request.param))
