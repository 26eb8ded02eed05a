"""Sizes of a small backbone, and parameters and outputs of blocks in which everything matters."""

import pytest
import torch

from tacit.models.adapters.configuration import ParallelConfiguration
from tacit.models.adapters.parallel import AdapterParameters, FinalNorm, each, initial

BLOCKS, IMAGES, TOKENS, WIDTH, CLASSES, RANK = 3, 4, 5, 8, 3, 2


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(1)


@pytest.fixture
def start() -> AdapterParameters:
    """What training begins with."""
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
