"""Running statistics of batch normalisation, from the updates of three clients to the model of the server."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from torch import nn

from tacit.models.configuration import Architecture, TrainingConfiguration
from tacit.models.layout import Flat
from tacit.models.workload import Workload
from tacit.parties.learning.keeper import Keeper
from tacit.parties.learning.learner import Learner
from tacit.parties.learning.task import Task, configure
from tacit.parties.protections.binary_weights import BinaryWeights
from tacit.parties.protections.encryption import Encryption, check_together
from tacit.parties.protections.fedcg import FedCG
from tacit.parties.protections.gaussian_noise import GaussianNoise
from tacit.parties.protections.none import NoProtection
from tacit.parties.protections.protection import Protection
from tacit.parties.protections.sides import Group
from tacit.parties.runs.experiment import Aggregation, Experiment, FederationSection
from tacit.protocol.group_key.agreement import GroupKey
from tacit.secagg.packing import Total
from tests.cases import cases
from tests.world.group_keys import memory_group_key

CPU = torch.device("cpu")
CLIENTS = 3
SAMPLES = 12
NAMES = ("norm.running_mean", "norm.running_var")


class Patches(nn.Module):
    """A transformer's embeddings without a transformer, and batch normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.patch_embed = nn.Module()
        self.patch_embed.proj = nn.Conv2d(1, 6, 4, 4)
        self.pos_embed = nn.Parameter(torch.zeros(1, 4, 6))
        self.norm = nn.BatchNorm1d(6)
        self.head = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = self.patch_embed.proj(x).flatten(2).mT + self.pos_embed
        return self.head(self.norm(tokens.mean(1)))


SGD = {"optimizer": "sgd"}
"""Which no rounding of a gradient near zero turns round."""
OWN = Workload(model=Patches)


def federation(**settings: Any) -> tuple[Keeper, list[Learner]]:
    mode, training = settings.pop("mode", "active"), settings.pop("training", {})
    task = Task(
        model=Architecture(image_size=8, factory="own:Patches"),
        training=TrainingConfiguration(epochs=2, batch_size=4, **training),
        classes=3,
        channels=1,
        **settings,
    )
    model = task.build(3, OWN)
    experiment = Experiment(federation=FederationSection(clients=CLIENTS), aggregation=Aggregation(max_weight=SAMPLES))
    configuration = configure(replace(experiment.terms(), mode=mode), task, model)
    return Keeper(configuration, model), [learner(configuration, client) for client in range(CLIENTS)]


def learner(configuration: Any, client: int) -> Learner:
    """Its images are ten times as far apart as the statistics begin with, and not about zero."""
    generator = torch.Generator().manual_seed(client)
    x = 20.0 * (client + 1.0 + torch.randn(SAMPLES, 1, 8, 8, generator=generator))
    return Learner(configuration, x, torch.arange(SAMPLES) % 3, seed=client, device=CPU, workload=OWN)


def total_of(keeper: Keeper, words: list[Any]) -> Total:
    packing = keeper.configuration.packing()
    total = np.zeros(packing.length, packing.ring.word)
    for each in words:
        packing.ring.add_into(total, each)
    return keeper.decode(total, len(words))


def trained(one: Learner) -> Flat:
    return one.layout.flatten(one._model)


def test_the_statistics_of_a_round_are_there_after_it() -> None:
    keeper, members = federation()
    total = total_of(keeper, [one.update(1, keeper.bytes).words for one in members])
    theirs = [keeper.layout.split(trained(one)) for one in members]
    keeper.apply(total)
    after = keeper.layout.split(keeper.flat)
    means, variances = (np.array([one[name] for one in theirs], np.float64) for name in NAMES)
    assert min(np.abs(means).max(), variances.max()) > 10
    assert keeper.configuration.clip == 0.25
    # A step of 20 bits is 2^-13 of a standard deviation, and 2^-16 of a logarithm.
    assert np.allclose(after[NAMES[0]], means.mean(axis=0), atol=1e-3)
    assert np.allclose(after[NAMES[1]], np.exp(np.log(variances).mean(axis=0)), rtol=1e-3)


def test_without_secure_aggregation_they_are_averaged_as_they_are() -> None:
    keeper, members = federation(mode="none")
    step = members[0].update(1, keeper.bytes).statistics
    assert step.samples == SAMPLES
    before, after = keeper.flat, trained(members[0])
    assert np.array_equal(members[0]._units.step(before, after), after - before)


def test_under_the_key_of_a_group_they_are_as_without_one() -> None:
    """Only the embeddings are encrypted, which leaves the server the scale of all others."""
    plain, others = federation(training=SGD)
    keeper, members = federation(encryption=Encryption(), training=SGD)
    keys: list[GroupKey] = memory_group_key(CLIENTS).run().outcome(GroupKey)
    groups = [Group(key, key.members[place]) for place, key in enumerate(keys)]
    sealed = members[0]._group_model
    assert sealed is not None
    model = sealed.key(keys[0]).encrypt(plain.flat)
    keeper.replace(model.astype("<f4").tobytes())
    words = [one.update(1, keeper.bytes, group).words for one, group in zip(members, groups, strict=True)]
    keeper.apply(total_of(keeper, words))
    plain.apply(total_of(plain, [one.update(1, plain.bytes).words for one in others]))
    decrypted = keeper.layout.split(sealed.key(keys[0]).decrypt(keeper.flat))
    for name, part in plain.layout.split(plain.flat).items():
        assert np.allclose(decrypted[name], part, rtol=1e-3, atol=1e-3), name


def test_coordinates_that_few_send_move_alone() -> None:
    protection: Protection = BinaryWeights(zero_probability=0.6)
    keeper, members = federation(protection=protection, mode="semi-honest")
    before = keeper.flat
    total = total_of(keeper, [one.update(1, keeper.bytes).words for one in members])
    counts = keeper.layout.split(np.asarray(total.weights, np.float32))
    keeper.apply(total)
    old, new = keeper.layout.split(before), keeper.layout.split(keeper.flat)
    theirs = [keeper.layout.split(trained(one)) for one in members]
    assert {0.0, 1.0, 2.0} <= {*counts[NAMES[0]], *counts[NAMES[1]]}
    for name in NAMES:
        assert np.array_equal(new[name][counts[name] == 0], old[name][counts[name] == 0])
        for place in np.flatnonzero(counts[name] == 1):
            assert np.isclose([one[name][place] for one in theirs], new[name][place], rtol=1e-3).any()


LOCAL = {"buffers": "local"}


def own(one: Learner) -> dict[str, bytes]:
    return {name: part.tobytes() for name, part in one.layout.local(one._model).items()}


def test_local_statistics_are_each_client_s_own_and_in_no_sum() -> None:
    keeper, members = federation(training=LOCAL)
    assert not {entry.name for entry in keeper.layout.entries} & {*NAMES}
    first = keeper.layout.local(keeper.model)
    for one in members:
        one.take_fixed(keeper.fixed)
    for round in (1, 2):
        keeper.apply(total_of(keeper, [one.update(round, keeper.bytes).words for one in members]))
        assert all(np.array_equal(part, first[name]) for name, part in keeper.layout.local(keeper.model).items())
        assert all(one.personal and len({own(one)[name] for one in members}) == CLIENTS for name in NAMES)
    kept = own(members[0])
    members[0].plain(keeper.bytes, None)
    assert own(members[0]) == kept, "it is evaluated with its own"


def test_a_round_that_is_repeated_begins_with_the_statistics_of_before() -> None:
    keeper, (one, *_) = federation(training=LOCAL)
    one.take_fixed(keeper.fixed)
    words, kept = one.update(1, keeper.bytes).words, own(one)
    assert np.array_equal(one.update(1, keeper.bytes).words, words)
    assert own(one) == kept


def test_local_statistics_outlive_the_process() -> None:
    keeper, members = federation(training=LOCAL)
    for one in members:
        one.take_fixed(keeper.fixed)
    keeper.apply(total_of(keeper, [one.update(1, keeper.bytes).words for one in members]))
    again = learner(keeper.configuration, 0)
    assert again.remembers
    again.take_up(members[0].remembered)
    again.take_fixed(keeper.fixed)
    assert np.array_equal(again.update(2, keeper.bytes).words, members[0].update(2, keeper.bytes).words)
    assert own(again) == own(members[0])


def test_a_training_that_fails_leaves_them_as_they_were() -> None:
    keeper, _ = federation(training=LOCAL)
    broken = Learner(
        keeper.configuration, torch.full((8, 1, 8, 8), np.nan), torch.arange(8) % 3, seed=1, device=CPU, workload=OWN
    )
    broken.take_fixed(keeper.fixed)
    before = own(broken)
    draft = broken.learn(1, keeper.bytes)
    assert draft.failure
    broken.keep(draft)
    assert own(broken) == before
    assert {name: broken.remembered.after[name].tobytes() for name in NAMES} == before


@pytest.mark.threat("server/looks-beside-noise")
@pytest.mark.parametrize("buffers", ["average", "local"])
def test_no_statistics_leave_without_noise(buffers: str) -> None:
    """Averaged ones are shortened and noisy with all other coordinates; of local ones nothing is sent."""
    values = []
    for noise in (1e-6, 1.0):
        protection = GaussianNoise(dp_clip=0.1, dp_noise=noise)
        keeper, members = federation(protection=protection, training={"buffers": buffers})
        members[0].take_fixed(keeper.fixed)
        values.append(members[0].update(1, keeper.bytes).values)
    names = {entry.name for entry in keeper.layout.entries}
    assert {*NAMES} & names == ({*NAMES} if buffers == "average" else set())
    assert np.linalg.norm(values[0]) <= 0.1 * (1 + 1e-3)
    noisy = keeper.layout.split(values[1] - values[0])
    assert all((part != 0).all() for part in noisy.values())
    assert 0.05 < np.std(values[1] - values[0]) < 0.15


@cases(
    ("protection", "encryption", "complaint"),
    [(NoProtection(), Encryption(), "one member evaluates"), (FedCG(), None, "the server distils")],
)
def test_local_statistics_are_refused_where_others_need_them(
    protection: Protection, encryption: Encryption | None, complaint: str
) -> None:
    terms = replace(Experiment(federation=FederationSection(clients=CLIENTS)).terms(), mode="none")
    with pytest.raises(ValueError, match=f'training.buffers = "local".*{complaint}'):
        check_together(protection, encryption, terms, TrainingConfiguration(buffers="local"))


def test_local_buffers_of_a_model_without_any_or_of_gradients_are_refused() -> None:
    task = Task(model=Architecture(), training=TrainingConfiguration(buffers="local"), classes=3, channels=1)
    with pytest.raises(ValueError, match=r'training.buffers = "local": this model has no float32 buffers'):
        task.layout(task.build())
    with pytest.raises(ValueError, match=r'training.buffers = "local": with training.algorithm = "fedsgd"'):
        TrainingConfiguration(buffers="local", algorithm="fedsgd")
