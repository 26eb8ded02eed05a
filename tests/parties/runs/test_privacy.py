"""Epsilon of runs with noise, against the trade-off of the Gaussian mechanism written out with scipy."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from scipy.stats import norm

from tacit.parties.learning.policy import ClientPolicy
from tacit.parties.protections.gaussian_noise import GaussianNoise
from tacit.parties.runs.experiment import Aggregation, Experiment, FederationSection
from tacit.parties.runs.privacy import guarantee
from tacit.parties.session.events import RoundEnded
from tests.simulate.conftest import ended

CLIENTS = 5


def experiment(
    mode: Any = "active", corrupt: float = 0.2, clip: float = 1000.0, value_bits: int = 24, **protection: Any
) -> Experiment:
    return Experiment(
        federation=FederationSection(clients=CLIENTS),
        protection=GaussianNoise(**protection),
        aggregation=Aggregation(mode=mode, corrupt=corrupt, clip=clip, value_bits=value_bits),
        policy=ClientPolicy(modes=(mode,), largest_clip=clip),
    )


def rounds(*survivors: int, cohort: int = CLIENTS) -> list[RoundEnded]:
    return [ended(1, ["client"] * cohort, survivors=["client"] * number) for number in survivors]


def epsilons(
    experiment: Experiment, rounds: Sequence[RoundEnded], updates: Mapping[str, int], *, colluders: int = 1
) -> tuple[float, float]:
    """Towards an adversary that sees updates, and one that sees sums; both are finite."""
    noise, found = experiment.protection.noise(), guarantee(experiment, rounds, updates, colluders=colluders)
    assert noise is not None
    assert found is not None
    assert found.delta == noise.delta
    assert found.epsilon_update is not None
    assert found.epsilon_sum is not None
    return found.epsilon_update, found.epsilon_sum


def delta(epsilon: float, multipliers: list[float]) -> float:
    """Balle and Wang 2018, Theorem 8, for rounds of these noise multipliers."""
    mu = math.sqrt(sum(1 / multiplier**2 for multiplier in multipliers))
    return float(norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu))


@pytest.mark.parametrize(("noise", "wanted", "held"), [(4.0, 1e-5, 3), (10.0, 1e-3, 10), (20.0, 1e-6, 1)])
def test_epsilon_is_that_of_the_gaussian_mechanism(noise: float, wanted: float, held: int) -> None:
    """Two updates of norm C differ by 2 C: the multiplier is half the noise. One of five colludes, four add noise."""
    one = experiment(dp_noise=noise, dp_delta=wanted, dp_clip=0.3)
    update, total = epsilons(one, rounds(*[CLIENTS] * held), {"client": held})
    assert delta(update, [noise / 2] * held) == pytest.approx(wanted, rel=1e-4)
    assert delta(total, [noise / 2 * math.sqrt(CLIENTS - 1)] * held) == pytest.approx(wanted, rel=1e-4)
    assert total < update


def test_the_noise_of_those_who_dropped_out_does_not_count() -> None:
    _, total = epsilons(experiment(dp_noise=6.0), rounds(5, 3, 0), {"client": 3})
    # Without the colluding one: 4, 2, and no fewer than the client itself.
    assert delta(total, [3 * 2.0, 3 * math.sqrt(2), 3.0]) == pytest.approx(1e-5, rel=1e-4)


def test_colluding_clients_are_counted_exactly() -> None:
    """0.29 of 100 are 29, although the product of floating-point numbers is below."""
    one = experiment(corrupt=0.29, dp_noise=6.0)
    _, total = epsilons(one, rounds(100, cohort=100), {"client": 1}, colluders=one.terms(100).colluders)
    assert delta(total, [3 * math.sqrt(71)]) == pytest.approx(1e-5, rel=1e-4)


def test_an_update_for_a_round_that_was_never_closed_counts() -> None:
    """The server was killed with it, and asked for another one when it was back."""
    update, total = epsilons(experiment(dp_noise=6.0), rounds(5, 5), {"client": 3})
    assert delta(update, [3.0] * 3) == pytest.approx(1e-5, rel=1e-4)
    assert delta(total, [6.0, 6.0, 3.0]) == pytest.approx(1e-5, rel=1e-4)


def test_every_round_of_a_client_counts_in_full_and_those_of_others_do_not() -> None:
    """Nothing is made of who might have been drawn; the client that is worst off decides."""
    cohorts = (["a", "b", "c"], ["a", "c", "d"], ["b", "c", "d"], ["b", "d", "e", "f", "g"])
    drawn = [ended(number, cohort) for number, cohort in enumerate(cohorts, start=1)]
    update, total = epsilons(experiment(dp_noise=6.0), drawn, {})
    assert delta(update, [3.0] * 3) == pytest.approx(1e-5, rel=1e-4)
    assert delta(total, [3 * math.sqrt(2)] * 3) == pytest.approx(1e-5, rel=1e-4)
    _, total = epsilons(experiment(dp_noise=6.0), drawn, {"a": 3})
    assert delta(total, [3 * math.sqrt(2)] * 2 + [3.0]) == pytest.approx(1e-5, rel=1e-4)


@pytest.mark.parametrize(
    ("settings", "whole"),
    [
        # dp_clip is 1, and the standard deviation 0.5.
        ({"clip": 7.0}, True),
        ({"clip": 6.9}, False),
        ({"clip": 0.25}, False),
        ({"clip": 7.0, "value_bits": 6}, True),
        ({"clip": 7.0, "value_bits": 5}, False),
    ],
)
def test_noise_that_is_cut_or_rounded_away_protects_nobody_else(settings: Any, whole: bool) -> None:
    update, total = epsilons(experiment(dp_clip=1.0, dp_noise=0.5, **settings), rounds(CLIENTS), {"client": 1})
    assert (total < update) == whole
    if not whole:
        assert total == update


@pytest.mark.parametrize(
    ("settings", "held", "update", "total"),
    [
        ({"dp_clip": 0.0}, 3, None, None),
        ({"mode": "none"}, 3, "finite", None),
        ({}, 0, None, None),
    ],
)
def test_without_a_bound_epsilon_is_infinite(settings: Any, held: int, update: str | None, total: str | None) -> None:
    found = guarantee(experiment(**settings), rounds(*[CLIENTS] * held), {"client": held}, colluders=1)
    assert found is not None
    assert (found.epsilon_update is None) == (update is None)
    assert (found.epsilon_sum is None) == (total is None)


def test_without_noise_nothing_is_said() -> None:
    assert guarantee(Experiment(), rounds(5), {"client": 1}, colluders=1) is None
