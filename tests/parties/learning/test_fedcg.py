"""FedCG at its parties: what stays with a client, what the server makes of the rest, and what either refuses."""

import re
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from tacit.models.configuration import ModelConfiguration, TrainingConfiguration
from tacit.models.fedcg import CoupledModel, distil
from tacit.models.interruption import to_the_end
from tacit.models.layout import Flat, Layout
from tacit.parties.learning.keeper import Keeper
from tacit.parties.learning.learner import Learner, Update
from tacit.parties.learning.policy import ClientPolicy
from tacit.parties.learning.task import METRICS, Task, configure
from tacit.parties.protections.catalogue import protection_hook
from tacit.parties.protections.fedcg import FedCG
from tacit.parties.protections.sides import Basis
from tacit.parties.runs.experiment import Aggregation, Experiment, ExperimentError, FederationSection, parse
from tacit.protocol.core.codec import decode_structure, encode_structure
from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.messages import BODY_LIMIT
from tacit.protocol.sum.configuration import Configuration
from tacit.secagg.ring import Words
from tacit.simulate.world.federation import added

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")
SAMPLES = {"client-1": 3, "client-2": 5, "client-3": 8}
LENET = ModelConfiguration(name="lenet", image_size=8)
TRAINING = TrainingConfiguration(epochs=1, batch_size=4, learning_rate=1e-2)
OWN = ("network.conv1", "network.conv2")
STEPS, SEED = 2, 11


def proposal(training: TrainingConfiguration = TRAINING, **protection: Any) -> tuple[Configuration, Keeper]:
    experiment = Experiment(
        federation=FederationSection(clients=3),
        model=LENET,
        training=training,
        protection=FedCG(distillation_steps=STEPS, **protection),
        aggregation=Aggregation(mode="none", max_weight=20, clip=0.5),
        policy=ClientPolicy(modes=("none",), largest_clip=0.5),
    )
    task = Task(model=LENET.architecture, training=training, protection=experiment.protection, classes=3, channels=1)
    model = task.build(seed=3)
    configuration = configure(experiment.terms(), task, model)
    return configuration, Keeper(configuration, model, seed=SEED)


def basis(task: Task, model: torch.nn.Module) -> Basis:
    terms = Experiment(aggregation=Aggregation(mode="none"), policy=ClientPolicy(modes=("none",))).terms()
    return Basis(configure(terms, task, model), task, model, SEED, CPU)


def learner(configuration: Configuration, samples: int) -> Learner:
    generator = torch.Generator().manual_seed(samples)
    x, y = torch.randn(samples, 1, 8, 8, generator=generator), torch.randint(3, (samples,), generator=generator)
    return Learner(configuration, x, y, seed=samples, device=CPU)


def hold(configuration: Configuration, keeper: Keeper, updates: dict[str, Update], *, round: int = 1) -> None:
    vectors = {name: update.words for name, update in updates.items()}
    total = added(configuration.packing(), list(vectors.values()))
    keeper.apply(keeper.decode(total, len(vectors)), vectors, round=round)


def parts(keeper: Keeper, flat: Flat) -> dict[str, bytes]:
    """The bytes of every module: those of the network one by one, and the generator."""
    found: dict[str, bytes] = {}
    for name, part in keeper.layout.split(flat.astype(np.float32)).items():
        module = ".".join(name.split(".")[: 2 if name.startswith("network") else 1])
        found[module] = found.get(module, b"") + part.tobytes()
    return found


def test_extractors_stay_with_the_clients_and_the_rest_becomes_one() -> None:
    configuration, keeper = proposal()
    first = parts(keeper, keeper.flat)
    assert set(first) == {"network.conv1", "network.conv2", "network.conv3", "network.fc", "generator"}
    members = {name: learner(configuration, samples) for name, samples in SAMPLES.items()}
    for round in (1, 2):
        before = {name: parts(keeper, member.plain(keeper.bytes, None)) for name, member in members.items()}
        updates = {name: member.update(round, keeper.bytes) for name, member in members.items()}
        hold(configuration, keeper, updates)
        now = parts(keeper, keeper.flat)
        assert np.array_equal(keeper.layout.flatten(keeper.model), keeper.flat)
        for name, member in members.items():
            assert member.personal
            sent, mine = parts(keeper, updates[name].values), parts(keeper, member.plain(keeper.bytes, None))
            for module in now:
                assert np.frombuffer(sent[module], "<f4").any() == (module not in OWN)
                assert mine[module] != before[name][module]
                assert (mine[module] == now[module]) == (module not in OWN)
            assert updates[name].local.kept == sum(len(first[module]) // 4 for module in OWN)
        assert all(now[module] == first[module] for module in OWN), "of extractors the server has the first one only"
    assert len({parts(keeper, member.plain(keeper.bytes, None))["network.conv1"] for member in members.values()}) == 3


def test_extractor_and_classifier_take_the_rate_of_the_round() -> None:
    rate = TRAINING.learning_rate
    before, after, throughout = (
        learner(configuration, 5).update(2, keeper.bytes).values
        for configuration, keeper in (
            proposal(TrainingConfiguration(epochs=1, batch_size=4, **settings))
            for settings in (
                {"learning_rate": rate, "decay": 0.25, "decay_rounds": (3,)},
                {"learning_rate": rate, "decay": 0.25, "decay_rounds": (2,)},
                {"learning_rate": rate / 4},
            )
        )
    )
    assert np.array_equal(after, throughout)
    assert not np.array_equal(before, after)


def test_the_server_distils_from_the_mean_and_every_client() -> None:
    """Against the distillation itself, from models that are put together in float64."""
    configuration, keeper = proposal()
    start = keeper.flat.astype(np.float64)
    updates = {name: learner(configuration, samples).update(1, keeper.bytes) for name, samples in SAMPLES.items()}
    shared = np.repeat([not entry.name.startswith(OWN) for entry in keeper.layout.entries], keeper.layout.tensor_sizes)
    # What the words say: they round the values at random.
    decoded = {
        name: configuration.packing().decode(update.words, contributors=1).values for name, update in updates.items()
    }
    flats = {name: start + np.where(shared, decoded[name] / SAMPLES[name], 0) for name in SAMPLES}
    mean = start + np.where(shared, sum(decoded.values()) / sum(SAMPLES.values()), 0)
    hold(configuration, keeper, updates)

    def coupled(flat: np.ndarray[Any, np.dtype[np.float64]]) -> CoupledModel:
        model = Task(model=LENET.architecture, training=TRAINING, classes=3, channels=1, protection=FedCG()).build()
        assert isinstance(model, CoupledModel)
        keeper.layout.load_into(model, flat.astype(np.float32))
        return model

    student, whole = coupled(mean), sum(SAMPLES.values())
    teachers = [(coupled(flats[name]), samples / whole) for name, samples in SAMPLES.items()]
    seed = int(np.random.SeedSequence(SEED).spawn(1)[0].generate_state(1, np.uint64)[0] >> np.uint64(1))
    distil(student, teachers, steps=STEPS, batch_size=TRAINING.batch_size, seed=seed, device=CPU)
    assert np.array_equal(np.where(shared, keeper.layout.flatten(student), start.astype(np.float32)), keeper.flat)


def test_the_server_does_not_touch_an_extractor() -> None:
    """Not even the running means of batch normalisation, past which generated features come in."""
    configuration = ModelConfiguration(name="convnet", image_size=9)
    task = Task(
        model=configuration.architecture,
        training=TRAINING,
        classes=3,
        channels=1,
        protection=FedCG(split="conv2", distillation_steps=1),
    )
    model = task.build()
    assert isinstance(model, CoupledModel)
    server = FedCG(split="conv2", distillation_steps=1).server(basis(task, model))
    layout, private = Layout.of(model), FedCG(split="conv2").private(model, task)
    flat = layout.flatten(model)
    before, after = layout.split(flat), layout.split(server.distil(flat, [(flat, 1)], 1))
    assert {"network.conv0.weight", "network.bn1.running_mean"} <= private
    for name in before:
        assert np.array_equal(before[name], after[name]) == (name in private)


def test_every_round_of_the_server_has_randomness_of_its_own() -> None:
    """The same updates twice, from the same model; without a seed no run is like another."""
    configuration, keeper = proposal()
    first = keeper.bytes
    updates = {name: learner(configuration, samples).update(1, first) for name, samples in SAMPLES.items()}
    results = []
    for round in (1, 2):
        keeper.replace(first)
        hold(configuration, keeper, updates, round=round)
        results.append(keeper.bytes)
    for seed in (None, None, SEED):
        other = Keeper(configuration, keeper.model, seed=seed)
        other.replace(first)
        hold(configuration, other, updates)
        results.append(other.bytes)
    assert len(set(results)) == 4
    assert results[0] == results[4]


def test_the_discriminator_is_remembered() -> None:
    configuration, keeper = proposal()
    assert isinstance(keeper.model, CoupledModel)
    side, first = FedCG().client(basis(decode(configuration), keeper.model)), keeper.bytes
    x, y = torch.randn(8, 1, 8, 8), torch.arange(8) % 3
    results = []
    for _ in range(2):
        keeper.replace(first)
        side.train(x, y, round=1, seed=2, proceed=to_the_end)
        results.append(parts(keeper, keeper.layout.flatten(keeper.model)))
    assert results[0]["network.fc"] == results[1]["network.fc"]
    assert results[0]["generator"] != results[1]["generator"]


def decode(configuration: Configuration) -> Task:
    return msgspec.msgpack.decode(configuration.task, type=Task, dec_hook=protection_hook)


def words_of(configuration: Configuration, keeper: Keeper, weights: dict[str, int]) -> Words:
    """A vector of zeros whose tensors have weight 1, but for these."""
    packing = configuration.packing()
    found = np.array([weights.get(entry.name, int(not entry.name.startswith(OWN))) for entry in keeper.layout.entries])
    return packing.encode(
        np.zeros(keeper.layout.size, np.float32), found, dict.fromkeys(METRICS, 0), np.random.default_rng(0)
    ).words


@pytest.mark.parametrize(
    ("weights", "complaint"),
    [
        ({"network.fc.bias": 3}, "client-2 gives the tensors that it shares the weights [1, 3], not one above 0"),
        ({"generator.maps.0.weight": 0}, "client-2 gives the tensors that it shares the weights [0, 1], not one"),
    ],
)
def test_a_model_of_no_honest_client_is_refused_and_changes_nothing(weights: dict[str, int], complaint: str) -> None:
    configuration, keeper = proposal()
    before = keeper.bytes
    vectors = {"client-1": words_of(configuration, keeper, {}), "client-2": words_of(configuration, keeper, weights)}
    total = added(configuration.packing(), list(vectors.values()))
    with pytest.raises(ValueError, match=re.escape(complaint)):
        keeper.apply(keeper.decode(total, 2), vectors)
    assert keeper.bytes == before
    assert keeper.layout.flatten(keeper.model).astype("<f4").tobytes() == before


@pytest.mark.parametrize(
    ("split", "complaint"),
    [
        ("conv9", 'protection.split = "conv9": this model has no module "conv9" with tensors'),
        ("conv1", '"conv1" is the first module of this model, so that nothing would stay'),
    ],
)
def test_a_model_without_the_split_point_is_refused_by_either_side(split: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=re.escape(complaint)):
        proposal(split=split)
    configuration, _ = proposal()
    task = msgspec.structs.replace(decode(configuration), protection=FedCG(split=split))
    with pytest.raises(ValueError, match=re.escape(complaint)):
        learner(msgspec.structs.replace(configuration, task=task.encode()), 7)


@pytest.mark.parametrize("mode", ["active", "semi-honest"])
def test_secure_aggregation_is_refused_with_the_reason(mode: str) -> None:
    text = f'[protection]\nscheme = "fedcg"\n[aggregation]\nmode = "{mode}"\n[policy]\nmodes = ["{mode}"]'
    with pytest.raises(ExperimentError) as refused:
        parse(text, "federation.toml")
    assert str(refused.value).startswith(
        'federation.toml: protection.scheme = "fedcg": its server distils from the classifier and the generator of '
        f'every client, which aggregation.mode = "{mode}" hides from it; set aggregation.mode to "none"'
    )
    # No server talks a client into it either.
    configuration, _ = proposal()
    encoded = encode_structure(configuration).replace(b"\xa4mode\xa4none", b"\xa4mode" + encode_structure(mode))
    with pytest.raises(RemoteProtocolError, match="is to work with the update of every client") as malformed:
        decode_structure(encoded, Configuration, limit=BODY_LIMIT)
    assert malformed.value.code is Code.MALFORMED
