"""Random binary weights: missing entries are solved for, and rounds add up."""

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from tacit.models.attacks.binary import MaskedGradients, alternating, pooled
from tacit.models.model_encryption import PATCH_EMBEDDING, POSITION_EMBEDDING

Photograph = Callable[[int], torch.Tensor]
Sent = Callable[[nn.Module, torch.Tensor, torch.Tensor], dict[str, torch.Tensor]]
Masked = Callable[[float, int], list[MaskedGradients]]


@pytest.fixture
def pixels(photograph: Photograph) -> torch.Tensor:
    return nn.functional.unfold(photograph(16).double(), 4, stride=4)[0].T


@pytest.fixture
def masked(photograph: Photograph, sent: Sent) -> Masked:
    """Gradients of one image in so many rounds, zero with a probability."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = VisionTransformer(img_size=16, patch_size=4, embed_dim=48, depth=2, num_heads=4, num_classes=10)
    gradients = sent(model, photograph(16), torch.tensor([3]))
    kernel, positions = gradients[PATCH_EMBEDDING].flatten(1), gradients[POSITION_EMBEDDING][0, 1:]

    def make(zero: float, rounds: int) -> list[MaskedGradients]:
        random = torch.Generator().manual_seed(5)

        def some(tensor: torch.Tensor) -> torch.Tensor:
            return tensor * (torch.rand(tensor.shape, generator=random) >= zero)

        return [MaskedGradients(kernel=some(kernel), positions=some(positions)) for _ in range(rounds)]

    return make


def closed_form(round: MaskedGradients) -> torch.Tensor:
    """The pixels of the patches, float64 [N, L], if zeros were no masks: Sawada et al. 2024."""
    solution: torch.Tensor = torch.linalg.lstsq(
        round.positions.double().T, round.kernel.double(), driver="gelsd"
    ).solution
    return solution


def correlation(found: torch.Tensor, true: torch.Tensor) -> float:
    return float(torch.corrcoef(torch.stack([found.flatten(), true.flatten()]))[0, 1])


def test_without_zeros_both_are_the_closed_form(masked: Masked, pixels: torch.Tensor) -> None:
    (one,) = masked(0.0, 1)
    for found in (closed_form(one), alternating([one], sweeps=1)):
        assert correlation(found, pixels) > 0.9999


@pytest.mark.parametrize(("zero", "naive", "adaptive"), [(0.05, 0.35, 0.5), (0.2, 0.3, 0.35)])
def test_who_knows_what_is_missing_sees_more(
    masked: Masked, pixels: torch.Tensor, zero: float, naive: float, adaptive: float
) -> None:
    # Measured: 0.31 and 0.59 for one in twenty, 0.23 and 0.45 for one in five.
    rounds = masked(zero, 1)
    misfits: list[float] = []
    found = alternating(rounds, progress=lambda sweep, misfit: misfits.append(misfit))
    assert correlation(closed_form(rounds[0]), pixels) < naive
    assert correlation(found, pixels) > adaptive
    # Each half of a sweep solves its least squares, so that the misfit never grows but by the ridge.
    assert len(misfits) == 12
    assert all(later <= earlier * 1.001 for earlier, later in pairwise(misfits))


def test_rounds_with_the_same_gradients_fill_the_gaps(masked: Masked, pixels: torch.Tensor) -> None:
    rounds = masked(0.2, 4)
    whole = pooled(rounds)
    for one in rounds:
        there = one.kernel != 0
        # Up to four numbers that are equal are added and divided: two roundings.
        assert torch.allclose(whole.kernel[there], one.kernel[there], rtol=2**-22, atol=0.0)
    # Of 0.2^4 = 0.16 % of the entries nothing is known, and these are solved for.
    assert correlation(alternating([whole]), pixels) > 0.99
    assert correlation(alternating(rounds), pixels) > correlation(closed_form(rounds[0]), pixels)
