"""Small backbones of both kinds, and parameters and outputs of blocks in which everything matters."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from tacit.models.adapters.configuration import ParallelConfiguration
from tacit.models.adapters.parallel import AdapterParameters, FinalNorm, each, initial
from tacit.models.friendly.calibration import calibrate
from tacit.models.friendly.transformer import Approximation, FriendlyTransformer, convert

BLOCKS, IMAGES, TOKENS, WIDTH, CLASSES, RANK = 3, 4, 5, 8, 3, 2


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(1)


@pytest.fixture
def start() -> AdapterParameters:
    sizes = {"blocks": BLOCKS, "tokens": TOKENS, "width": WIDTH, "classes": CLASSES}
    return initial(ParallelConfiguration(rank=RANK), **sizes, seed=2)


@pytest.fixture
def parameters(start: AdapterParameters, generator: torch.Generator) -> AdapterParameters:
    """None of them zero, float64."""
    return each(lambda one: torch.randn(one.shape, generator=generator, dtype=torch.float64) / 2, start)


@pytest.fixture
def norm(generator: torch.Generator) -> FinalNorm:
    weight, bias = torch.randn(2, WIDTH, generator=generator, dtype=torch.float64)
    return FinalNorm(weight=weight, bias=bias, epsilon=1e-6)


@pytest.fixture
def outputs(generator: torch.Generator) -> torch.Tensor:
    """Outputs of all blocks [L, B, T, D], float64."""
    return torch.randn(BLOCKS, IMAGES, TOKENS, WIDTH, generator=generator, dtype=torch.float64)


@pytest.fixture
def labels() -> torch.Tensor:
    return torch.tensor([0, 2, 1, 2])


Vit = Callable[..., VisionTransformer]


@pytest.fixture(scope="session")
def vit() -> Vit:
    """vit(option=...): of 5 tokens, for images of one channel, with these options of timm."""
    sizes = {
        "img_size": 8,
        "patch_size": 4,
        "in_chans": 1,
        "num_classes": 3,
        "embed_dim": 8,
        "depth": 3,
        "num_heads": 2,
    }

    def build(**options: Any) -> VisionTransformer:
        with torch.random.fork_rng():
            torch.manual_seed(1)
            return VisionTransformer(**{**sizes, **options}).eval()

    return build


@pytest.fixture(scope="session")
def images() -> torch.Tensor:
    return torch.randn(5, 1, 8, 8, generator=torch.Generator().manual_seed(3))


@pytest.fixture
def friendly(vit: Vit, images: torch.Tensor) -> FriendlyTransformer:
    model = convert(vit(), Approximation())
    calibrate(model, images, margin=1.5)
    return model.eval()


@pytest.fixture(params=["timm", "friendly"])
def backbone(request: pytest.FixtureRequest, vit: Vit) -> nn.Module:
    return vit() if request.param == "timm" else request.getfixturevalue("friendly")
