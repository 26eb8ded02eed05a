"""Lower bounds of epsilon: never above the accountant's, but for the stated chance, and above a false claim."""

import math
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom, binomtest

from tacit.models.gaussian_noise import noise_bytes, noisy
from tacit.parties.protections.gaussian_noise import affordable, cost_of
from tacit.parties.protections.protection import Noise

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(Path(__file__).parents[3] / "docs" / "demonstrations")
    from epsilon import LARGEST, Canaries, epsilon_refuted, lower_bound, right_guesses_chance

DELTA = 1e-5
CANARIES, SIZE, NORM = 500, 2_000, 3.0
GUESSES = (20, 100, 300)


def accounted(multiplier: float) -> float:
    """The smallest epsilon that the accountant grants one update."""
    low, high = 0.0, 200.0
    spent = 4.0 / multiplier**2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if affordable(spent, epsilon=middle, delta=DELTA) else (middle, high)
    return high


def audited(seed: int, deviation: float, *, guesses: tuple[int, ...] = GUESSES, norm: float = NORM) -> float:
    generator = np.random.default_rng(seed)
    canaries = Canaries.draw(CANARIES, size=SIZE, norm=norm, generator=generator)
    total = np.sum([canaries.update(index) for index in range(CANARIES)], axis=0, dtype=np.float32)
    released = noisy(total, deviation, generator.bytes(noise_bytes(SIZE)))
    return lower_bound(canaries.scores(released), canaries.positive, delta=DELTA, guesses=guesses)


def test_without_noise_the_bound_is_large() -> None:
    # All 300 guesses are right; with delta = 0, q^300 <= 0.05 / 3 alone would give 4.28.
    expected = -math.log((0.05 / 3) ** (-1 / 300) - 1)
    assert expected == pytest.approx(4.28, abs=0.01)
    assert audited(1, 0.0) > 3.5


@pytest.mark.parametrize(
    ("multiplier", "seeds"),
    [(1.0, 15), *(pytest.param(multiplier, 60, marks=pytest.mark.exhaustive) for multiplier in (0.5, 1.0, 2.0))],
)
def test_the_bound_stays_below_the_accountant(multiplier: float, seeds: int) -> None:
    assert cost_of(Noise(multiplier=multiplier, norm=NORM, delta=DELTA)) == 4.0 / multiplier**2
    epsilon = accounted(multiplier)
    above = sum(audited(seed, multiplier * NORM) > epsilon for seed in range(seeds))
    # Each is above with a chance of 5 % at most. The seeds are fixed.
    assert binomtest(above, seeds, 0.05, alternative="greater").pvalue > 1e-3


def test_less_noise_than_claimed_is_found_out() -> None:
    # The claim is a multiplier of 5, while a tenth of the norm was drawn.
    bounds = [audited(seed, 0.1 * NORM, guesses=(400,)) for seed in range(4)]
    assert min(bounds) > accounted(5.0)


@pytest.mark.parametrize(("right", "guesses", "epsilon"), [(0, 5, 1.0), (4, 5, 0.5), (60, 80, 1.0), (80, 80, 3.0)])
def test_the_chance_is_the_formula_of_the_theorem(right: int, guesses: int, epsilon: float) -> None:
    canaries, delta = 90, 1e-3

    def tail(value: int) -> float:
        return float(binom.sf(value - 1, guesses, math.exp(epsilon) / (1 + math.exp(epsilon))))

    expected = tail(right) + 2 * canaries * delta * max(
        (tail(right - i) - tail(right)) / i for i in range(1, canaries + 1)
    )
    found = right_guesses_chance(right, guesses, canaries=canaries, epsilon=epsilon, delta=delta)
    assert found == pytest.approx(min(1.0, expected), abs=1e-12)


def test_the_bound_is_where_the_chance_is_met() -> None:
    bound = epsilon_refuted(90, 100, canaries=200, delta=DELTA, chance=0.05)
    assert 1.0 < bound < LARGEST
    assert right_guesses_chance(90, 100, canaries=200, epsilon=bound, delta=DELTA) == pytest.approx(0.05, rel=1e-6)
    assert epsilon_refuted(55, 100, canaries=200, delta=DELTA, chance=0.05) == 0.0
