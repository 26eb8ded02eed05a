"""What the protections do to an update, and to the model that the sum moves; against float64 written out."""

import re
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
import torch

from tacit.models.configuration import ModelConfiguration, TrainingConfiguration
from tacit.models.layout import Flat, Layout
from tacit.parties.learning.keeper import Keeper
from tacit.parties.learning.learner import Learner
from tacit.parties.learning.policy import ClientPolicy
from tacit.parties.learning.task import METRICS, Task, configure
from tacit.parties.protections.binary_weights import CoordinatedBinaryWeights
from tacit.parties.protections.catalogue import read_protection
from tacit.parties.protections.encryption import Encryption
from tacit.parties.protections.none import NoProtection
from tacit.parties.protections.sides import Basis, Group, TaskError, Trained
from tacit.parties.runs.experiment import Aggregation, Experiment, FederationSection
from tacit.protocol.group_key.agreement import GroupKey
from tacit.protocol.sum.configuration import Configuration
from tacit.secagg.packing import Total
from tests.world.group_keys import memory_group_key

CPU = torch.device("cpu")
SAMPLES = (7, 12, 20)
MODEL = ModelConfiguration(image_size=8, patch_size=4, width=8, depth=1, heads=2)
POLICY = ClientPolicy(uncoordinated_weights=True)


WORK = Task(model=MODEL.architecture, training=TrainingConfiguration(), classes=3, channels=1)
MODULE = WORK.build()
LAYOUT = Layout.of(MODULE)


def proposal(
    algorithm: str, *, encryption: Encryption | None = None, **protection: Any
) -> tuple[Configuration, Keeper]:
    experiment = Experiment(
        federation=FederationSection(clients=3),
        model=MODEL,
        training=TrainingConfiguration(algorithm=algorithm, epochs=1, batch_size=4, learning_rate=1e-2),  # type: ignore[arg-type]
        protection=read_protection(protection),
        encryption=encryption,
        aggregation=Aggregation(max_weight=20, clip=0.5),
        policy=POLICY,
    )
    task = Task(
        model=MODEL.architecture,
        training=experiment.training,
        protection=experiment.protection,
        encryption=encryption,
        classes=3,
        channels=1,
    )
    model = task.build(seed=3)
    configuration = configure(experiment.terms(), task, model)
    return configuration, Keeper(configuration, model)


def learner(configuration: Configuration, samples: int, seed: int | None = 5) -> Learner:
    generator = torch.Generator().manual_seed(samples)
    x, y = torch.randn(samples, 1, 8, 8, generator=generator), torch.randint(3, (samples,), generator=generator)
    return Learner(configuration, x, y, seed=None if seed is None else seed + samples, device=CPU)


def total_of(configuration: Configuration, words: list[Any]) -> Total:
    packing = configuration.packing()
    total = np.zeros(packing.length, packing.ring.word)
    for each in words:
        packing.ring.add_into(total, each)
    return packing.decode(total, contributors=len(words))


def position(keeper: Keeper, flat: Flat) -> Flat:
    return keeper.layout.split(flat)["pos_embed"]


@pytest.mark.parametrize("algorithm", ["fedavg", "fedsgd"])
def test_a_fixed_position_embedding_is_not_sent_and_does_not_move(algorithm: str) -> None:
    configuration, keeper = proposal(algorithm, scheme="fixed-position")
    plain, plain_keeper = proposal(algorithm)
    before = keeper.flat.copy()
    updates = [learner(configuration, samples).update(1, keeper.bytes) for samples in SAMPLES]
    others = [learner(plain, samples).update(1, keeper.bytes) for samples in SAMPLES]
    total = total_of(configuration, [update.words for update in updates])
    for update, other in zip(updates, others, strict=True):
        assert not position(keeper, update.values).any()
        assert position(keeper, other.values).any()
        position(keeper, other.values)[...] = 0
        assert np.array_equal(update.values, other.values)
    names = [entry.name for entry in keeper.layout.entries]
    weight = sum(SAMPLES) if algorithm == "fedavg" else 3
    assert total.weights.tolist() == [0 if name == "pos_embed" else weight for name in names]
    keeper.apply(total)
    assert np.array_equal(position(keeper, keeper.flat), position(keeper, before))
    plain_keeper.apply(total_of(plain, [other.words for other in others]))
    moved = keeper.flat != before
    # Both sums are within the packing's bound of the same values; the difference shrinks by the weight.
    bound = 2 * plain.packing().error_bound(3) / weight + 2.0**-22
    assert np.abs(keeper.flat - plain_keeper.flat)[moved].max() <= bound


@pytest.mark.parametrize("algorithm", ["fedavg", "fedsgd"])
@pytest.mark.parametrize("min_contributors", [1, 2])
def test_binary_weights_average_over_those_who_contributed(algorithm: str, min_contributors: int) -> None:
    configuration, keeper = proposal(algorithm, scheme="binary-weights", min_contributors=min_contributors)
    plain, _ = proposal(algorithm)
    before = keeper.flat.astype(np.float64)
    updates = [learner(configuration, samples).update(1, keeper.bytes) for samples in SAMPLES]
    # Without protection the same clients send the same values times their weight.
    bare = []
    for samples in SAMPLES:
        values = learner(plain, samples).update(1, keeper.bytes).values.astype(np.float64)
        bare.append(values / (samples if algorithm == "fedavg" else 1))
    total = total_of(configuration, [update.words for update in updates])
    masks = [update.values != 0 for update in updates]
    for update, mask, values in zip(updates, masks, bare, strict=True):
        assert 0.4 < mask[values != 0].mean() < 0.6
        # float32: times and over a number of samples, each rounded to 2^-24 of a value below one half.
        assert np.abs(update.values - values * mask).max() < 2.0**-23
    counts = np.asarray(total.weights)
    assert counts.max() == 3
    assert (counts >= np.sum(masks, axis=0)).all()
    keeper.apply(total)
    enough = counts >= min_contributors
    sums = np.sum([update.values.astype(np.float64) for update in updates], axis=0)
    mean = np.divide(sums, counts, out=np.zeros_like(sums), where=enough)
    expected = before + (mean if algorithm == "fedavg" else -1e-2 * mean)
    # One contributor is the worst case of the bound; a coordinate below 4 is rounded to float32 once.
    bound = configuration.packing().error_bound(3) + 4.0 * 2.0**-24
    assert np.abs(keeper.flat - expected).max() <= bound
    assert np.array_equal(keeper.flat[~enough], before[~enough].astype(np.float32))
    assert (~enough).mean() > (0.1 if min_contributors == 1 else 0.4)


def test_masks_are_fresh_every_round_and_for_every_client_unless_locked() -> None:
    def zeros(scheme: str, samples: int, round: int, seed: int | None = 5) -> tuple[Any, ...]:
        configuration, keeper = proposal("fedsgd", scheme=scheme)
        mine = learner(configuration, samples, seed)
        return tuple(tuple(mine.update(each, keeper.bytes).values != 0) for each in (round, round, round + 1))

    first, again, next_round = zeros("binary-weights", 12, 1)
    assert first == again != next_round
    first, again, next_round = zeros("binary-weights", 12, 1, seed=None)
    assert len({first, again, next_round}) == 3
    for seed in (5, None):
        assert len(set(zeros("locked-binary-weights", 12, 1, seed))) == 1
    assert zeros("locked-binary-weights", 12, 1)[0] == zeros("locked-binary-weights", 12, 9)[0]
    assert zeros("locked-binary-weights", 12, 1, None)[0] != zeros("locked-binary-weights", 12, 1, None)[0]


def test_patterns_set_the_probability_of_a_layer() -> None:
    configuration, keeper = proposal("fedsgd", scheme="binary-weights", layers={"*": 0.0, "pos_embed": 0.999})
    values = learner(configuration, 12).update(1, keeper.bytes).values
    assert not position(keeper, values).any()
    assert (keeper.layout.split(values)["head.weight"] != 0).all()


MEMBERS = 5


def coordinated(epoch: int, rounds: range, **protection: Any) -> npt.NDArray[np.bool_]:
    """What five members with the key of that agreement draw: bool [rounds, members, D]."""
    chosen = CoordinatedBinaryWeights(min_contributors=2, **protection)
    keys: list[GroupKey] = memory_group_key(MEMBERS, epoch=epoch).run().outcome(GroupKey)
    groups = [Group(key, name) for key, name in zip(keys, keys[0].members, strict=True)]
    # Seeds of their own, of which nothing depends.
    sides = [chosen.client(basis(seed)) for seed in range(MEMBERS)]
    return np.array(
        [[own.protect(trained(r, group)).weights for own, group in zip(sides, groups, strict=True)] for r in rounds]
    )


def basis(seed: int | None) -> Basis:
    terms = Experiment(aggregation=Aggregation(dropout=0.2)).terms()
    return Basis(configure(terms, WORK, MODULE), WORK, MODULE, seed, CPU)


def trained(round: int, group: Group | None) -> Trained:
    flat = np.zeros(LAYOUT.size, np.float32)
    return Trained(round, flat, flat, 7, np.random.SeedSequence(), group)


@pytest.mark.parametrize("zero", [0.2, 0.5, 0.8])
def test_coordinated_weights_have_many_contributors_or_none(zero: float) -> None:
    drawn = coordinated(0, range(1, 41), zero_probability=zero)
    contributors = drawn.sum(axis=1)
    # Two, and the one of five that dropout = 0.2 tolerates to be lost.
    assert set(np.unique(contributors)) <= {0, 3, 4, 5}
    assert (contributors == 0).any()
    assert (contributors == 3).any()
    # A member's coordinates are independent of each other: five standard deviations.
    draws = drawn[:, 0].size
    for member in range(MEMBERS):
        assert abs(1 - drawn[:, member].mean() - zero) < 5 * np.sqrt(zero * (1 - zero) / draws)


def test_another_round_or_another_key_gives_other_coordinated_weights() -> None:
    first, again, other = coordinated(0, range(1, 3)), coordinated(0, range(1, 3)), coordinated(1, range(1, 3))
    assert np.array_equal(first, again)
    for one, two in ((first[0], first[1]), (first[0], other[0])):
        # Independent, each a zero or a one with probability a half: they agree in half of 5 x 827 places.
        assert 0.45 < (one == two).mean() < 0.55


def test_patterns_set_the_probability_of_coordinated_weights() -> None:
    drawn = coordinated(0, range(1, 2), layers={"*": 0.0, "pos_embed": 0.999})[0]
    positions = [LAYOUT.split(weights.astype(np.float32))["pos_embed"] for weights in drawn]
    heads = [LAYOUT.split(weights.astype(np.float32))["head.weight"] for weights in drawn]
    assert not np.any(positions)
    assert np.all(heads)


def test_weights_cannot_be_coordinated_with_nobody_or_too_few() -> None:
    side = CoordinatedBinaryWeights(min_contributors=5).client(basis(None))
    with pytest.raises(ValueError, match="coordinated weights need a group key"):
        side.protect(trained(1, None))
    key = memory_group_key(MEMBERS).run().outcome(GroupKey)[0]
    with pytest.raises(ValueError, match="ask for 6 contributors to a coordinate, and a round has 5 members; lower"):
        side.protect(trained(1, Group(key, key.members[0])))


@pytest.mark.parametrize(
    ("protection", "complaint"),
    [
        ({"scheme": "fixed-position"}, "no position embedding"),
        ({"encryption": Encryption()}, 'no tensor "patch_embed.proj.weight" of 4 dimensions'),
        ({"scheme": "binary-weights", "layers": {"position": 0.5}}, '"position" matches no tensor'),
    ],
)
def test_a_protection_that_does_not_fit_the_model_is_refused(protection: dict[str, Any], complaint: str) -> None:
    model = ModelConfiguration(name="resnet18", image_size=32) if "layers" not in protection else MODEL
    encryption = protection.pop("encryption", None)
    task = Task(
        model=model.architecture,
        training=TrainingConfiguration(),
        protection=read_protection(protection),
        encryption=encryption,
        classes=3,
        channels=1,
    )
    built = task.build()
    experiment = Experiment(model=model, protection=task.protection, encryption=encryption, policy=POLICY)
    with pytest.raises(ValueError, match=complaint):
        configure(experiment.terms(), task, built)
    # A client does not rely on the server for it.
    plain = msgspec.structs.replace(task, protection=NoProtection(), encryption=None)
    configuration = configure(Experiment(model=model).terms(), plain, built)
    with pytest.raises(ValueError, match=complaint):
        learner(msgspec.structs.replace(configuration, task=task.encode()), 7)


EVERYTHING: dict[str, Any] = {"scheme": "binary-weights", "min_contributors": 2}


@pytest.mark.parametrize(
    ("field", "said", "derived"),
    [
        ("scheme", "fedsgd", "fedavg"),
        ("encrypted", False, True),
        ("initial_model", "server", "clients"),
        ("min_contributors", 1, 2),
        ("rekey_every", 0, 3),
        ("max_weight", 5, 1),
        ("metrics", (), "('samples', 'correct', 'loss', 'clipped')"),
    ],
)
def test_a_server_whose_task_contradicts_its_configuration_is_refused(field: str, said: Any, derived: Any) -> None:
    """The client derives the configuration once more, and compares the whole."""
    configuration, _ = proposal("fedavg", encryption=Encryption(rekey_every=3), **EVERYTHING)
    learner(configuration, 7)
    # A ring that has room for more, or nobody would look at the weight.
    changes = {field: said} | ({"ring_bits": 32} if field == "max_weight" else {})
    complaint = f"has {field} = {said}, and from its task follows {derived}: it contradicts itself"
    with pytest.raises(TaskError, match=re.escape(complaint)):
        learner(msgspec.structs.replace(configuration, **changes), 7)


def test_a_server_that_wants_of_vectors_what_its_task_does_not_is_refused() -> None:
    configuration, _ = proposal("fedavg", scheme="fixed-position")
    with pytest.raises(TaskError, match="single_vectors = True, and from its task follows False: it contradicts"):
        learner(msgspec.structs.replace(configuration, mode="none", ring_bits=32, single_vectors=True), 7)


def test_a_server_that_wants_coordination_without_a_key_is_refused() -> None:
    configuration, _ = proposal("fedavg", scheme="coordinated-binary-weights")
    with pytest.raises(TaskError, match="group_key = False, and from its task follows True: it contradicts itself"):
        learner(msgspec.structs.replace(configuration, group_key=False), 7)


def test_one_key_is_renewed_as_often_as_either_use_of_it_asks() -> None:
    for encryption, protection, renewed in ((0, 0, 0), (3, 0, 3), (0, 4, 4), (3, 4, 3), (5, 4, 4)):
        configuration, _ = proposal(
            "fedavg",
            encryption=Encryption(rekey_every=encryption),
            scheme="coordinated-binary-weights",
            rekey_every=protection,
        )
        assert configuration.rekey_every == renewed


def test_metrics_travel_with_every_protection() -> None:
    for scheme in ("fixed-position", "binary-weights"):
        configuration, keeper = proposal("fedavg", scheme=scheme)
        total = total_of(configuration, [learner(configuration, n).update(1, keeper.bytes).words for n in SAMPLES])
        assert set(total.metrics) == set(METRICS)
        assert total.metrics["samples"] == sum(SAMPLES)
