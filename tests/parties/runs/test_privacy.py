"""Epsilon of runs with noise, against the trade-off of the Gaussian mechanism written out with scipy."""

import math
from typing import Any

import pytest
from scipy.stats import norm

from tacit.parties.learning.policy import ClientPolicy
from tacit.parties.protections.gaussian_noise import GaussianNoise
from tacit.parties.runs.experiment import Aggregation, Experiment, FederationSection
from tacit.parties.runs.summary import guarantee

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


def rounds(*survivors: int, cohort: int = CLIENTS) -> list[dict[str, Any]]:
    return [{"survivors": ["client"] * number, "cohort": ["client"] * cohort} for number in survivors]


def delta(epsilon: float, multipliers: list[float]) -> float:
    """Balle and Wang 2018, Theorem 8, for rounds of these noise multipliers."""
    mu = math.sqrt(sum(1 / multiplier**2 for multiplier in multipliers))
    return float(norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu))


@pytest.mark.parametrize(("noise", "wanted", "held"), [(4.0, 1e-5, 3), (10.0, 1e-3, 10), (20.0, 1e-6, 1)])
def test_epsilon_is_that_of_the_gaussian_mechanism(noise: float, wanted: float, held: int) -> None:
    """Two updates of norm C differ by 2 C: the multiplier is half the noise. One of five colludes, four add noise."""
    one = experiment(dp_noise=noise, dp_delta=wanted, dp_clip=0.3)
    found = guarantee(one, rounds(*[CLIENTS] * held), {"client": held}, colluders=1)
    assert found is not None
    assert found["delta"] == wanted
    assert delta(found["epsilon_update"], [noise / 2] * held) == pytest.approx(wanted, rel=1e-4)
    assert delta(found["epsilon_sum"], [noise / 2 * math.sqrt(CLIENTS - 1)] * held) == pytest.approx(wanted, rel=1e-4)
    assert found["epsilon_sum"] < found["epsilon_update"]


def test_the_noise_of_those_who_dropped_out_does_not_count() -> None:
    found = guarantee(experiment(dp_noise=6.0), rounds(5, 3, 0), {"client": 3}, colluders=1)
    assert found is not None
    # Without the colluding one: 4, 2, and no fewer than the client itself.
    assert delta(found["epsilon_sum"], [3 * 2.0, 3 * math.sqrt(2), 3.0]) == pytest.approx(1e-5, rel=1e-4)


def test_colluding_clients_are_counted_exactly() -> None:
    """0.29 of 100 are 29, although the product of floating-point numbers is below."""
    one = experiment(corrupt=0.29, dp_noise=6.0)
    found = guarantee(one, rounds(100, cohort=100), {"client": 1}, colluders=one.terms(100).colluders)
    assert found is not None
    assert delta(found["epsilon_sum"], [3 * math.sqrt(71)]) == pytest.approx(1e-5, rel=1e-4)


def test_an_update_for_a_round_that_was_never_closed_counts() -> None:
    """The server was killed with it, and asked for another one when it was back."""
    found = guarantee(experiment(dp_noise=6.0), rounds(5, 5), {"client": 3}, colluders=1)
    assert found is not None
    assert delta(found["epsilon_update"], [3.0] * 3) == pytest.approx(1e-5, rel=1e-4)
    assert delta(found["epsilon_sum"], [6.0, 6.0, 3.0]) == pytest.approx(1e-5, rel=1e-4)


def test_every_round_of_a_client_counts_in_full_and_those_of_others_do_not() -> None:
    """Nothing is made of who might have been drawn; the client that is worst off decides."""
    cohorts = (["a", "b", "c"], ["a", "c", "d"], ["b", "c", "d"], ["b", "d", "e", "f", "g"])
    drawn = [{"cohort": cohort, "survivors": cohort} for cohort in cohorts]
    found = guarantee(experiment(dp_noise=6.0), drawn, {}, colluders=1)
    assert found is not None
    assert delta(found["epsilon_update"], [3.0] * 3) == pytest.approx(1e-5, rel=1e-4)
    assert delta(found["epsilon_sum"], [3 * math.sqrt(2)] * 3) == pytest.approx(1e-5, rel=1e-4)
    more = guarantee(experiment(dp_noise=6.0), drawn, {"a": 3}, colluders=1)
    assert more is not None
    assert delta(more["epsilon_sum"], [3 * math.sqrt(2)] * 2 + [3.0]) == pytest.approx(1e-5, rel=1e-4)


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
    found = guarantee(experiment(dp_clip=1.0, dp_noise=0.5, **settings), rounds(CLIENTS), {"client": 1}, colluders=1)
    assert found is not None
    assert (found["epsilon_sum"] < found["epsilon_update"]) == whole
    if not whole:
        assert found["epsilon_sum"] == found["epsilon_update"]


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
    assert (found["epsilon_update"] is None) == (update is None)
    assert (found["epsilon_sum"] is None) == (total is None)


def test_without_noise_nothing_is_said() -> None:
    assert guarantee(Experiment(), rounds(5), {"client": 1}, colluders=1) is None
