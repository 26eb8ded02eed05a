"""What an update holds and what becomes of the sums, against federated averaging written out in float64."""

from itertools import combinations
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import nn

from tacit.models.configuration import ModelConfiguration, TrainingConfiguration
from tacit.models.layout import Layout
from tacit.models.training import gradient, train
from tacit.parties.learning.keeper import Keeper
from tacit.parties.learning.learner import Learner, Update
from tacit.parties.learning.task import LOSS_UNIT, METRICS, Task, check_classes, class_digest, read_task
from tacit.parties.protections.sides import OtherClassesError, TaskError
from tacit.parties.session.task import UnusableSumError
from tacit.protocol.core.blob import StateLayout
from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.sum.configuration import Configuration, Scheme
from tacit.secagg.packing import Packing, Total, WeightForm
from tacit.simulate.world.federation import added

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")
SAMPLES = (7, 12, 20)
MODEL = ModelConfiguration(image_size=8, patch_size=4, width=8, depth=1, heads=2)


def proposal(scheme: Scheme, *, clip: float = 0.5, rate: float = 1e-2, **more: Any) -> tuple[Configuration, nn.Module]:
    """A configuration for three clients, and the model that it belongs to. more: of training."""
    training = TrainingConfiguration(algorithm=scheme, epochs=2, batch_size=4, learning_rate=rate, **more)
    task = Task(model=MODEL.architecture, training=training, classes=3, channels=1)
    model = task.build(seed=3)
    layout = Layout.of(model)
    max_weight = 20 if scheme == "fedavg" else 1
    packing = Packing(
        clients=3,
        clip=clip,
        value_bits=20,
        max_weight=max_weight,
        form=WeightForm.SCALAR,
        tensor_sizes=layout.tensor_sizes,
        metrics=METRICS,
    )
    configuration = Configuration(
        scheme=scheme,
        mode="active",
        graph="complete",
        colluders=0,
        dropout=0.33,
        threshold=0,
        clients=3,
        clip=clip,
        value_bits=20,
        max_weight=max_weight,
        ring_bits=packing.ring.bits,
        form=WeightForm.SCALAR,
        tensor_sizes=layout.tensor_sizes,
        metrics=METRICS,
        state=StateLayout(type="float32", count=layout.size),
        layout=layout.digest(),
        task=task.encode(),
        train_seconds=60.0,
        phase_seconds=60.0,
    )
    return configuration, model


def images(samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(samples)
    return torch.randn(samples, 1, 8, 8, generator=generator), torch.randint(3, (samples,), generator=generator)


def learner(configuration: Configuration, samples: int, seed: int | None = 5) -> Learner:
    return Learner(configuration, *images(samples), seed=seed, device=CPU)


def total_of(configuration: Configuration, updates: list[Update]) -> Total:
    packing = configuration.packing()
    words = np.zeros(packing.length, packing.ring.word)
    for update in updates:
        packing.ring.add_into(words, update.words)
    return packing.decode(words, contributors=len(updates))


def all_updates(configuration: Configuration, model: nn.Module) -> list[Update]:
    flat = Keeper(configuration, model).bytes
    return [learner(configuration, samples).update(1, flat) for samples in SAMPLES]


@pytest.mark.parametrize("scheme", ["fedavg", "fedsgd"])
def test_the_new_model_is_the_weighted_mean_of_the_clients_models(scheme: Scheme) -> None:
    configuration, model = proposal(scheme)
    keeper = Keeper(configuration, model)
    before = keeper.flat.astype(np.float64)
    updates = all_updates(configuration, model)
    total = total_of(configuration, updates)
    keeper.apply(total)
    weights = np.array(SAMPLES if scheme == "fedavg" else (1, 1, 1))
    # What the clients meant, from the values that they recorded before rounding: sum(n * x) / sum(n).
    mean = sum(update.values.astype(np.float64) for update in updates) / weights.sum()
    expected = before + mean if scheme == "fedavg" else before - 1e-2 * mean
    # The sum is within error_bound, and the new coordinate (below 4 in absolute value) is rounded to float32 once.
    assert np.abs(before).max() + np.abs(mean).max() < 4.0
    bound = configuration.packing().error_bound(3) / weights.sum() + 4.0 * 2.0**-24
    assert np.abs(keeper.flat - expected).max() <= bound
    assert np.abs(mean).max() > 100 * bound
    assert np.array_equal(keeper.layout.flatten(keeper.model), keeper.flat)
    assert np.frombuffer(keeper.bytes, "<f4").tolist() == keeper.flat.tolist()


def test_a_fedavg_update_is_samples_times_the_way_of_the_model() -> None:
    configuration, model = proposal("fedavg")
    flat = Keeper(configuration, model).flat
    update = learner(configuration, 12).update(4, flat.tobytes())
    seeds = np.random.SeedSequence([5, 4]).spawn(2)
    seed = int(seeds[0].generate_state(1, np.uint64)[0] >> np.uint64(1))
    statistics = train(model, *images(12), read_task(configuration).training, seed=seed, device=CPU)
    way = Layout.of(model).flatten(model) - flat
    assert np.abs(way).max() < 0.5, "the case below has nothing to clip"
    assert np.array_equal(update.values, np.float32(12) * way)
    assert update.statistics == statistics
    assert update.clipped == 0
    total = total_of(configuration, [update])
    assert int(total.weights) == 12
    assert total.metrics == {
        "samples": 12,
        "correct": statistics.correct,
        "loss": round(statistics.loss_sum / LOSS_UNIT),
        "clipped": 0,
    }


def test_a_fedsgd_update_is_the_gradient_with_weight_one() -> None:
    configuration, model = proposal("fedsgd", clip=4.0)
    update = learner(configuration, 12).update(1, Keeper(configuration, model).bytes)
    expected, statistics = gradient(model, *images(12), batch_size=4, device=CPU)
    assert np.array_equal(update.values, expected)
    total = total_of(configuration, [update])
    assert int(total.weights) == 1
    assert total.metrics["samples"] == statistics.samples == 12


@pytest.mark.parametrize("seed", [5, None])
def test_the_gradient_of_a_round_is_the_mean_over_images_that_are_drawn_anew(seed: int | None) -> None:
    configuration, model = proposal("fedsgd", clip=4.0, fedsgd_images=2)
    flat = Keeper(configuration, model).bytes
    x, y = images(6)
    pairs = list(combinations(range(6), 2))
    means = [gradient(model, x[list(pair)], y[list(pair)], batch_size=2, device=CPU)[0] for pair in pairs]
    found = set()
    for round in range(1, 41):
        update = learner(configuration, 6, seed).update(round, flat)
        distances = np.array([np.linalg.norm(update.values - mean) for mean in means])
        nearest = int(distances.argmin())
        # Whichever of the two comes first, sums of two are the same; the passes before differ by some 1000 roundings.
        assert distances[nearest] < 1000 * 2.0**-24 * np.linalg.norm(means[nearest]) < np.sort(distances)[1]
        found.add(nearest)
        total = total_of(configuration, [update])
        assert (int(total.weights), total.metrics["samples"]) == (1, 2)
    # Fewer than 5 of 15 pairs in 40 fair draws: below C(15, 4) (4 / 15)^40 < 2^-65.
    assert len(found) >= 5


def test_a_client_with_fewer_images_than_are_drawn_takes_all() -> None:
    configuration, model = proposal("fedsgd", clip=4.0)
    flat = Keeper(configuration, model).bytes
    whole = learner(configuration, 12).update(1, flat)
    for images_drawn in (12, 13):
        few = learner(proposal("fedsgd", clip=4.0, fedsgd_images=images_drawn)[0], 12).update(1, flat)
        assert np.array_equal(few.values, whole.values)
        assert few.statistics.samples == 12


@pytest.mark.parametrize("round", [1, 2, 3])
@pytest.mark.parametrize("scheme", ["fedavg", "fedsgd"])
def test_a_rate_that_decays_is_in_its_round_the_smaller_one(scheme: Scheme, round: int) -> None:
    """Both sides, against a federation that has had that rate all along; powers of two multiply exactly."""
    rate = 2.0**-6 if round < 2 else 2.0**-8
    results = []
    for settings in ({"rate": 2.0**-6, "decay": 0.25, "decay_rounds": (2,)}, {"rate": rate}):
        configuration, model = proposal(scheme, **settings)
        keeper = Keeper(configuration, model)
        updates = [learner(configuration, samples).update(round, keeper.bytes) for samples in SAMPLES]
        keeper.apply(total_of(configuration, updates), round=round)
        results.append(keeper.bytes)
    assert results[0] == results[1]


def test_the_server_steps_with_momentum_as_sgd_does() -> None:
    """Against torch.optim.SGD in float64, on gradients that are given; the rate decays in between."""
    configuration, model = proposal("fedsgd", rate=0.5, momentum=0.75, decay=0.5, decay_rounds=(3,))
    keeper, sizes = Keeper(configuration, model), configuration.tensor_sizes
    reference = torch.from_numpy(keeper.flat.astype(np.float64)).requires_grad_()
    optimizer = torch.optim.SGD([reference], lr=0.5, momentum=0.75)
    random = np.random.default_rng(1)
    for round in range(1, 6):
        mean = random.uniform(-1.0, 1.0, sum(sizes))
        reference.grad = torch.from_numpy(mean.copy())
        optimizer.param_groups[0]["lr"] = 0.5 if round < 3 else 0.25
        optimizer.step()
        keeper.apply(Total(values=3 * mean, weights=np.int64(3), metrics={}, tensor_sizes=sizes), round=round)
    # Velocities are below 1 / (1 - 0.75) = 4, coordinates below 1 + 5 * 0.5 * 4 = 11; both are rounded 5 times, and
    # what is off in a velocity goes into at most 4 steps more, of 0.5 each.
    assert np.abs(reference.detach().numpy() - keeper.flat).max() <= 5 * 2.0**-24 * (11 + 4 * 0.5 * 4)
    assert keeper.velocity is not None
    # The model is another, for instance under another key.
    keeper.replace(keeper.bytes)
    assert not keeper.velocity.any()


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_the_server_steps_by_its_optimizer_with_memory(optimizer: str) -> None:
    """FedAvgM and FedAdam, written out, on mean updates that are given; a kept memory goes on."""
    rate = {"momentum": 1.0, "adam": 0.01}[optimizer]
    configuration, model = proposal("fedavg", server_optimizer=optimizer, server_momentum=0.5)
    keeper, sizes = Keeper(configuration, model), configuration.tensor_sizes
    expected = keeper.flat.astype(np.float64)
    first, second = np.zeros(len(expected)), np.zeros(len(expected))
    random = np.random.default_rng(1)
    for round in range(1, 5):
        if round == 3:
            # Another process, which has read both.
            kept, memory = keeper.flat, keeper.velocity
            keeper = Keeper(*proposal("fedavg", server_optimizer=optimizer, server_momentum=0.5))
            keeper.flat, keeper.velocity = kept, memory
        mean = random.uniform(-1.0, 1.0, sum(sizes))
        if optimizer == "adam":
            first, second = 0.5 * first + 0.5 * mean, 0.99 * second + 0.01 * mean**2
            expected += rate * first / (np.sqrt(second) + 1e-3)
        else:
            first = 0.5 * first + mean
            expected += rate * first
        keeper.apply(Total(values=3 * mean, weights=np.int64(3), metrics={}, tensor_sizes=sizes), round=round)
    assert np.abs(expected - keeper.flat).max() < 1e-5
    assert keeper.velocity is not None
    assert keeper.velocity_layout.size == len(keeper.velocity)
    before, memory = keeper.bytes, keeper.velocity
    keeper.apply(Total(values=3 * mean, weights=np.int64(3), metrics={}, tensor_sizes=sizes), round=5)
    keeper.undo()
    assert (keeper.bytes, keeper.velocity is memory) == (before, True)


def test_the_velocity_waits_where_nobody_contributed() -> None:
    configuration, model = proposal("fedsgd", rate=0.5, momentum=0.5)
    keeper, sizes = Keeper(configuration, model), configuration.tensor_sizes
    first = np.zeros(len(sizes), np.int64)
    first[1] = 1
    values, own = np.zeros(sum(sizes)), slice(sizes[0], sizes[0] + sizes[1])
    values[own] = 1.0
    keeper.apply(Total(values=values, weights=first, metrics={}, tensor_sizes=sizes))
    between = keeper.flat.copy()
    keeper.apply(Total(values=1.0 - values, weights=1 - first, metrics={}, tensor_sizes=sizes))
    assert np.array_equal(keeper.flat[own], between[own])
    assert keeper.velocity is not None
    assert (keeper.velocity == 1.0).all()


@pytest.mark.parametrize(("scheme", "more"), [("fedsgd", {}), ("fedavg", {"momentum": 0.5, "optimizer": "sgd"})])
def test_only_a_server_with_momentum_has_a_velocity(scheme: Scheme, more: dict[str, Any]) -> None:
    assert Keeper(*proposal(scheme, **more)).velocity is None


def test_coordinates_beyond_the_clip_are_cut_and_counted() -> None:
    configuration, model = proposal("fedavg")
    free = learner(configuration, 12).update(1, Keeper(configuration, model).bytes)
    way = free.values / np.float32(12)
    clip = float(np.quantile(np.abs(way), 0.7))
    configuration, model = proposal("fedavg", clip=clip)
    update = learner(configuration, 12).update(1, Keeper(configuration, model).bytes)
    # Dividing by 12 rounded: coordinates next to the clip may fall on its other side.
    near = int((np.abs(np.abs(way) - clip) < 1e-6 * clip).sum())
    assert abs(update.clipped - int((np.abs(way) > clip).sum())) <= near < update.clipped
    assert np.abs(update.values).max() == np.float32(12) * np.float32(clip)
    assert total_of(configuration, [update]).metrics["clipped"] == update.clipped


def test_without_secure_aggregation_updates_are_float32_as_they_are() -> None:
    """Neither clipped nor rounded: of one client the server reads the update bit for bit, of all the exact mean."""
    configuration, model = proposal("fedavg", clip=1e-6)
    configuration = msgspec.structs.replace(configuration, mode="none", ring_bits=32)
    keeper, values = Keeper(configuration, model), []
    learners = [learner(configuration, samples) for samples in SAMPLES]
    drafts = [one.learn(1, keeper.bytes) for one in learners]
    updates = [one.encode(draft) for one, draft in zip(learners, drafts, strict=True)]
    for draft, update in zip(drafts, updates, strict=True):
        assert update.clipped == 0
        assert np.abs(draft.values).max() > 1e-4
        values.append(configuration.packing().decode(update.words, contributors=1).mean()[0].astype(np.float32))
        assert np.array_equal(values[-1], draft.values)
    total = configuration.packing().decode(
        added(configuration.packing(), [update.words for update in updates]), contributors=len(updates)
    )
    sums = sum(samples * one.astype(np.float64) for samples, one in zip(SAMPLES, values, strict=True))
    assert np.array_equal(total.values, sums)
    assert (total.weights, total.metrics["samples"]) == (sum(SAMPLES), sum(SAMPLES))
    before = keeper.flat.copy()
    keeper.apply(total)
    assert np.array_equal(keeper.flat, (before + sums / sum(SAMPLES)).astype(np.float32))


def test_where_nobody_contributed_the_model_stays() -> None:
    configuration, model = proposal("fedavg")
    keeper = Keeper(configuration, model)
    before = keeper.flat.copy()
    sizes = configuration.tensor_sizes
    weights = np.zeros(len(sizes), np.int64)
    weights[1] = 2
    keeper.apply(Total(values=np.full(sum(sizes), 0.5), weights=weights, metrics={}, tensor_sizes=sizes))
    moved = np.zeros(sum(sizes), bool)
    moved[sizes[0] : sizes[0] + sizes[1]] = True
    assert np.array_equal(keeper.flat[~moved], before[~moved])
    assert np.array_equal(keeper.flat[moved], (before[moved].astype(np.float64) + 0.25).astype(np.float32))


def test_the_same_seed_gives_the_same_words_and_every_other_thing_others() -> None:
    configuration, model = proposal("fedavg")
    flat = Keeper(configuration, model).bytes

    def words(seed: int | None, round: int) -> bytes:
        return learner(configuration, 12, seed).update(round, flat).words.tobytes()

    assert words(5, 1) == words(5, 1)
    assert len({words(5, 1), words(5, 2), words(6, 1), words(None, 1), words(None, 1)}) == 5


def test_a_learner_that_was_used_gives_what_a_fresh_one_gives() -> None:
    """A client that joins again in round 2, as in a resumed run, must contribute what it would have contributed."""
    configuration, model = proposal("fedavg")
    flat = Keeper(configuration, model).bytes
    used = learner(configuration, 12)
    used.update(1, flat)
    assert used.update(2, flat).words.tobytes() == learner(configuration, 12).update(2, flat).words.tobytes()


def test_a_sum_that_honest_contributions_cannot_reach_is_refused() -> None:
    configuration, model = proposal("fedavg")
    packing = configuration.packing()
    words = packing.ring.from_signed(np.full(packing.length, packing.quantiser.levels + 1))
    with pytest.raises(ValueError, match="beyond the reachable"):
        Keeper(configuration, model).decode(words, 1)


def test_another_layout_is_refused() -> None:
    configuration, _ = proposal("fedavg")
    for other in (
        msgspec.structs.replace(configuration, layout=bytes(32)),
        msgspec.structs.replace(configuration, tensor_sizes=(*configuration.tensor_sizes[:-1], 4)),
    ):
        with pytest.raises(TaskError, match="install the same versions of timm"):
            learner(other, 12)


@pytest.mark.parametrize(("field", "value"), [("classes", 0), ("classes", 65_537), ("channels", -1), ("channels", 257)])
def test_a_size_that_no_data_have_is_refused(field: str, value: int) -> None:
    configuration, _ = proposal("fedavg")
    task = msgspec.structs.replace(read_task(configuration), **{field: value})
    with pytest.raises(RemoteProtocolError, match=field) as refused:
        learner(msgspec.structs.replace(configuration, task=task.encode()), 12)
    assert refused.value.code is Code.MALFORMED


def test_more_samples_than_the_largest_weight_count_for_it() -> None:
    configuration, model = proposal("fedavg")
    for samples, uncounted in ((20, 0), (21, 1), (40, 20)):
        update = learner(configuration, samples).update(1, Keeper(configuration, model).bytes)
        total = configuration.packing().decode(update.words, contributors=1)
        assert (int(total.weights), update.local.uncounted) == (20, uncounted)
        assert total.metrics["samples"] == samples


def test_training_that_diverges_contributes_nothing_and_says_why() -> None:
    configuration, model = proposal("fedavg", rate=100.0)
    configuration = msgspec.structs.replace(
        configuration,
        task=msgspec.msgpack.encode(
            msgspec.structs.replace(
                read_task(configuration),
                training=TrainingConfiguration(optimizer="sgd", learning_rate=100.0, epochs=50, batch_size=4),
            )
        ),
    )
    one, keeper = learner(configuration, 20), Keeper(configuration, model)
    draft = one.learn(1, keeper.bytes)
    assert "take a smaller learning_rate" in draft.failure
    total = configuration.packing().decode(one.encode(draft).words, contributors=1)
    assert int(total.weights) == 0
    assert not total.values.any()
    assert not any(total.metrics.values())
    with pytest.raises(UnusableSumError, match="no client has contributed to it"):
        keeper.apply(total)


def test_a_task_survives_the_configuration_and_garbage_does_not() -> None:
    configuration, _ = proposal("fedavg")
    task = read_task(configuration)
    assert (task.classes, task.channels, task.training.epochs) == (3, 1, 2)
    assert task.encode() == configuration.task
    for garbage in (b"", b"\x80", configuration.task + b"\x00"):
        with pytest.raises(RemoteProtocolError):
            read_task(msgspec.structs.replace(configuration, task=garbage))


def test_the_list_of_classes_is_agreed_by_its_digest() -> None:
    names = ("benign", "malignant")
    task = Task(
        model=MODEL.architecture,
        training=TrainingConfiguration(),
        classes=2,
        channels=1,
        class_digest=class_digest(names),
    )
    check_classes(task, names)
    for others in (("malignant", "benign"), ("benign",), ("benignmalignant", ""), ("benign", "malignant", "x")):
        with pytest.raises(
            OtherClassesError, match=r"the server's task has 2, and the lists differ: set data\.classes"
        ):
            check_classes(task, others)
