"""The check of hidden values: no sum is negative by rounding, and no value beyond a period is taken for another."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Final

import pytest
import torch

from tacit.models.friendly.polynomials import Interval
from tacit.parties.inference.hidden import fitted_hidden, spread_ring, spread_slack, spread_wave
from tacit.parties.inference.material import Lookup
from tacit.parties.inference.operations import MODEL, Party, Program, WaveValue
from tacit.parties.inference.ring import SPARE, shifted
from tacit.parties.inference.scores import Bounds, Functions, VarianceBounds
from tacit.parties.inference.tables import LookedUp
from tacit.parties.inference.waves import factors, rounded_waves
from tacit.protocol.inference.schedule import COARSE, PLACE, STREAM

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(Path(__file__).parent)
    from in_memory import Pair, shares

FUNCTIONS: Final = Functions(scale=1.0, degree=None, inverse_steps=None, quadratic=False, epsilons=(1e-6, 1e-6))
VARIANCE: Final = VarianceBounds(Interval(0.1, 1.0), 1)
DEVIATIONS: Final = 6
"""Of a sum that slack is for: fewer than one in 10^9 normal values are further below their mean."""


@pytest.mark.parametrize("ceiling", [0.05, 1.0, 16.0])
def test_rounding_does_not_make_a_sum_of_small_hidden_values_negative(ceiling: float) -> None:
    """However little GELU itself needs of the words that both share. At every place that a mask can have."""
    bounds = Bounds(first_variance=VARIANCE, second_variance=VARIANCE, vectors=1.0, total=10.0, hidden=0.01 * ceiling)
    found = fitted_hidden(FUNCTIONS, bounds, ceiling, width=64, activated=13)
    assert found.gelu is not None
    wave = spread_wave(found.gelu, found.opened, 64)
    # Of a hidden value of zero what is opened is the mask; SPREAD itself is zero there.
    words = rounded_waves(len(wave.cosines), wave.words, torch.device("cpu"))
    values = torch.full((1 << 16,), wave.constant << wave.words)
    for factor, word in zip(factors(wave, torch.device("cpu")), words, strict=True):
        values += factor * word
    values = values / 2.0**wave.bits
    for width in (16, 64, 3072):
        most_negative = width * values.mean().item() - DEVIATIONS * math.sqrt(width) * values.std().item()
        assert spread_slack(width, found.opened) + most_negative >= 0


@pytest.mark.parametrize(("norm", "ceiling"), [(4.0, 20.0), (4.0, 200.0)])
def test_a_value_beyond_its_range_is_found_at_any_multiple_of_either_period(norm: float, ceiling: float) -> None:
    """One value of a token, up to all that is possible, also near whole periods, where the approximation is right."""
    width, shape = 32, (1, 32)
    bounds = Bounds(first_variance=VARIANCE, second_variance=VARIANCE, vectors=1.0, total=10.0, hidden=norm)
    found = fitted_hidden(FUNCTIONS, bounds, ceiling, width=width, activated=13)
    assert found.gelu is not None
    assert found.opened > COARSE
    ring, wave = spread_ring(found.opened), spread_wave(found.gelu, found.opened, width)
    period = 2.0**COARSE / found.scale

    def outside(value: float) -> int:
        values = torch.zeros(shape, dtype=torch.int64)
        values[0, 0] = round(value * found.scale)
        pair = Pair()

        def act(party: Party, share: torch.Tensor) -> Program[torch.Tensor]:
            assert found.gelu is not None
            opening = WaveValue(party, shape, found.gelu, STREAM, bits=found.opened, check=wave)
            lookup = LookedUp(party, Lookup((1,), levels=found.spread.levels))
            opening.settle(*(yield from party.open("gelu", opening.masked(share))))
            spread = opening.checked().sum(-1)
            if party.rank == MODEL:
                spread += round(spread_slack(width, found.opened) * 2.0**wave.bits)
            place = shifted(spread * found.spread.factor, ring, ring - PLACE)
            return lookup.settle(*(yield from party.open("fc2", lookup.masked(place))), found.spread.limits)

        parts = zip(pair.parties, shares(values), strict=True)
        one, other = pair.run(*(act(party, part) for party, part in parts))
        return int(one + other) % (1 << PLACE)

    for value in (0.0, norm * 0.99, -norm * 0.99):
        assert outside(value) == 0, value
    largest = ceiling / SPARE
    places = [
        sign * (times * period / 2 + shift)
        for times in range(1, math.ceil(2 * largest / period) + 1)
        for shift in (-period / 7, -0.01, 0.0, 0.01, period / 7)
        for sign in (-1, 1)
    ]
    tried = [value for value in places if norm * 1.4 < abs(value) <= largest]
    assert tried
    for value in tried:
        assert outside(value) == 1, value
