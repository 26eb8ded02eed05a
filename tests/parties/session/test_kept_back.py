"""What clients keep back (FedRSM, FedSplit) or blur (Gaussian noise), and what the sum makes of the rest."""

import re
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from tacit.models.configuration import ModelConfiguration, TrainingConfiguration
from tacit.models.layers import layers
from tacit.models.layout import Flat
from tacit.models.representation import Representation, alteration, consistency
from tacit.models.stimuli import Stimuli
from tacit.models.training import evaluate
from tacit.parties.learning.keeper import Keeper
from tacit.parties.learning.learner import Learner, Update
from tacit.parties.learning.policy import ClientPolicy
from tacit.parties.learning.task import METRICS, Task, configure, read_task
from tacit.parties.protections.catalogue import protection_hook, read_protection
from tacit.parties.protections.fedrsm import (
    MOST_METRICS,
    FedRSM,
    kept_back,
    pack_uploads,
    unpack_uploads,
    upload_metrics,
)
from tacit.parties.protections.sides import Basis, TaskError
from tacit.parties.runs.experiment import Aggregation, Experiment, FederationSection
from tacit.parties.session.task import UnusableSumError
from tacit.protocol.sum.configuration import Configuration
from tacit.secagg.packing import Total

CPU = torch.device("cpu")
SAMPLES = (7, 12, 20)
LENET = ModelConfiguration(name="lenet", image_size=8)
SHAPE = (1, 8, 8)
STIMULI = Stimuli.of(torch.randn(6, *SHAPE, generator=torch.Generator().manual_seed(0)))
LAYERS = ("conv1", "conv2", "conv3", "fc")


def proposal(
    *, model: ModelConfiguration = LENET, stimuli: Stimuli | None = STIMULI, **protection: Any
) -> tuple[Configuration, Keeper]:
    experiment = Experiment(
        federation=FederationSection(clients=3),
        model=model,
        training=TrainingConfiguration(epochs=1, batch_size=4, learning_rate=1e-2),
        protection=read_protection(protection),
        aggregation=Aggregation(max_weight=20, clip=0.5),
        policy=ClientPolicy(uncoordinated_weights=True),
    )
    task = Task(
        model=model.architecture,
        training=experiment.training,
        protection=experiment.protection,
        classes=3,
        channels=1,
        stimuli=stimuli if experiment.protection.scheme == "fedrsm" else None,
    )
    built = task.build(seed=3)
    configuration = configure(experiment.terms(), task, built)
    return configuration, Keeper(configuration, built)


def learner(configuration: Configuration, samples: int, *, seed: int | None = 5, size: int = 8) -> Learner:
    generator = torch.Generator().manual_seed(samples)
    x, y = torch.randn(samples, 1, size, size, generator=generator), torch.randint(3, (samples,), generator=generator)
    return Learner(configuration, x, y, seed=None if seed is None else seed + samples, device=CPU)


def total_of(configuration: Configuration, updates: Sequence[Update]) -> Total:
    packing = configuration.packing()
    total = np.zeros(packing.length, packing.ring.word)
    for update in updates:
        packing.ring.add_into(total, update.words)
    return packing.decode(total, contributors=len(updates))


def of_layer(keeper: Keeper, flat: Flat, layer: str) -> Flat:
    parts = keeper.layout.split(flat.astype(np.float32))
    return np.concatenate([part.reshape(-1) for name, part in parts.items() if name.startswith(f"{layer}.")])


@pytest.mark.parametrize("mask", ["highest", "lowest"])
@pytest.mark.parametrize("masked_layers", [0, 1, 3])
def test_the_layers_that_changed_most_or_least_are_kept_back(mask: str, masked_layers: int) -> None:
    """Two rounds, against the formulas: RC of the trained model with the round's, RCA against the round before."""
    configuration, keeper = proposal(scheme="fedrsm", mask=mask, masked_layers=masked_layers)
    plain, _ = proposal()
    mine, reference = learner(configuration, 12), learner(plain, 12)
    built = Task(model=LENET.architecture, training=TrainingConfiguration(), classes=3, channels=1).build()
    view = Representation(built, STIMULI, granularity="layer", shape=SHAPE, device=CPU)
    before = np.ones(4)
    for round in (1, 2):
        update = mine.update(round, keeper.bytes)
        whole = reference.update(round, keeper.bytes)
        trained = keeper.flat + whole.values / 12
        keeper.layout.load_into(built, trained)
        local = view.distances(built)
        keeper.layout.load_into(built, keeper.flat)
        now = consistency(view.distances(built), local)
        changed = alteration(now, before)
        before = now
        ranked = sorted(range(4), key=lambda place: changed[place] if mask == "lowest" else -changed[place])
        expected = {LAYERS[place] for place in ranked[:masked_layers]}
        assert set(update.local.layers) == expected
        assert len({*changed.round(12)}) == 4, "no ties: the choice must follow from the formula"
        for name in LAYERS:
            part = of_layer(keeper, update.values, name)
            wanted = np.zeros_like(part) if name in expected else of_layer(keeper, whole.values, name)
            assert np.array_equal(part, wanted)
        sizes = {name: of_layer(keeper, keeper.flat, name).size for name in LAYERS}
        assert update.local.kept == sum(sizes[name] for name in expected)
        keeper.apply(total_of(configuration, [update]))


@pytest.mark.parametrize(
    ("settings", "alterations", "expected"),
    [
        ({}, [0.1, 0.5, 0.4, 0.9], [3]),
        ({"masked_layers": 2}, [0.1, 0.5, 0.4, 0.9], [1, 3]),
        ({"send_classifier": True}, [0.1, 0.5, 0.4, 0.9], [1]),
        ({"send_classifier": True, "masked_layers": 3}, [0.1, 0.5, 0.4, 0.9], [0, 1, 2]),
        ({"send_classifier": True, "mask": "lowest"}, [0.3, 0.5, 0.4, 0.1], [0]),
        # Gaps of 0.4, 0.1 and 0.3 behind 0.9.
        ({"adaptive": True, "masked_layers": 3}, [0.1, 0.5, 0.4, 0.9], [3]),
        ({"adaptive": True, "masked_layers": 3, "mask": "lowest"}, [0.1, 0.5, 0.4, 0.9], [0, 1, 2]),
        # The widest gap stands behind the third, which is beyond the most that may be kept back.
        ({"adaptive": True, "masked_layers": 2}, [0.1, 0.9, 0.8, 0.85], [1]),
        ({"adaptive": True, "masked_layers": 3}, [0.1, 0.9, 0.8, 0.85], [1, 2, 3]),
        ({"adaptive": True, "masked_layers": 3, "send_classifier": True}, [0.2, 0.9, 0.8, 0.95], [1, 2]),
        ({"adaptive": True, "masked_layers": 1}, [0.1, 0.9, 0.8, 0.85], [1]),
        ({"adaptive": True, "masked_layers": 0}, [0.1, 0.9, 0.8, 0.85], []),
        ({"adaptive": True, "send_classifier": True}, [0.1, 0.9], [0]),
    ],
)
def test_what_is_kept_back_follows_from_the_ranking(
    settings: dict[str, Any], alterations: list[float], expected: list[int]
) -> None:
    assert kept_back(FedRSM(**settings), np.array(alterations)) == expected


def test_fewer_pairs_are_taken_where_the_protection_says_so() -> None:
    configuration, _ = proposal(scheme="fedrsm", pairs=3)
    task = Task(model=LENET.architecture, training=TrainingConfiguration(), classes=3, channels=1, stimuli=STIMULI)
    side = FedRSM(pairs=3).client(Basis(configuration, task, task.build(), None, CPU))
    assert side._representation.distances(task.build()).shape == (4, 3)


def test_the_mean_of_a_layer_is_over_those_who_sent_it() -> None:
    """Layer by layer against float64: weights are the samples of the senders, and an unsent layer stays."""
    configuration, keeper = proposal(scheme="fedrsm", masked_layers=2)
    before = keeper.flat.copy()
    updates = [learner(configuration, samples).update(1, keeper.bytes) for samples in SAMPLES]
    total = total_of(configuration, updates)
    sent = {name: [name not in update.local.layers for update in updates] for name in LAYERS}
    assert keeper.side.senders(total, 3) == {name: sum(flags) for name, flags in sent.items()}
    keeper.apply(total)
    for name in LAYERS:
        weight = sum(samples for samples, flag in zip(SAMPLES, sent[name], strict=True) if flag)
        start = of_layer(keeper, before, name).astype(np.float64)
        sums = sum(of_layer(keeper, update.values, name).astype(np.float64) for update in updates)
        expected = start + (sums / weight if weight else 0)
        # The packing's bound over the smallest weight, and float32 below 1.
        bound = configuration.packing().error_bound(3) / max(weight, 1) + 2.0**-23
        assert np.abs(of_layer(keeper, keeper.flat, name) - expected).max() <= bound


def test_nothing_masked_is_federated_averaging() -> None:
    configuration, keeper = proposal(scheme="fedrsm", masked_layers=0)
    plain, plain_keeper = proposal()
    mine = [learner(configuration, samples).update(1, keeper.bytes) for samples in SAMPLES]
    others = [learner(plain, samples).update(1, keeper.bytes) for samples in SAMPLES]
    for update, other in zip(mine, others, strict=True):
        assert np.array_equal(update.values, other.values)
    keeper.apply(total_of(configuration, mine))
    plain_keeper.apply(total_of(plain, others))
    assert np.array_equal(keeper.flat, plain_keeper.flat)


def masked(configuration: Configuration, keeper: Keeper, kept: Sequence[set[str]], values: Flat) -> Total:
    """The sum of clients that send this update without the layers that each keeps back."""
    packing = configuration.packing()
    total = np.zeros(packing.length, packing.ring.word)
    for samples, layers_kept in zip(SAMPLES, kept, strict=True):
        names = [entry.name.partition(".")[0] for entry in keeper.layout.entries]
        weights = np.array([0 if name in layers_kept else samples for name in names])
        multipliers = np.repeat(weights, keeper.layout.tensor_sizes).astype(np.float32)
        metrics = dict.fromkeys(METRICS, 0) | pack_uploads(np.array([name not in layers_kept for name in LAYERS]), 3)
        words = packing.encode(values * multipliers, weights, metrics, np.random.default_rng(samples)).words
        packing.ring.add_into(total, words)
    return keeper.decode(total, 3)


def test_identical_models_in_the_same_model_out() -> None:
    """Whatever each of them keeps back: Formulas 5 and 6 read literally would shrink the layers that somebody masks."""
    configuration, keeper = proposal(scheme="fedrsm")
    before = keeper.flat.copy()
    step = np.random.default_rng(0).uniform(-0.4, 0.4, keeper.layout.size).astype(np.float32)
    keeper.apply(masked(configuration, keeper, [{"conv1"}, {"fc"}, {"conv1", "conv2"}], step))
    # At least seven samples stand behind every layer; float32 below 1.
    bound = configuration.packing().error_bound(3) / 7 + 2.0**-23
    assert np.abs(keeper.flat - (before + step)).max() <= bound


def test_a_layer_that_nobody_sends_stays() -> None:
    configuration, keeper = proposal(scheme="fedrsm")
    before, step = keeper.flat.copy(), np.full(keeper.layout.size, 0.25, np.float32)
    keeper.apply(masked(configuration, keeper, [{"conv2"}, {"conv2"}, {"conv2", "fc"}], step))
    assert np.array_equal(of_layer(keeper, keeper.flat, "conv2"), of_layer(keeper, before, "conv2"))
    assert (of_layer(keeper, keeper.flat, "fc") != of_layer(keeper, before, "fc")).all()
    everything = keeper.flat.copy()
    with pytest.raises(UnusableSumError, match="no client has contributed"):
        keeper.apply(masked(configuration, keeper, [set(LAYERS)] * 3, step))
    assert np.array_equal(keeper.flat, everything), "all masked changes nothing"


@pytest.mark.parametrize("fewest", [1, 2, 3])
def test_a_layer_with_too_few_senders_stays(fewest: int) -> None:
    configuration, keeper = proposal(scheme="fedrsm", min_contributors=fewest)
    before, step = keeper.flat.copy(), np.full(keeper.layout.size, 0.25, np.float32)
    keeper.apply(masked(configuration, keeper, [{"conv1"}, {"conv1", "fc"}, {"conv3"}], step))
    senders = {"conv1": 1, "conv2": 3, "conv3": 2, "fc": 2}
    for name in LAYERS:
        moved = of_layer(keeper, keeper.flat, name) != of_layer(keeper, before, name)
        assert moved.all() if senders[name] >= fewest else not moved.any()


@pytest.mark.parametrize("clients", [1, 3, 7, 8, 127, 1000])
def test_counts_of_layers_add_up(clients: int) -> None:
    generator = np.random.default_rng(clients)
    most = MOST_METRICS * (48 // clients.bit_length())
    for number in (1, 4, most):
        sent = generator.random((clients, number)) < 0.7
        sums = dict.fromkeys(upload_metrics(number, clients), 0)
        for flags in sent:
            metrics = pack_uploads(flags, clients)
            assert metrics.keys() == sums.keys()
            assert all(0 <= value < 2**48 for value in metrics.values())
            sums = {name: sums[name] + metrics[name] for name in sums}
        found = unpack_uploads(sums, number, clients, contributors=clients)
        assert np.array_equal(found, sent.sum(axis=0))
    with pytest.raises(
        ValueError, match=f'at most {most} layers can be counted, and this model has {most + 1}.*"block"'
    ):
        upload_metrics(most + 1, clients)


def test_counts_beyond_the_contributors_are_refused() -> None:
    configuration, keeper = proposal(scheme="fedrsm")
    packing = configuration.packing()
    metrics = dict.fromkeys(METRICS, 0) | {"uploads-0": 3 << 2}
    weights, values = np.ones(len(keeper.layout.entries), np.int64), np.zeros(keeper.layout.size, np.float32)
    words = packing.encode(values, weights, metrics, np.random.default_rng(0)).words
    with pytest.raises(ValueError, match="layer 1 counts 3 of 2 contributors"):
        keeper.decode(words, 2)


def test_choices_are_remembered_from_round_to_round() -> None:
    """A second client object has no memory: its consistency before is that of a model with itself."""
    configuration, keeper = proposal(scheme="fedrsm")
    task = Task(model=LENET.architecture, training=TrainingConfiguration(), classes=3, channels=1, stimuli=STIMULI)
    layout = keeper.layout
    trained, model = task.build(seed=8), layout.flatten(task.build(seed=3))
    side = FedRSM().client(Basis(configuration, task, task.build(), None, CPU))
    side.choose(trained, model)
    assert np.array_equal(keeper.layout.flatten(trained), model), "it holds the model of the round afterwards"
    again = side.choose(task.build(seed=8), model)
    # The same consistency as before: nothing was altered, and the first layer is as good as any.
    assert [layer.name for layer in again] == ["conv1"]
    assert again[0].tensors == ("conv1.weight", "conv1.bias")
    assert again[0] is side.layers[0]


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"scheme": "fedrsm", "masked_layers": 4}, "masked_layers = 4: this model has 4 layers, and at least one must"),
        ({"scheme": "fedrsm", "granularity": "block"}, "this model has no residual blocks"),
        ({"scheme": "fedsplit", "split": "conv9"}, 'this model has no module "conv9"'),
    ],
)
def test_a_protection_that_does_not_fit_the_model_is_refused(settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=re.escape(complaint)):
        proposal(**settings)
    # A client does not rely on the server for it.
    configuration, _ = proposal(scheme=settings["scheme"])
    task = msgspec.msgpack.decode(configuration.task)
    task["protection"] |= settings
    with pytest.raises(ValueError, match=re.escape(complaint)):
        learner(
            msgspec.structs.replace(
                configuration, task=Task.encode(msgspec.convert(task, Task, dec_hook=protection_hook))
            ),
            7,
        )


@pytest.mark.parametrize(
    ("stimuli", "complaint"),
    [
        (None, "the server's task has no stimuli"),
        (
            Stimuli.of(torch.zeros(4, 3, 8, 8)),
            "the stimuli have shape [3, 8, 8], and the images of this model [1, 8, 8]",
        ),
        (Stimuli.of(torch.zeros(4, 1, 9, 8)), "the stimuli have shape [1, 9, 8]"),
    ],
)
def test_stimuli_that_do_not_fit_are_refused(stimuli: Stimuli | None, complaint: str) -> None:
    configuration, _ = proposal(scheme="fedrsm", stimuli=stimuli)
    with pytest.raises((ValueError, TaskError), match=re.escape(complaint)):
        learner(configuration, 7)


@pytest.mark.parametrize("scheme", ["none", "fedrsm", "fedsplit", "dp-gaussian"])
def test_a_model_that_diverged_in_the_last_step_is_not_sent(scheme: str) -> None:
    """Its loss was finite. Clipping would hide an infinite weight, and a weight of zero any."""
    training = TrainingConfiguration(optimizer="sgd", epochs=1, batch_size=8, learning_rate=100.0)
    configuration, keeper = proposal(scheme=scheme)
    task = msgspec.structs.replace(read_task(configuration), training=training)
    configuration = msgspec.structs.replace(configuration, task=task.encode())
    # Without weights sigmoids are not saturated, so that the gradient is as large as the images.
    keeper.layout.split(keeper.flat)["conv1.weight"][...] = 0
    x, y = torch.full((8, 1, 8, 8), 3e38), torch.zeros(8, dtype=torch.int64)
    draft = Learner(configuration, x, y, seed=5, device=CPU).learn(1, keeper.bytes)
    assert "tensor 'conv1.weight' holds a value that is not finite" in draft.failure
    # Noise hides that there is nothing.
    assert draft.values.any() == (scheme == "dp-gaussian")


def test_a_split_model_shares_its_latter_half() -> None:
    configuration, keeper = proposal(scheme="fedsplit")
    own, first = ("conv1", "conv2"), keeper.flat.copy()
    members = [learner(configuration, samples) for samples in SAMPLES]
    assert all(member.personal for member in members)
    for round in (1, 2):
        models = [member.plain(keeper.bytes, None) for member in members]
        updates = [member.update(round, keeper.bytes) for member in members]
        total = total_of(configuration, updates)
        keeper.apply(total)
        for member, model, update in zip(members, models, updates, strict=True):
            now = member.plain(keeper.bytes, None)
            for name in LAYERS:
                sent, mine = of_layer(keeper, update.values, name), of_layer(keeper, now, name)
                if name in own:
                    assert not sent.any()
                    assert (mine != of_layer(keeper, model, name)).any(), "its own half is what training made of it"
                else:
                    assert sent.any()
                    assert np.array_equal(mine, of_layer(keeper, keeper.flat, name))
            assert update.local.kept == sum(of_layer(keeper, first, name).size for name in own)
        for name in own:
            assert np.array_equal(of_layer(keeper, keeper.flat, name), of_layer(keeper, first, name))
    halves = [of_layer(keeper, member.plain(keeper.bytes, None), "conv1") for member in members]
    assert len({half.tobytes() for half in halves}) == 3, "every client has its own"


def test_a_split_model_trains_on_from_its_own_half() -> None:
    """The second round against training from the merged model, written out."""
    configuration, keeper = proposal(scheme="fedsplit")
    plain, _ = proposal()
    mine = learner(configuration, 12)
    mine.update(1, keeper.bytes)
    merged = mine.plain(keeper.bytes, None)
    second = mine.update(2, keeper.bytes)
    expected = learner(plain, 12).update(2, merged.astype("<f4").tobytes())
    for name in ("conv3", "fc"):
        assert np.array_equal(of_layer(keeper, second.values, name), of_layer(keeper, expected.values, name))


@pytest.mark.parametrize(("clip", "noise", "deviation"), [(0.1, 0.5, 0.05), (0.0, 0.02, 0.02)])
def test_updates_are_shortened_and_noisy(clip: float, noise: float, deviation: float) -> None:
    configuration, keeper = proposal(scheme="dp-gaussian", dp_clip=clip, dp_noise=noise)
    assert configuration.max_weight == 1
    plain, _ = proposal()
    difference = learner(plain, 12).update(1, keeper.bytes).values / 12
    norm = np.linalg.norm(difference)
    assert norm > 0.1, "or nothing would be shortened"
    bare = difference * min(1.0, clip / norm) if clip else difference
    update = learner(configuration, 12).update(1, keeper.bytes)
    added = update.values - bare
    count = added.size
    # Five standard deviations of the mean, and of the mean square, of so many normal numbers.
    assert abs(added.mean()) < 5 * deviation / np.sqrt(count)
    assert abs((added**2).mean() / deviation**2 - 1) < 5 * np.sqrt(2 / count)
    assert update.clipped == 0


def test_noise_is_fresh_for_every_round_and_client_and_needs_no_seed() -> None:
    configuration, keeper = proposal(scheme="dp-gaussian")

    def noise(samples: int, round: int, seed: int | None) -> bytes:
        return learner(configuration, samples, seed=seed).update(round, keeper.bytes).values.tobytes()

    assert noise(12, 1, 5) == noise(12, 1, 5)
    assert len({noise(12, 1, 5), noise(12, 2, 5), noise(7, 1, 5), noise(12, 1, None), noise(12, 1, None)}) == 5


def test_noise_makes_no_variance_negative() -> None:
    """Running variances are noisy too, and the root of one below zero would end the run."""
    configuration, keeper = proposal(model=ModelConfiguration(name="convnet", image_size=9), scheme="dp-gaussian")
    packing, values = configuration.packing(), np.zeros(keeper.layout.size, np.float32)
    lowered = keeper.layout.split(values)["bn3.running_var"]
    lowered[::2] = -0.5
    encoded = packing.encode(values, 1, dict.fromkeys(METRICS, 0), np.random.default_rng(0))
    for _ in range(3):
        keeper.apply(packing.decode(encoded.words, contributors=1))
    after = keeper.layout.split(keeper.flat)["bn3.running_var"]
    # They began at one; 20 bits round a logarithm, which they move by, by 10^-5 at most.
    assert after[::2].min() >= 0
    assert after[::2].max() < 0.01
    assert np.abs(after[1::2] - 1).max() < 1e-4
    x, y = torch.randn(4, 1, 9, 9), torch.zeros(4, dtype=torch.int64)
    assert np.isfinite(evaluate(keeper.model, x, y, batch_size=4, device=CPU).loss)


def test_noisy_updates_come_without_exact_metrics() -> None:
    """Clients count alike, and no number without noise goes along."""
    configuration, keeper = proposal(scheme="dp-gaussian", dp_noise=0.01)
    total = total_of(configuration, [learner(configuration, n).update(1, keeper.bytes) for n in SAMPLES])
    assert (total.metrics["samples"], total.metrics["correct"], total.metrics["loss"]) == (0, 0, 0)
    assert total.weights == 3


def test_blocks_of_a_vision_transformer_are_kept_back_as_a_whole() -> None:
    vit = ModelConfiguration(image_size=8, patch_size=4, width=8, depth=2, heads=2)
    configuration, keeper = proposal(model=vit, scheme="fedrsm", granularity="block")
    update = learner(configuration, 12).update(1, keeper.bytes)
    found = {layer.name: layer for layer in layers(keeper.model, "block")}
    (name,) = update.local.layers
    parts = keeper.layout.split(update.values)
    assert {tensor for tensor, part in parts.items() if not part.any()} >= set(found[name].tensors)
    assert all(part.any() for tensor, part in parts.items() if tensor not in found[name].tensors)
