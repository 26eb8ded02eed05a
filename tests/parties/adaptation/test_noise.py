"""Noise of the model owner on its sums: as wide as it says, within what the bounds of a learning allow whatever the
model is, drawn once for a round, and no more of it told than its budget has room for."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest
import torch

from tacit.models.adapters.federated import Schedule
from tacit.parties.adaptation.fixed_point import KEPT
from tacit.parties.adaptation.model_owner import Openings
from tacit.parties.adaptation.noise import NoisePolicy, SumNoise, largest_norm
from tacit.parties.adaptation.public import PublicLearning
from tacit.parties.adaptation.rounds import mean_of, shares_of_known
from tacit.parties.adaptation.standing import COUNTS, Counted
from tacit.parties.adaptation.step import flat
from tacit.protocol.adaptation.sums import OpeningPolicy
from tacit.protocol.core.errors import RemoteProtocolError
from tests.parties.adaptation.test_public import PARALLEL, PROBE, made
from tests.parties.inference import conftest as _inference
from tests.parties.inference.conftest import Transformer

one_block, private = _inference.one_block, _inference.private

OWNERS = ("alice", "bob")
OPENING = OpeningPolicy(rounds=8, owners=2, smallest_cohort=2, colluders=0)
DRAWS = 400


@pytest.fixture(scope="module")
def probing(one_block: Transformer) -> PublicLearning:
    return msgspec.structs.replace(
        made(one_block, PROBE), schedule=Schedule(rounds=2, learning_rate=0.05, decay_rounds=())
    )


def noise(learning: PublicLearning, deviation: float = 0.25, **budget: float) -> SumNoise:
    return SumNoise(NoisePolicy(deviation=deviation, **budget), learning, owners=8)


def budget_for(sums: float, learning: PublicLearning, deviation: float) -> float:
    """An epsilon that so many sums keep, and half a sum more does not: that of Gaussian noise of this ratio, by its
    moments a little above what is exact."""
    from dp_accounting import get_epsilon_gaussian

    cost = noise(learning, deviation).cost
    return float(get_epsilon_gaussian(1 / math.sqrt((sums + 0.5) * cost), 1e-5))


def held(openings: Openings, number: int, words: int) -> bytes:
    for name in OWNERS:
        openings.sums.begin(name, number)
        openings.sums.keep(name, number)
        openings.keep(name, number, torch.zeros(words, dtype=torch.int64))
    for name in OWNERS:
        openings.sums.say(name, number, OWNERS, 0.0)
    assert openings.sums.verdict(number) == ""
    return openings.opened(number)


def test_the_mean_has_noise_of_the_deviation_whatever_it_is_divided_by(probing: PublicLearning) -> None:
    sizes, own = probing.sizes, noise(probing)
    for weight in (1, 3, 200):
        words = torch.stack([own.words(weight, 3) for _ in range(DRAWS)])
        means = [mean_of(each, weight, sizes) for each in words[:, :-COUNTS]]
        values = torch.stack([torch.cat([mean.head_weight.reshape(-1), mean.head_bias]) for mean in means])
        count = values.numel()
        # A mean square of n standard normal numbers is off by more than 6 of its deviations, the root of 2 / n, once
        # in 10^8 times; so is a mean, whose deviation is the root of 1 / n.
        assert abs(values.square().mean().item() / 0.25**2 - 1) < 6 * math.sqrt(2 / count)
        assert abs(values.mean().item()) < 6 * 0.25 / math.sqrt(count)
        # Neighbours do not know of each other: products of independent normals have the deviation 1.
        products = values[:, 1:] * values[:, :-1]
        assert abs(products.mean().item()) < 6 * 0.25**2 / math.sqrt(products.numel())


def test_counts_have_as_much_of_what_they_can_be(probing: PublicLearning) -> None:
    own = noise(probing)
    images = 3 * probing.batch * probing.batches
    words = torch.stack([own.words(3, 3) for _ in range(DRAWS)])[:, -COUNTS:]
    assert bool((words[:, 2] == 0).all())
    weight = torch.tensor([0, 0, 0, 3])
    told = [Counted.of(each + weight, classes=probing.classes, images=images) for each in words]
    worst = 2 * probing.scales.head.reach + math.log(probing.classes)
    for found, half in (
        (torch.tensor([each.loss for each in told]), worst / 2 / 0.97),
        # Whole answers are told: rounding down takes half an answer away, and adds a twelfth to the variance.
        (torch.tensor([each.accuracy for each in told]) + 0.5 / images, 0.5),
    ):
        expected = own.multiplier * half
        variance = expected**2 + (half == 0.5) / 12 / images**2
        assert abs(found.square().mean().item() / variance - 1) < 6 * math.sqrt(2 / DRAWS)


def test_parameters_are_below_the_largest_norm(one_block: Transformer) -> None:
    """What is in range before a step, with the least that it can move by, is: and more is possible."""
    for adapter in (PROBE, PARALLEL):
        learning = made(one_block, adapter)
        initial = learning.initial()
        norm = math.sqrt(sum(tensor.square().sum().item() for tensor in initial.tensors.values()))
        assert norm < largest_norm(learning)
        words = flat(shares_of_known(initial))
        assert words.double().norm().item() / 2**KEPT == pytest.approx(norm, abs=1e-6)


def test_all_are_told_the_same_also_after_a_restart(tmp_path: Path, probing: PublicLearning) -> None:
    own, words = noise(probing), probing.sizes.parameters + COUNTS
    openings = Openings(OPENING, tmp_path / "openings", noise=own)
    told = held(openings, 1, words)
    assert any(told)
    assert openings.opened(1) == told
    again = Openings(OPENING, tmp_path / "openings", noise=own)
    assert (again.opened(1), again.spent) == (told, own.cost)
    assert held(again, 2, words) != told
    assert again.spent == 2 * own.cost


def test_the_budget_is_kept_over_restarts_and_refuses_by_name(tmp_path: Path, probing: PublicLearning) -> None:
    deviation = 4.0
    own = noise(probing, deviation, largest_epsilon=budget_for(2, probing, deviation))
    words = probing.sizes.parameters + COUNTS
    openings = Openings(OPENING, tmp_path / "openings", noise=own)
    assert openings.sums.policy.rounds == 2
    held(openings, 1, words)
    again = Openings(OPENING, tmp_path / "openings", noise=own)
    assert again.sums.policy.rounds == 2
    held(again, 2, words)
    with pytest.raises(RemoteProtocolError, match="opens 2 rounds, as its budget of noise has room for, and all"):
        again.sums.check_begin("alice", 3, 2)


def test_a_budget_without_room_for_the_rounds_is_refused(tmp_path: Path, probing: PublicLearning) -> None:
    own = noise(probing, 4.0, largest_epsilon=budget_for(1, probing, 4.0))
    with pytest.raises(ValueError, match=r"largest_epsilon = .* may open 1 rounds, and 2 are to be learned"):
        Openings(OPENING, noise=own)
    # What was told without noise cannot be paid for.
    held(Openings(OPENING, tmp_path / "openings"), 1, probing.sizes.parameters + COUNTS)
    with pytest.raises(ValueError, match="may open 1 rounds"):
        Openings(OPENING, tmp_path / "openings", noise=noise(probing, 4.0, largest_epsilon=100.0))


def test_noise_that_does_not_fit_is_refused(probing: PublicLearning) -> None:
    with pytest.raises(ValueError, match="does not fit the words of a sum over 100000 data owners"):
        SumNoise(NoisePolicy(deviation=4.0), probing, owners=100_000)
