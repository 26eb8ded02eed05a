"""A friendly model between a model owner, a data owner and a dealer, each a process, over CURVE on loopback TCP."""

import math

import pytest
import torch
from torch import nn

from tacit.models.configuration import ModelConfiguration
from tacit.models.friendly.calibration import calibrate, fix_intervals, intervals
from tacit.models.friendly.polynomials import Interval
from tacit.models.friendly.transformer import Approximation, FriendlyTransformer, convert, with_parameters
from tacit.models.networks import build
from tacit.parties.crypten.shared_model import check_shareable
from tacit.simulate.bench.inference import infer
from tacit.simulate.federation.processes import ProcessError


@pytest.fixture
def images() -> torch.Tensor:
    return torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(1))


def make(images: torch.Tensor, approximation: Approximation) -> FriendlyTransformer:
    teacher = build(
        ModelConfiguration(image_size=8, patch_size=4, width=16, depth=1, heads=2), classes=3, channels=1, seed=1
    )
    with torch.no_grad():
        for tensor in teacher.parameters():
            nn.init.normal_(tensor, std=0.25, generator=torch.Generator().manual_seed(tensor.numel()))
    model = convert(teacher, approximation)
    calibrate(model, images, margin=1.5)
    return model.requires_grad_(False)


@pytest.fixture
def model(images: torch.Tensor) -> FriendlyTransformer:
    return make(images, Approximation())


TOLERANCE = 3e-4
"""Fixed-point numbers in the clear, rounded at random as those on shares are, were off by 6.6e-5 at most in 20 runs of
this model; four times that is out of reach of chance."""


def test_shares_give_what_plaintext_gives(model: FriendlyTransformer, images: torch.Tensor) -> None:
    exact = with_parameters(model, lambda name, tensor: tensor.double())(images.double())
    done: list[int] = []
    found = infer(model, images, batch=2, check=True, progress=done.append)
    assert ((found.logits - exact).abs() <= TOLERANCE).all()
    assert done == [2, 3]
    assert len(found.seconds) == 2


def test_with_check_a_value_beyond_its_interval_is_refused_on_shares(
    model: FriendlyTransformer, images: torch.Tensor
) -> None:
    low, high = intervals(model)["norm.variance"]
    fix_intervals(model, {"norm.variance": Interval(low, low + (high - low) / 100)})
    with pytest.raises(ProcessError, match=r"ActivationError: norm\.variance: a shared value is beyond"):
        infer(model, images[:1], batch=1, check=True)


def test_models_that_shares_cannot_compute_are_refused(model: FriendlyTransformer, images: torch.Tensor) -> None:
    check_shareable(model)
    exact = make(images, Approximation(inverse_steps=None))
    with pytest.raises(ValueError, match=r"LayerNorm is computed exactly \(steps is None\)"):
        check_shareable(exact)
    with pytest.raises(ValueError, match=r"Attention is computed exactly \(degree is None\)"):
        check_shareable(make(images, Approximation(softmax_degree=None)))
    with pytest.raises(ValueError, match=r"Mlp is computed exactly \(quadratic is False\)"):
        check_shareable(make(images, Approximation(quadratic_gelu=False)))
    fix_intervals(model, {"blocks.0.attn.totals": Interval(1, 5000)})
    with pytest.raises(ValueError, match=r"blocks\.0\.attn\.totals: values up to 5000 are too large for fixed-point"):
        check_shareable(model)
    with pytest.raises(ValueError, match="is not calibrated"):
        check_shareable(convert(exact_teacher(), Approximation()))
    spoiled = make(images, Approximation())
    spoiled.get_parameter("blocks.0.mlp.fc1.bias")[0] = math.inf
    with pytest.raises(ValueError, match=r"blocks\.0\.mlp\.fc1\.bias holds a value that is not finite"):
        check_shareable(spoiled)


def exact_teacher() -> nn.Module:
    return build(
        ModelConfiguration(image_size=8, patch_size=4, width=8, depth=1, heads=2), classes=3, channels=1, seed=1
    )
