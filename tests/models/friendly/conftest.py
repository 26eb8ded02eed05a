"""Small vision transformers of timm, with weights large enough that everything in them matters."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer

from tacit.models.friendly.calibration import calibrate
from tacit.models.friendly.transformer import Approximation, FriendlyTransformer, convert

SIZES = {
    "img_size": 8,
    "patch_size": 4,
    "in_chans": 2,
    "num_classes": 3,
    "embed_dim": 16,
    "depth": 2,
    "num_heads": 2,
    "mlp_ratio": 2.0,
}


@pytest.fixture(scope="session")
def build() -> Callable[..., VisionTransformer]:
    """build(option=...): a model of 4 patches with these options of timm, a VisionTransformer or another kind."""

    def build(kind: type[VisionTransformer] = VisionTransformer, **options: Any) -> VisionTransformer:
        with torch.random.fork_rng():
            torch.manual_seed(1)
            model = kind(**{**SIZES, **options})
            for parameter in model.parameters():
                torch.nn.init.normal_(parameter, std=0.25)
        return model.eval()

    return build


@pytest.fixture(scope="session")
def timm_model(build: Callable[..., VisionTransformer]) -> VisionTransformer:
    return build()


@pytest.fixture(scope="session")
def images() -> torch.Tensor:
    return torch.randn(12, 2, 8, 8, generator=torch.Generator().manual_seed(2))


@pytest.fixture
def friendly(timm_model: VisionTransformer, images: torch.Tensor) -> FriendlyTransformer:
    model = convert(timm_model, Approximation())
    calibrate(model, images, margin=1.5)
    return model
