"""Rounds against steps on the mean gradient, draws that depend on nothing else, and what is refused."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tacit.models.adapters.configuration import LinearProbeConfiguration
from tacit.models.adapters.federated import (
    Features,
    OneEpoch,
    Order,
    Schedule,
    balanced_accuracy,
    federated,
)
from tacit.models.adapters.gradients import descent, stepped
from tacit.models.adapters.parallel import AdapterParameters, FinalNorm, StochasticBlocks, each, initial

ONE = Schedule(rounds=1, learning_rate=0.01, decay_rounds=())


@pytest.fixture
def clients(outputs: torch.Tensor, labels: torch.Tensor) -> list[Features]:
    whole = Features(outputs=outputs, labels=labels)
    return [whole.part(np.array([2])), whole.part(np.array([0, 1, 3]))]


def same(one: AdapterParameters, other: AdapterParameters) -> bool:
    return all(torch.equal(tensor, other.tensors[name]) for name, tensor in one.tensors.items())


def close(one: AdapterParameters, other: AdapterParameters) -> bool:
    """As far as sums in another order may differ: some 100 roundings of 1.1e-16 of numbers up to 1e4."""
    return all(
        torch.allclose(tensor, other.tensors[name], rtol=1e-10, atol=1e-10) for name, tensor in one.tensors.items()
    )


def test_a_round_of_one_batch_is_a_step_along_the_mean_gradient(
    parameters: AdapterParameters, norm: FinalNorm, clients: list[Features]
) -> None:
    (found,) = federated(parameters, norm, clients, ONE, OneEpoch(size=3), seed=1)
    gradients = [descent(parameters, norm, client.outputs, client.labels).gradient for client in clients]
    mean = each(lambda first, second: (first + second) / 2, *gradients)
    assert close(found, stepped(parameters, mean, 0.01))


def test_a_round_of_one_epoch_is_a_step_for_every_batch(
    parameters: AdapterParameters, norm: FinalNorm, clients: list[Features]
) -> None:
    (found,) = federated(parameters, norm, clients[1:], ONE, OneEpoch(size=2), seed=1)
    expected = parameters
    for order in OneEpoch(size=2).batches(3, np.random.default_rng([1, 1, 0])):
        batch = clients[1].part(order)
        expected = stepped(expected, descent(expected, norm, batch.outputs, batch.labels).gradient, 0.01)
    assert close(found, expected)


@given(images=st.integers(1, 50), size=st.integers(1, 20), seed=st.integers(0, 2**32))
def test_the_batches_of_an_epoch_hold_every_image_once(images: int, size: int, seed: int) -> None:
    epoch = list(OneEpoch(size=size).batches(images, np.random.default_rng(seed)))
    assert sorted(np.concatenate(epoch).tolist()) == list(range(images))
    assert all(len(order) == size for order in epoch[:-1])


def test_learning_rate_and_batches_are_by_default_those_of_the_paper() -> None:
    schedule = Schedule()
    rates = [schedule.rate(number) for number in range(1, schedule.rounds + 1)]
    assert rates == pytest.approx([1e-3] * 25 + [1e-4] * 15 + [1e-5] * 10, rel=1e-15)
    assert OneEpoch().size == 16


def test_a_round_takes_the_rate_of_its_number(
    parameters: AdapterParameters, norm: FinalNorm, clients: list[Features]
) -> None:
    still = Schedule(rounds=3, learning_rate=0.01, decay=0.0, decay_rounds=(1,))
    first, second, third = federated(parameters, norm, clients, still, OneEpoch(size=3), seed=1)
    assert not same(parameters, first)
    # The mean of two equal numbers is that number.
    assert same(first, second)
    assert same(second, third)


def test_the_seed_decides_everything(parameters: AdapterParameters, norm: FinalNorm, clients: list[Features]) -> None:
    schedule = Schedule(rounds=3, learning_rate=0.01)
    first, again, other = (
        list(federated(parameters, norm, clients, schedule, OneEpoch(size=1), seed=seed)) for seed in (1, 1, 3)
    )
    assert all(same(one, two) for one, two in zip(first, again, strict=True))
    assert not same(first[-1], other[-1])


def test_what_a_client_draws_does_not_depend_on_the_others(
    parameters: AdapterParameters, norm: FinalNorm, clients: list[Features]
) -> None:
    drawn: list[tuple[int, float]] = []

    class Noted:
        def batches(self, images: int, generator: np.random.Generator) -> Iterator[Order]:
            drawn.append((images, generator.random()))
            yield np.arange(images)

    two_rounds = Schedule(rounds=2, learning_rate=0.01)
    list(federated(parameters, norm, clients, two_rounds, Noted(), seed=1))
    together = [number for images, number in drawn if images == 1]
    assert len({number for _, number in drawn}) == 4
    drawn.clear()
    list(federated(parameters, norm, clients[:1], two_rounds, Noted(), seed=1))
    assert [number for _, number in drawn] == together


def test_outputs_that_are_not_sampled_have_no_influence(
    start: AdapterParameters, norm: FinalNorm, outputs: torch.Tensor, labels: torch.Tensor
) -> None:
    """Of three blocks the second one is never sampled beside the third."""
    start = each(torch.Tensor.double, start)
    unknown = outputs.clone()
    unknown[1] = torch.nan
    schedule = Schedule(rounds=4, learning_rate=0.1)
    found, expected = (
        list(
            federated(
                start,
                norm,
                [Features(outputs=one, labels=labels)],
                schedule,
                OneEpoch(size=2),
                seed=1,
                sampling=StochasticBlocks(),
            )
        )
        for one in (unknown, outputs)
    )
    assert same(found[-1], expected[-1])


def test_balanced_accuracy_is_the_mean_over_the_classes_that_occur() -> None:
    """The norm does not change which value of a class token is the largest, nor does a head that is the identity."""
    probe = initial(LinearProbeConfiguration(), blocks=1, tokens=1, width=4, classes=4, seed=0)
    probe = replace(probe, head_weight=torch.eye(4))
    plain = FinalNorm(weight=torch.ones(4), bias=torch.zeros(4), epsilon=1e-6)
    labels = torch.tensor([0, 0, 0, 2, 3, 3] * 100)
    answers = torch.tensor([0, 0, 1, 2, 3, 0] * 100)
    features = Features(outputs=torch.eye(4)[answers][None, :, None], labels=labels)
    assert balanced_accuracy(probe, plain, features) == pytest.approx((2 / 3 + 1 + 1 / 2) / 3, rel=1e-12)


REFUSED: list[tuple[str, Callable[[list[Features]], list[Features]]]] = [
    ("there are no clients", lambda clients: []),
    ("client 1 has no images", lambda clients: [clients[0], clients[1].part(np.array([], dtype=np.int64))]),
    (
        "take the adapters of this backbone",
        lambda clients: [Features(outputs=clients[0].outputs[1:], labels=clients[0].labels)],
    ),
]


@pytest.mark.parametrize(("message", "change"), REFUSED)
def test_clients_that_cannot_train_are_refused(
    parameters: AdapterParameters,
    norm: FinalNorm,
    clients: list[Features],
    message: str,
    change: Callable[[list[Features]], list[Features]],
) -> None:
    with pytest.raises(ValueError, match=message):
        next(federated(parameters, norm, change(clients), ONE, OneEpoch(), seed=1))


def test_a_training_that_diverges_says_where(
    parameters: AdapterParameters, norm: FinalNorm, clients: list[Features]
) -> None:
    schedule = Schedule(rounds=9, learning_rate=1e9)
    with pytest.raises(FloatingPointError, match=r"round \d, client \d: .* take a smaller learning_rate"):
        list(federated(parameters, norm, clients, schedule, OneEpoch(), seed=1))


def test_no_accuracy_of_no_images(parameters: AdapterParameters, norm: FinalNorm, clients: list[Features]) -> None:
    with pytest.raises(ValueError, match="of no images"):
        balanced_accuracy(parameters, norm, clients[0].part(np.array([], dtype=np.int64)))
