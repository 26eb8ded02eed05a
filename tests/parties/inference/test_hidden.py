"""The check of hidden values: rounding never makes a sum negative, which would be read as out of range."""

from __future__ import annotations

import math
from typing import Final

import pytest
import torch

from tacit.parties.inference.hidden import fitted_hidden, spread_slack, spread_wave
from tacit.parties.inference.scores import Bounds, Functions
from tacit.parties.inference.waves import factors, rounded_waves

FUNCTIONS: Final = Functions(scale=1.0, degree=None, inverse_steps=None, quadratic=False, epsilons=(1e-6, 1e-6))
DEVIATIONS: Final = 6
"""Of a sum that slack is for: fewer than one in 10^9 normal values are further below their mean."""


@pytest.mark.parametrize("ceiling", [0.05, 0.25, 1.0, 4.0, 16.0])
def test_rounding_does_not_make_a_sum_of_small_hidden_values_negative(ceiling: float) -> None:
    """However little GELU itself needs of the words that both share. At every place that a mask can have."""
    bounds = Bounds(
        first_variance=(0.1, 1.0),
        second_variance=(0.1, 1.0),
        vectors=1.0,
        total=10.0,
        hidden=0.01 * ceiling,
    )
    found = fitted_hidden(FUNCTIONS, bounds, ceiling, width=64, activated=13)
    assert found.gelu is not None
    wave = spread_wave(found.gelu, found.opened)
    # Of a hidden value of zero what is opened is the mask; SPREAD itself is zero there.
    words = rounded_waves(len(wave.cosines), wave.words)
    values = torch.full((1 << 16,), wave.constant << wave.words)
    for factor, word in zip(factors(wave, torch.device("cpu")), words, strict=True):
        values += factor * word
    values = values / 2.0**wave.bits
    for width in (16, 64, 3072):
        most_negative = width * values.mean().item() - DEVIATIONS * math.sqrt(width) * values.std().item()
        assert spread_slack(width, found.opened) + most_negative >= 0
