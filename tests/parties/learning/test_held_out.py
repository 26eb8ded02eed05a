"""Accuracy on images that clients keep from training, against their own images and a model that is built anew."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from tacit.models.configuration import ModelConfiguration, TrainingConfiguration
from tacit.models.data import split
from tacit.models.interruption import Interrupted
from tacit.models.layout import Layout
from tacit.parties.learning.keeper import Keeper
from tacit.parties.learning.learner import Learner
from tacit.parties.learning.policy import ClientPolicy
from tacit.parties.learning.task import HELD_OUT_METRICS, LOSS_UNIT, METRICS, Task, configure
from tacit.parties.protections.catalogue import read_protection
from tacit.parties.protections.encryption import Encryption, GroupModel
from tacit.parties.protections.sides import Group
from tacit.parties.runs.experiment import Aggregation, Experiment, ExperimentError, FederationSection, parse
from tacit.protocol.group_key.agreement import GroupKey
from tacit.protocol.sum.configuration import Configuration
from tests.world.group_keys import memory_group_key

CPU = torch.device("cpu")
NAMES = ("client-1", "client-2", "client-3")
SAMPLES = dict(zip(NAMES, (7, 12, 30), strict=True))
KEPT = dict(zip(NAMES, (1, 3, 7), strict=True))
"""A quarter, rounded down."""
MODEL = ModelConfiguration(image_size=8, patch_size=4, width=8, depth=1, heads=2)
Images = tuple[torch.Tensor, torch.Tensor]


def images(name: str) -> Images:
    generator = torch.Generator().manual_seed(SAMPLES[name])
    count = SAMPLES[name]
    return torch.randn(count, 1, 8, 8, generator=generator), torch.randint(3, (count,), generator=generator)


def proposal(
    held_out: float, *, algorithm: Any = "fedavg", encryption: Encryption | None = None, **protection: Any
) -> tuple[Task, Configuration, Keeper]:
    experiment = Experiment(
        federation=FederationSection(clients=3),
        model=MODEL,
        training=TrainingConfiguration(algorithm=algorithm, epochs=1, batch_size=4, held_out=held_out),
        protection=read_protection(protection),
        encryption=encryption,
        aggregation=Aggregation(max_weight=30, clip=0.5),
        policy=ClientPolicy(uncoordinated_weights=True),
    )
    task = Task(
        model=MODEL.architecture,
        training=experiment.training,
        protection=experiment.protection,
        encryption=encryption,
        classes=3,
        channels=1,
        run=b"r" * 32,
    )
    model = task.build(seed=3)
    configuration = configure(experiment.terms(), task, model)
    return task, configuration, Keeper(configuration, model)


def learner(configuration: Configuration, own: Images) -> Learner:
    return Learner(configuration, *own, seed=5, device=CPU)


def reference(task: Task, flat: np.ndarray[Any, Any], own: Images) -> tuple[int, int, float]:
    """How many images are kept, how many of them a model gets right, and its loss, one image at a time."""
    model = task.build()
    Layout.of(model).load_into(model, flat)
    model.eval()
    _, kept = split(own[0], task.training.held_out, task.run)
    with torch.inference_mode():
        found = [(model(own[0][at : at + 1]), own[1][at : at + 1]) for at in kept.tolist()]
    right = sum(int(logits.argmax()) == int(label) for logits, label in found)
    return len(found), right, sum(float(cross_entropy(logits.double(), label)) for logits, label in found)


def agreed() -> list[Group]:
    keys: list[GroupKey] = memory_group_key(len(NAMES)).run().outcome(GroupKey)
    return [Group(key, name) for key, name in zip(keys, keys[0].members, strict=True)]


SCHEMES: list[dict[str, Any]] = [
    {"scheme": "none"},
    {"scheme": "none", "algorithm": "fedsgd"},
    {"scheme": "fixed-position"},
    {"scheme": "binary-weights"},
    {"scheme": "coordinated-binary-weights"},
]


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: " ".join(scheme.values()))
def test_the_sum_counts_what_the_model_of_the_round_gets_right(scheme: dict[str, Any]) -> None:
    """Counts exactly, over two rounds, of which the second judges what the first made."""
    task, configuration, keeper = proposal(0.25, **scheme)
    packing = configuration.packing()
    clients = {name: learner(configuration, images(name)) for name in NAMES}
    groups = agreed() if configuration.group_key else [None] * len(NAMES)
    for number in (1, 2):
        flat = keeper.flat.copy()
        total = np.zeros(packing.length, packing.ring.word)
        for client, group in zip(clients.values(), groups, strict=True):
            packing.ring.add_into(total, client.update(number, keeper.bytes, group).words)
        decoded = keeper.decode(total, len(NAMES))
        expected = [reference(task, flat, images(name)) for name in NAMES]
        counts, right, losses = zip(*expected, strict=True)
        assert counts == tuple(KEPT.values())
        assert decoded.metrics["held_out"] == sum(counts)
        assert decoded.metrics["held_out_correct"] == sum(right)
        # Every client rounds once, and sums its losses in float32: at most 7 of them, of a few nats.
        assert abs(decoded.metrics["held_out_loss"] * LOSS_UNIT - sum(losses)) < 3 * LOSS_UNIT + 1e-3
        if scheme.get("algorithm") is None:
            assert decoded.metrics["samples"] == sum(SAMPLES.values()) - sum(KEPT.values())
        keeper.apply(decoded, round=number)
        assert not np.array_equal(keeper.flat, flat)


def test_an_encrypted_model_is_judged_in_the_clear() -> None:
    task, configuration, keeper = proposal(0.25, encryption=Encryption())
    group, plain, own = agreed()[2], keeper.flat.copy(), images("client-3")
    client = learner(configuration, own)
    encrypted = GroupModel(client.layout, Encryption(), lambda seed: plain).key(group.key).encrypt(plain)
    assert not np.array_equal(encrypted, plain)
    update = client.update(1, encrypted.astype("<f4").tobytes(), group)
    metrics = configuration.packing().decode(update.words, contributors=1).metrics
    assert (metrics["held_out"], metrics["held_out_correct"]) == reference(task, plain, own)[:2]


@pytest.mark.parametrize("algorithm", ["fedavg", "fedsgd"])
def test_what_is_kept_changes_nothing_of_the_update(algorithm: str) -> None:
    """A client contributes what one contributes that has the other images alone."""
    _, with_kept, keeper = proposal(0.25, algorithm=algorithm)
    _, without, _ = proposal(0.0, algorithm=algorithm)
    x, y = images("client-2")
    trained, _ = split(x, 0.25, b"r" * 32)
    one = learner(with_kept, (x, y)).update(1, keeper.bytes)
    other = learner(without, (x[trained], y[trained])).update(1, keeper.bytes)
    np.testing.assert_array_equal(one.values, other.values)
    size = one.values.size
    np.testing.assert_array_equal(one.words[:size], other.words[:size])


def test_metrics_are_there_only_where_something_is_kept() -> None:
    assert proposal(0.0)[1].metrics == METRICS
    assert proposal(0.1)[1].metrics == METRICS + HELD_OUT_METRICS


def test_a_client_too_small_to_keep_any_still_takes_part() -> None:
    _, configuration, keeper = proposal(0.1)
    update = learner(configuration, images("client-1")).update(1, keeper.bytes)
    metrics = configuration.packing().decode(update.words, contributors=1).metrics
    assert [metrics[name] for name in HELD_OUT_METRICS] == [0, 0, 0]
    assert metrics["samples"] == 7


def test_the_largest_weight_is_that_of_the_images_trained_on() -> None:
    doubled = tuple(torch.cat([part, part]) for part in images("client-3"))
    for held_out, uncounted in ((0.5, 0), (0.25, 15)):
        _, configuration, keeper = proposal(held_out)
        update = learner(configuration, (doubled[0], doubled[1])).update(1, keeper.bytes)
        assert update.local.uncounted == uncounted


def test_judging_ends_when_nobody_waits_any_more() -> None:
    _, configuration, keeper = proposal(0.25)
    asked = itertools.count()

    def proceed() -> None:
        if next(asked) == 0:
            raise Interrupted

    with pytest.raises(Interrupted):
        learner(configuration, images("client-3")).learn(1, keeper.bytes, proceed=proceed)


@pytest.mark.parametrize("value", ["0.51", "-0.1", "nan", '"some"'])
def test_other_parts_are_refused_by_name(value: str) -> None:
    with pytest.raises(ExperimentError, match=r"training\.held_out"):
        parse(f"[training]\nheld_out = {value}\n", "test")


def test_noise_does_not_hide_counts() -> None:
    with pytest.raises(ExperimentError, match=r"training\.held_out = 0\.1: with protection\.scheme = \"dp-gaussian\""):
        parse('[training]\nheld_out = 0.1\n[protection]\nscheme = "dp-gaussian"\n', "test")
