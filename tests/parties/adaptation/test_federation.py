"""Rounds of adaptation on shares learn what rounds in the clear learn: digits, by three owners."""

from functools import cache

import numpy as np
import pytest
import torch

from tacit.models.adapters.configuration import AdapterConfiguration, ParallelConfiguration
from tacit.models.adapters.federated import Features, FullBatches, Schedule, balanced_accuracy, federated
from tacit.models.adapters.parallel import AdapterParameters, FinalNorm, block_outputs, each, initial
from tacit.models.configuration import DataConfiguration, ModelConfiguration, TrainingConfiguration
from tacit.models.data import load
from tacit.models.networks import build
from tacit.models.partition import dirichlet
from tacit.models.training import CPU, train
from tacit.parties.adaptation.bounds import StepScales, fitted_step
from tacit.parties.adaptation.fixed_point import KEPT
from tacit.parties.adaptation.rounds import mean_of
from tacit.parties.adaptation.step import StepSizes
from tacit.parties.inference.operations import DATA, MODEL
from tacit.parties.inference.stages import encoded
from tacit.protocol.adaptation.sums import LARGEST_SUM
from tests.parties.adaptation.clear import bounds, norms
from tests.parties.adaptation.one_step import STREAM, step
from tests.parties.inference.in_memory import shares

OWNERS = 3
BATCH = 16
SIZES = StepSizes(images=BATCH, tokens=17, width=32, classes=5, adapters=3, rank=4)
EPSILON = 1e-6
NORM = FinalNorm.plain(SIZES.width, EPSILON)


@cache
def digits(seed: int) -> tuple[list[Features], Features]:
    """What a backbone that knows the digits 0 to 4 leaves of the others: the images of every owner, and test images."""
    data, known = load(DataConfiguration(), image_size=8), range(5)
    model = ModelConfiguration(image_size=8, patch_size=2, width=32, depth=3, heads=4)
    backbone = build(model, classes=5, channels=1, seed=seed)
    mine = torch.isin(data.y_train, torch.tensor(known))
    training = TrainingConfiguration(epochs=6, batch_size=32, learning_rate=2e-3)
    train(backbone, data.x_train[mine], data.y_train[mine], training, seed=seed, device=CPU)
    learnt, tested = (
        Features(outputs=block_outputs(backbone, x[y >= 5]).double(), labels=y[y >= 5] - 5)
        for x, y in ((data.x_train, data.y_train), (data.x_test, data.y_test))
    )
    parts = dirichlet(learnt.labels.numpy(), clients=OWNERS, alpha=1.0, seed=seed)
    return [learnt.part(part) for part in parts], tested


def on_shares(
    sizes: StepSizes,
    scales: StepScales,
    parameters: AdapterParameters,
    owners: list[Features],
    schedule: Schedule,
    seed: int,
) -> tuple[AdapterParameters, int]:
    """As `federated` in the clear, with the same batches; and how many of them were refused."""
    work, refused = FullBatches(sizes.images, 1), 0
    for number in range(1, schedule.rounds + 1):
        added = []
        for index, owner in enumerate(owners):
            (order,) = work.batches(len(owner.labels), np.random.default_rng([seed, number, index]))
            words, in_range = step(sizes, scales, parameters, owner.part(order), schedule.rate(number))
            added.append(words)
            refused += not in_range
        model, data = (torch.stack([words[rank] for words in added]).sum(0) for rank in (MODEL, DATA))
        parameters = mean_of(model + data, len(owners), sizes)
    return parameters, refused


def both(
    configuration: AdapterConfiguration, sizes: StepSizes, rounds: int, seed: int
) -> tuple[tuple[AdapterParameters, int], AdapterParameters, Features]:
    """After rounds on shares, with the batches refused; after the same in the clear; and the test images."""
    owners, tested = digits(seed)
    first = initial(configuration, blocks=3, tokens=17, width=32, classes=5, seed=seed)
    first = each(torch.Tensor.double, first)
    schedule = Schedule(rounds=rounds, learning_rate=0.1, decay_rounds=())
    clear = list(federated(first, NORM, owners, schedule, FullBatches(BATCH, 1), seed=seed))
    seen = [
        norms(parameters, NORM, owner.outputs, owner.labels)
        for owner in owners
        for parameters in (first, *clear[:: max(rounds // 4, 1)], clear[-1])
    ]
    own = bounds(seen, stream=STREAM, epsilon=EPSILON)
    scales = fitted_step(sizes.adapter, sizes.head, own, adapters=sizes.adapters)
    return on_shares(sizes, scales, first, owners, schedule, seed), clear[-1], tested


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_what_is_learnt_on_shares_is_as_good(seed: int) -> None:
    rounds = 25
    (found, refused), clear, tested = both(ParallelConfiguration(rank=4), SIZES, rounds, seed)
    on, off = (balanced_accuracy(parameters, NORM, tested) for parameters in (found, clear))
    print(f"seed {seed}: on shares {on:.4f}, in the clear {off:.4f}, {refused} of {rounds * OWNERS} batches refused")
    assert abs(on - off) <= 0.01
    assert on > 0.5


@pytest.mark.parametrize("weight", [0, -1, LARGEST_SUM + 1])
def test_a_sum_over_no_owners_or_too_many_has_no_mean(weight: int) -> None:
    with pytest.raises(ValueError, match=f"a sum over data owners whose weight is {weight}"):
        mean_of(torch.zeros(SIZES.parameters, dtype=torch.int64), weight, SIZES)


def test_the_largest_weights_of_the_largest_parameters_do_not_go_round() -> None:
    largest = torch.full((SIZES.parameters,), 2.0**6 - 2.0**-40, dtype=torch.float64)
    for sign in (1, -1):
        model, data = shares(encoded(sign * largest, 2.0**KEPT))
        total = LARGEST_SUM * (model + data)
        assert mean_of(total, LARGEST_SUM, SIZES).head_bias.equal(sign * largest[: SIZES.classes])
