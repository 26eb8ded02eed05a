"""What clients keep back or blur (fedrsm, fedsplit, fedcg, dp-gaussian), towards a server and clients that want it."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tacit.models.configuration import ModelConfiguration, TrainingConfiguration
from tacit.models.stimuli import Stimuli
from tacit.parties.learning.keeper import Keeper
from tacit.parties.learning.learner import Learner
from tacit.parties.learning.policy import ClientPolicy
from tacit.parties.learning.task import METRICS, Task, configure
from tacit.parties.protections.catalogue import read_protection
from tacit.parties.protections.fedcg import FedCG
from tacit.parties.protections.fedrsm import pack_uploads
from tacit.parties.runs.experiment import Aggregation, Experiment, FederationSection
from tacit.protocol.core.codec import encode_structure
from tacit.protocol.core.errors import Code
from tacit.protocol.session.messages import Welcome
from tacit.protocol.sum.configuration import Configuration
from tacit.protocol.sum.messages import MaskedInput
from tacit.simulate.world.federation import small_configuration
from tests.cases import cases
from tests.world.sums import MemorySum, memory_sum

VICTIM = "client-0"
CLIENTS = 3
LENET = ModelConfiguration(name="lenet", image_size=8)
STIMULI = Stimuli.of(torch.randn(6, 1, 8, 8, generator=torch.Generator().manual_seed(0)))
LAYERS = ("conv1", "conv2", "conv3", "fc")


def proposal(scheme: Any, *, mode: Any = "none", **protection: Any) -> tuple[Configuration, Keeper]:
    experiment = Experiment(
        federation=FederationSection(clients=CLIENTS),
        model=LENET,
        training=TrainingConfiguration(epochs=1, batch_size=4, learning_rate=1e-2),
        protection=read_protection({"scheme": scheme} | protection),
        aggregation=Aggregation(mode=mode, max_weight=20, clip=0.5),
        policy=ClientPolicy(modes=(mode,), uncoordinated_weights=True),
    )
    task = Task(
        model=LENET.architecture,
        training=experiment.training,
        protection=experiment.protection,
        classes=3,
        channels=1,
        stimuli=STIMULI if scheme == "fedrsm" else None,
    )
    model = task.build(seed=3)
    configuration = configure(experiment.terms(), task, model)
    return configuration, Keeper(configuration, model)


def learner(configuration: Configuration, samples: int) -> Learner:
    generator = torch.Generator().manual_seed(samples)
    x, y = torch.randn(samples, 1, 8, 8, generator=generator), torch.randint(3, (samples,), generator=generator)
    return Learner(configuration, x, y, seed=samples, device=torch.device("cpu"))


def private(model: bytes, keeper: Keeper) -> dict[str, Any]:
    parts = keeper.layout.split(np.frombuffer(model, "<f4"))
    return {name: part for name, part in parts.items() if name.removeprefix("network.").startswith(("conv1", "conv2"))}


def total_words(
    configuration: Configuration,
    keeper: Keeper,
    weights: list[list[int]],
    metrics: dict[str, int],
    *,
    value: float = 0.0,
) -> Any:
    """The vectors of clients that change every coordinate alike, with these weights of their tensors, and their sum."""
    packing, generator = configuration.packing(), np.random.default_rng(0)
    values = np.full(keeper.layout.size, value, np.float32)
    vectors = {
        f"client-{number}": packing.encode(values, np.array(given), metrics, generator).words
        for number, given in enumerate(weights, 1)
    }
    total = np.zeros(packing.length, packing.ring.word)
    for words in vectors.values():
        packing.ring.add_into(total, words)
    return vectors, total


@pytest.mark.threat("server/looks-for-masked-layers")
def test_a_masked_vector_does_not_tell_which_layers_are_zero() -> None:
    """Clients that keep back other layers send messages of the same kinds and lengths, without long runs of zeros."""
    configuration, keeper = proposal("fedrsm", mode="active")
    weights = [[int(not entry.name.startswith(kept)) for entry in keeper.layout.entries] for kept in LAYERS[:CLIENTS]]
    vectors, _ = total_words(configuration, keeper, weights, dict.fromkeys((*METRICS, "uploads-0"), 0), value=0.1)
    packing = configuration.packing()
    made = memory_sum(CLIENTS, active=True, length=packing.length, ring_bits=packing.ring.bits)
    run = MemorySum(
        made.agreement,
        made.signing,
        dict(zip(made.vectors, vectors.values(), strict=True)),
        made.streams,
    )
    run.run()
    sent: dict[str, list[Any]] = {name: [] for name in run.clients}
    for delivery in run.log:
        if delivery.sender in sent:
            payload = bytes(delivery.payload or b"")
            sent[delivery.sender].append((delivery.kind, len(payload)))
            # A word of 24 bits or more is zero by chance once in 2^24.
            if isinstance(delivery.message, MaskedInput):
                words = packing.ring.unpack(payload)
                assert np.count_nonzero(words == 0) <= 2
                assert np.count_nonzero(run.vectors[delivery.sender] == 0) > 100
    assert sent["c0"] == sent["c1"] == sent["c2"]


@pytest.mark.threat("server/wants-extractor")
@cases("scheme", ["fedsplit", "fedcg"])
def test_an_extractor_leaves_nobody_and_is_replaced_by_nobody(scheme: str) -> None:
    """Whatever the server sends in its place, the client trains and is judged with its own."""
    configuration, keeper = proposal(scheme)
    mine = learner(configuration, 8)
    words = mine.update(1, keeper.bytes).words
    kept = private(keeper.bytes, keeper)
    hidden = np.repeat([entry.name in kept for entry in keeper.layout.entries], keeper.layout.tensor_sizes)
    assert not words[: len(hidden)][hidden].any(), "not even a rounded coordinate"
    # Of the next round: from the same model the client begins again with what it knew before.
    other = np.frombuffer(keeper.bytes, "<f4").copy()
    other[~hidden] += 0.5
    own = private(mine.plain(other.tobytes(), None).tobytes(), keeper)
    other[hidden] = 0.25
    for name, part in private(mine.plain(other.tobytes(), None).tobytes(), keeper).items():
        assert np.array_equal(part, own[name])
        assert not (part == 0.25).all()


@pytest.mark.threat("server/asks-for-classifiers")
@cases(
    ("policy", "mode", "code", "refusal"),
    [
        (ClientPolicy(), "none", Code.POLICY, "mode = none; this client's policy accepts one of active"),
        (
            ClientPolicy(modes=("active", "none"), protections=("none",)),
            "none",
            Code.POLICY,
            "protection.scheme = fedcg; this",
        ),
        (ClientPolicy(), "active", Code.MALFORMED, "is to work with the update of every client, which secure"),
        (ClientPolicy(modes=("semi-honest",)), "semi-honest", Code.MALFORMED, "is to work with the update of every"),
    ],
)
def test_who_takes_part_in_sums_alone_does_not_send_its_classifier(
    deceived: Callable[..., Any], policy: ClientPolicy, mode: Any, code: Code, refusal: str
) -> None:
    task = Task(
        model=LENET.architecture, training=TrainingConfiguration(), protection=FedCG(), classes=3, channels=1
    ).encode()
    encoded = encode_structure(small_configuration(5, mode=mode, task=task))
    wanted = encoded.replace(b"\xaesingle_vectors\xc2", b"\xaesingle_vectors\xc3")
    assert wanted != encoded
    one = deceived(policies={VICTIM: policy})
    one.tell(Welcome, configuration=wanted).deceive()
    assert one.victim_ended.code is code
    assert refusal in one.victim_ended.detail
    assert VICTIM not in {parcel.sender for parcel in one.log if parcel.packet.kind is MaskedInput}


@pytest.mark.threat("server/looks-beside-noise")
def test_nothing_exact_goes_along_with_noise() -> None:
    """Neither the number of samples nor how well the model did on them, and the noise is never the same twice."""
    configuration, keeper = proposal("dp-gaussian", dp_clip=1.0, dp_noise=1.0)
    totals, values = [], []
    for samples, round in ((4, 1), (4, 2), (8, 1)):
        update = learner(configuration, samples).update(round, keeper.bytes)
        total = configuration.packing().decode(update.words, contributors=1)
        assert update.statistics.samples == samples
        totals.append((int(total.weights), {name: total.metrics[name] for name in ("samples", "correct", "loss")}))
        values.append(total.values)
    assert totals == [(1, {"samples": 0, "correct": 0, "loss": 0})] * 3
    # The standard deviation is 1, and clipping to 0.5 leaves 69 % of the coordinates at the edges.
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert 0.3 < np.mean(np.sign(values[one]) != np.sign(values[other])) < 0.7


@pytest.mark.threat("client/forged-uploads")
def test_a_client_that_counts_for_several_senders_is_found_out() -> None:
    """It says to have sent conv2 three times, where two clients took part."""
    configuration, keeper = proposal("fedrsm")
    ones = [1] * len(keeper.layout.entries)
    forged = pack_uploads(np.ones(len(LAYERS), np.bool_), CLIENTS)
    forged["uploads-0"] += 2 << CLIENTS.bit_length()
    _, total = total_words(configuration, keeper, [ones], dict.fromkeys(METRICS, 0) | forged)
    with pytest.raises(ValueError, match="layer 1 counts 3 of 2 contributors"):
        keeper.decode(total, 2)


@pytest.mark.threat("client/uneven-classifier")
@cases("weight", [0, 5])
def test_a_client_whose_parts_have_different_weights_is_named(weight: int) -> None:
    configuration, keeper = proposal("fedcg", distillation_steps=1)
    own = private(keeper.bytes, keeper)
    fair = [0 if entry.name in own else 4 for entry in keeper.layout.entries]
    before = keeper.bytes
    vectors, total = total_words(configuration, keeper, [fair, [*fair[:-1], weight]], dict.fromkeys(METRICS, 0))
    with pytest.raises(ValueError, match=re.escape("client-2 gives the tensors that it shares the weights")):
        keeper.apply(keeper.decode(total, 2), vectors)
    assert keeper.bytes == before
