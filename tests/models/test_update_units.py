"""The units of updates: running statistics of batch normalisation move as far as they must, and come out usable."""

from __future__ import annotations

import numpy as np
import pytest
from torch import nn

from tacit.models.layout import Flat, Layout
from tacit.models.update_units import MEAN_SPAN, VARIANCE_SPAN, UpdateUnits

LAYOUT = Layout.summed(nn.Sequential(nn.Linear(2, 64), nn.BatchNorm1d(64)))
MEAN, VARIANCE = "1.running_mean", "1.running_var"
CLIP = 0.25
UNITS = UpdateUnits(LAYOUT, CLIP)


def model(seed: int, *, variance: float = 1.0) -> Flat:
    random = np.random.default_rng(seed)
    flat = random.normal(size=LAYOUT.size).astype(np.float32)
    LAYOUT.split(flat)[VARIANCE][...] = variance * np.exp(random.normal(size=64))
    return flat


def test_a_step_leads_from_one_model_to_the_other() -> None:
    before, after = model(1), model(2, variance=8.0)
    step = UNITS.step(before, after)
    parts = LAYOUT.split(step)
    assert max(np.abs(parts[MEAN]).max(), np.abs(parts[VARIANCE]).max()) <= CLIP, "which the difference is far beyond"
    moved, wanted = UNITS.moved(before, step), LAYOUT.split(after)
    for name, part in LAYOUT.split(moved).items():
        # Rounding of float32: a few units of 2^-24, of values and logarithms below 2^4.
        assert np.allclose(part, wanted[name], rtol=2.0**-18, atol=2.0**-18), name


def test_what_is_averaged_are_means_and_logarithms_of_variances() -> None:
    before, one, other = model(1), model(2), model(3, variance=50.0)
    mean = (UNITS.step(before, one).astype(np.float64) + UNITS.step(before, other)) / 2
    moved, ones, others = (LAYOUT.split(flat) for flat in (UNITS.moved(before, mean), one, other))
    assert np.allclose(moved[MEAN], (ones[MEAN] + others[MEAN]) / 2, atol=1e-5)
    # EPSILON shifts it by hardly more than itself.
    assert np.allclose(moved[VARIANCE], np.sqrt(ones[VARIANCE] * others[VARIANCE]), rtol=1e-3)


@pytest.mark.parametrize("clip", [CLIP, None])
def test_no_step_makes_a_variance_negative(clip: float | None) -> None:
    units, before = UpdateUnits(LAYOUT, clip), model(1)
    LAYOUT.split(before)[VARIANCE][:8] = 0.0
    step = np.full(LAYOUT.size, -2.0, np.float32)
    for _ in range(3):
        before = units.moved(before, step)
        assert LAYOUT.split(before)[VARIANCE].min() >= 0.0
        assert np.isfinite(units.step(model(1), before)).all()


def test_the_bound_of_a_round_is_that_of_the_clip() -> None:
    before = model(1)
    low, high = (LAYOUT.split(UNITS.moved(before, np.full(LAYOUT.size, side, np.float32))) for side in (-CLIP, CLIP))
    old = LAYOUT.split(before)
    assert np.allclose(high[VARIANCE] / old[VARIANCE], np.exp(VARIANCE_SPAN), rtol=1e-2)
    assert np.allclose(high[MEAN] - old[MEAN], MEAN_SPAN * np.sqrt(old[VARIANCE]), rtol=1e-3)
    assert np.allclose(low["0.weight"], old["0.weight"] - CLIP)


def test_without_a_clip_everything_moves_by_its_difference() -> None:
    before, after = model(1), model(2, variance=300.0)
    units = UpdateUnits(LAYOUT, None)
    assert np.array_equal(units.step(before, after), after - before)
    assert np.allclose(units.moved(before, after - before), after, rtol=2.0**-20, atol=2.0**-20)
