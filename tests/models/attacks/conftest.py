"""What an attacker is given, computed as a client computes it, and how far its images are from those it was after."""

from collections.abc import Callable, Mapping
from functools import cache

import numpy as np
import pytest
import timm
import torch
from sklearn.datasets import load_sample_image
from timm.models.vision_transformer import VisionTransformer
from torch import nn
from torch.nn.functional import cross_entropy, interpolate

from tacit.models.configuration import DataConfiguration
from tacit.models.data import Dataset, load
from tacit.models.layout import Layout
from tacit.models.training import gradient
from tacit.simulate.audit.limits import opened_alone

Gradients = dict[str, torch.Tensor]
MEAN, STD = 0.5, 0.25
"""By which the photograph is normalised."""


@pytest.fixture(scope="session")
def digits() -> Callable[[int], Dataset]:
    return cache(lambda size: load(DataConfiguration(), image_size=size))


@pytest.fixture(scope="session")
def small_vit() -> Callable[..., VisionTransformer]:
    """small_vit(option=...): for digits of 16 x 16 pixels in 16 patches, with these options of timm."""

    def build(**options: object) -> VisionTransformer:
        sizes = {"img_size": 16, "patch_size": 4, "in_chans": 1, "embed_dim": 32, "depth": 2, "num_heads": 4}
        with torch.random.fork_rng():
            torch.manual_seed(1)
            return VisionTransformer(**{**sizes, "num_classes": 10, **options}).eval()

    return build


@pytest.fixture(scope="session")
def stock_vit() -> VisionTransformer:
    """timm's vit_small_patch16_224 with random weights, for ten classes: nothing may change it."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return timm.create_model("vit_small_patch16_224", num_classes=10).eval()


@pytest.fixture(scope="session")
def upsampled(digits: Callable[[int], Dataset]) -> tuple[torch.Tensor, torch.Tensor]:
    """Eight digits at 224 x 224 pixels in three channels, float32 [8, 3, 224, 224], and their labels."""
    found = digits(224)
    x = found.normalised(found.source.train.images, np.arange(8))
    return x.repeat(1, 3, 1, 1), found.y_train[:8]


@pytest.fixture(scope="session")
def sent() -> Callable[..., Gradients]:
    """sent(model, x, y): the float32 gradients of a client by name."""

    def compute(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Gradients:
        flat, _ = gradient(model, x, y, batch_size=len(x), device=torch.device("cpu"))
        return {
            name: torch.from_numpy(part) for name, part in Layout.summed(model, buffers="fixed").split(flat).items()
        }

    return compute


@pytest.fixture(scope="session")
def exact() -> Callable[..., Gradients]:
    """exact(model, x, y): the gradients in float64, of a model in float64."""

    def compute(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Gradients:
        parameters = dict(model.named_parameters())
        loss = cross_entropy(model(x.double()), y)
        return dict(zip(parameters, torch.autograd.grad(loss, list(parameters.values())), strict=True))

    return compute


@pytest.fixture(scope="session")
def decoded() -> Callable[..., Gradients]:
    """decoded(tensors, clip, bits): what the secure sum of one client makes of them."""

    def send(tensors: Mapping[str, torch.Tensor], clip: float, bits: int) -> Gradients:
        sizes = tuple(tensor.numel() for tensor in tensors.values())
        flat = np.concatenate([tensor.numpy().ravel() for tensor in tensors.values()])
        parts = torch.from_numpy(opened_alone(flat, sizes, clip=clip, bits=bits)).split(sizes)
        return {name: part.view_as(tensors[name]) for name, part in zip(tensors, parts, strict=True)}

    return send


@pytest.fixture(scope="session")
def psnr() -> Callable[[torch.Tensor, torch.Tensor], float]:
    """psnr(found, true): dB for images of the same shape, by the true one's range of values."""

    def measure(found: torch.Tensor, true: torch.Tensor) -> float:
        assert found.shape == true.shape
        span = float(true.max() - true.min())
        return float(10 * torch.log10(span**2 / (found.double() - true.double()).square().mean()))

    return measure


@pytest.fixture
def photograph() -> Callable[[int], torch.Tensor]:
    """Normalised [1, 3, S, S] for a size S."""

    def make(size: int) -> torch.Tensor:
        pixels = torch.tensor(load_sample_image("china.jpg")).permute(2, 0, 1)[None, :, 13:413, 120:520] / 255
        return (interpolate(pixels, size=(size, size), mode="area") - MEAN) / STD

    return make
