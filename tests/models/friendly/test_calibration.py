"""Intervals are found in the clear, kept, and guarded: what is beyond them, or no number, is refused by name."""

import math
from typing import Any

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer

from tacit.models.friendly.calibration import calibrate, error_bounds, fix_intervals, intervals
from tacit.models.friendly.polynomials import ActivationError, Gauge, Interval
from tacit.models.friendly.transformer import Approximation, FriendlyTransformer, convert


def test_intervals_hold_what_was_seen_and_the_margin_widens_them(
    timm_model: VisionTransformer, images: torch.Tensor
) -> None:
    model = convert(timm_model, Approximation())
    calibrate(model, images, margin=1.0)
    tight = intervals(model)
    assert torch.isfinite(model(images)).all(), "what was seen is within"
    seen = {part.name: part for part in model.modules() if isinstance(part, Gauge)}
    values: dict[str, Any] = {}
    for name, gauge in seen.items():
        gauge.register_forward_pre_hook(lambda part, inputs, name=name: values.setdefault(name, inputs[0]))
    model(images)
    for name in ("blocks.0.attn.products", "blocks.1.attn.totals"):
        low, high = values[name].min().item(), values[name].max().item()
        assert tight[name] == ((low, high) if seen[name].positive else (-max(-low, high), max(-low, high)))
    calibrate(model, images, margin=2.0)
    for name, (low, high) in intervals(model).items():
        assert high == pytest.approx(2 * tight[name].high)
        assert low == pytest.approx(tight[name].low / 2 if seen[name].positive else 2 * tight[name].low)


def test_what_is_beyond_an_interval_is_refused_by_name(friendly: FriendlyTransformer, images: torch.Tensor) -> None:
    bounds = error_bounds(friendly)
    assert len(bounds) == 9, "four of each block, and the last norm"
    for name, interval in ((bound.name, bound.interval) for bound in bounds):
        fix_intervals(friendly, {name: Interval(interval.low, interval.low + (interval.high - interval.low) / 1e3)})
        with pytest.raises(ActivationError, match=f"^{name}: values from .* are beyond the calibrated interval from"):
            friendly(images)
        fix_intervals(friendly, {name: interval})
    assert torch.isfinite(friendly(images)).all()


def test_in_training_each_batch_has_its_own_interval(friendly: FriendlyTransformer, images: torch.Tensor) -> None:
    before = intervals(friendly)
    friendly.train()
    assert torch.isfinite(friendly(100 * images)).all()
    assert intervals(friendly) == before
    friendly.eval()
    with pytest.raises(ActivationError, match="beyond the calibrated interval"):
        friendly(100 * images)


def test_a_model_that_was_not_calibrated_is_refused(timm_model: VisionTransformer, images: torch.Tensor) -> None:
    with pytest.raises(ActivationError, match=r"^blocks\.0\.norm1\.variance: the model is not calibrated"):
        convert(timm_model, Approximation()).eval()(images)


@pytest.mark.parametrize("training", [False, True])
def test_weights_that_are_not_finite_are_refused(
    friendly: FriendlyTransformer, images: torch.Tensor, training: bool
) -> None:
    friendly.train(training)
    with torch.no_grad():
        friendly.get_parameter("blocks.0.attn.qkv.weight")[3, 5] = math.nan
    with pytest.raises(ActivationError, match=r"^blocks\.0\.attn\.products: a value is not finite"):
        friendly(images)


def test_a_negative_sum_of_exponentials_is_refused(timm_model: VisionTransformer, images: torch.Tensor) -> None:
    model = convert(timm_model, Approximation(softmax_degree=3))
    with torch.no_grad():
        model.get_parameter("blocks.0.attn.qkv.weight").mul_(10)
    with pytest.raises(ActivationError, match=r"attn\.totals: a value of -.* must be positive .* take an even one"):
        calibrate(model, images, margin=1.5)


def test_error_bounds_name_every_polynomial(friendly: FriendlyTransformer) -> None:
    bounds = error_bounds(friendly)
    binding = {part.name for part in friendly.modules() if isinstance(part, Gauge) and part.binding}
    assert {bound.name for bound in bounds} == binding < set(intervals(friendly))
    assert all(bound.interval == intervals(friendly)[bound.name] for bound in bounds)
    assert all(bound.error >= 0 for bound in bounds), "one that has converged to the last digit is zero"
    assert all(bound.error > 0 for bound in bounds if bound.name.startswith("blocks."))
