"""What one client's training was like (samples, correct answers, loss, clipped values) leaves in the secure sum only.

The same federation runs twice with the same randomness and other metrics: whatever a client says besides its masked
vector must be the same bytes, and the vectors must differ by exactly what the plain ones differ by.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import chisquare

from tacit.parties.learning.task import HELD_OUT_METRICS, LOSS_UNIT
from tacit.parties.learning.task import METRICS as ALWAYS
from tacit.parties.runs.experiment import parse
from tacit.protocol.core.blob import announce
from tacit.protocol.core.codec import Envelope
from tacit.protocol.core.messages import Abort, Chunk, Fetch, Message, Resume
from tacit.protocol.group_key.keeper import KEEPER_TABLE, RELAY_TABLE
from tacit.protocol.group_key.messages import (
    ConfirmKey,
    KeyAccepted,
    KeyCommit,
    KeyComplaint,
    KeyContribution,
    KeyedModel,
)
from tacit.protocol.session.messages import MESSAGES, EndRound, FetchFixed, Hello
from tacit.protocol.session.rounds import RoundDone
from tacit.protocol.session.server import TRAINING_SERVER_TABLE
from tacit.protocol.sum.configuration import Configuration
from tacit.protocol.sum.messages import (
    AdvertiseKeys,
    AnswerComplaints,
    ConfirmSurvivors,
    MaskedInput,
    ShareKeys,
    UnmaskShares,
    VectorChunk,
)
from tacit.protocol.sum.server import SERVER_TABLES
from tacit.protocol.sum.states import SumLabel
from tacit.secagg.packing import METRIC_BITS, WeightForm
from tacit.simulate.federation.run import new_plan, simulate
from tacit.simulate.world.federation import SERVER, MemoryFederation, small_configuration
from tacit.simulate.world.world import Parcel

METRICS = ALWAYS + HELD_OUT_METRICS
CLIENTS = 5
PARAMETERS = 262_200
"""More than one chunk of 32-bit words, so that VectorChunk is used too."""

FIXED = b"what is not trained"

CLIENT_FIELDS: dict[type[Message], dict[str, str]] = {
    Hello: {"roster": "Hash"},
    Resume: {},
    Fetch: {"chunk": "Index"},
    FetchFixed: {"chunk": "Index"},
    AdvertiseKeys: {
        "channel_key": "Hash",
        "mask_key": "Hash",
        "choices": "Annotated[bytes, Meta(max_length=2 * LARGEST_COHORT)]",
        "spent": "Spent",
        "signature": "Signature",
    },
    ShareKeys: {"seed_commitment": "Hash", "holders": "Bitmap", "packets": "Records", "signatures": "Records"},
    MaskedInput: {"complaints": "Bitmap", "signatures": "Records"},
    VectorChunk: {"chunk": "Index"},
    AnswerComplaints: {"shares": "Records"},
    ConfirmSurvivors: {"signature": "Signature"},
    UnmaskShares: {"owners": "Bitmap", "shares": "Records"},
    KeyCommit: {"epoch": "Index", "channel_key": "Hash", "commitment": "Hash", "signature": "Signature"},
    KeyContribution: {"epoch": "Index", "packets": "Records"},
    ConfirmKey: {"epoch": "Index", "tag": "Hash", "signature": "Signature"},
    KeyAccepted: {"epoch": "Index"},
    KeyComplaint: {"epoch": "Index", "accused": "Index", "channel_private": "Hash"},
    KeyedModel: {"epoch": "Index", "model": "Blob"},
    Chunk: {"chunk": "Index"},
    Abort: {
        "code": "Code",
        "detail": "Annotated[str, Meta(max_length=DETAIL_LIMIT)]",
        "culprit": "Annotated[str, Meta(max_length=64)]",
    },
}
"""Everything that a client can say. Whoever adds a field states here what it holds, and sees to it that the tests below
send it. The one free text, Abort.detail, is of fixed sentences: see parties/session/client.py."""


class MeasuredFederation(MemoryFederation):
    """Clients with values and metrics that follow from `generation`; all else follows from the entropy alone."""

    def __init__(self, configuration: Configuration, clients: int, *, rounds: int, generation: int) -> None:
        self.generation = generation
        self.metrics: dict[tuple[str, int], dict[str, int]] = {}
        super().__init__(configuration, clients, rounds=rounds, fixed=FIXED)

    def draw(self, name: str, round: int) -> npt.NDArray[Any]:
        generator = np.random.default_rng([self.generation, round, *name.encode()])
        packing = self.configuration.packing()
        samples = int(generator.integers(1, 100, endpoint=True))
        self.metrics[name, round] = {"samples": samples} | {
            metric: int(generator.integers(0, 1 << METRIC_BITS)) for metric in METRICS if metric != "samples"
        }
        values = generator.uniform(-1, 1, packing.values_length).astype(np.float32) * np.float32(self.generation)
        given: Any = samples
        if packing.form is WeightForm.COORDINATE:
            given = generator.integers(0, 2, packing.values_length).astype(bool)
            values *= given
        words = packing.encode(values, given, self.metrics[name, round], generator).words
        self.vectors[name, round] = words
        return words


KEYED: dict[str, Any] = {
    "encrypted": True, "form": WeightForm.COORDINATE, "max_weight": 1,
    "min_contributors": 2, "group_key": True, "rekey_every": 1, "initial_model": "clients",
}  # fmt: skip
"""A group key for each round, and weights of coordinates."""


def held(generation: int, *, mode: str, parameters: int, **changes: Any) -> MeasuredFederation:
    """Two rounds. Three clients are late with their vectors in the first one: it is aborted, and repeated."""
    configuration = small_configuration(
        CLIENTS,
        parameters=parameters,
        mode=mode,
        metrics=METRICS,
        ring_bits=32,
        fixed=announce(FIXED, SumLabel.FIXED),
        **changes,
    )
    one = MeasuredFederation(configuration, CLIENTS, rounds=2, generation=generation)
    late: dict[str, list[Parcel]] = {name: [] for name in one.roster.clients[:3]}

    def hook(parcel: Parcel) -> list[Parcel]:
        first = one.server.round == 1
        if parcel.sender in late and first and (parcel.packet.kind is MaskedInput or late[parcel.sender]):
            late[parcel.sender].append(parcel)
            return []
        if parcel.packet.kind is EndRound:
            return [*late.pop(parcel.receiver, []), parcel]
        return [parcel]

    one.hook = hook
    one.run()
    return one


def said(one: MemoryFederation) -> list[Parcel]:
    return [parcel for parcel in one.log if parcel.receiver == SERVER]


def test_every_field_that_a_client_can_send_is_known() -> None:
    tables = [TRAINING_SERVER_TABLE, *SERVER_TABLES.values(), RELAY_TABLE, KEEPER_TABLE]
    accepted = {kind for table in tables for _, kind in table if isinstance(kind, type) and issubclass(kind, Message)}
    assert accepted == CLIENT_FIELDS.keys() <= set(MESSAGES.values())
    for kind, fields in CLIENT_FIELDS.items():
        assert {name: kind.__annotations__[name] for name in kind.__struct_fields__} == fields
    assert {kind for kind in CLIENT_FIELDS if kind.PAYLOAD} == {MaskedInput, VectorChunk, Chunk}
    assert Envelope.__struct_fields__ == (
        *("version", "type", "session", "round", "sender", "sequence", "link", "received"),
    )


@pytest.mark.parametrize(
    ("mode", "parameters", "changes"),
    [
        ("active", 10, {}), ("active", PARAMETERS, {}), ("semi-honest", 10, {}), ("active", 10, KEYED),
        pytest.param("semi-honest", PARAMETERS, {}, marks=pytest.mark.exhaustive),
    ],
    ids=["active", "active, several chunks", "semi-honest", "keyed", "semi-honest, several chunks"],
)  # fmt: skip
def test_nothing_but_the_masked_vector_depends_on_the_training(
    mode: str, parameters: int, changes: dict[str, Any]
) -> None:
    one, other = (held(generation, mode=mode, parameters=parameters, **changes) for generation in (0, 1))
    assert one.metrics != other.metrics
    assert [done.total is not None for done in one.outcome(RoundDone)] == [False, True]
    ring = one.configuration.packing().ring  # Of 32 bits: uint32 wraps as the ring does.
    plain: dict[tuple[str, int], npt.NDArray[Any]] = {key: other.vectors[key] - one.vectors[key] for key in one.vectors}
    seen = set()
    masked = defaultdict(list)
    assert len(said(one)) == len(said(other))
    for mine, yours in zip(said(one), said(other), strict=True):
        packet = mine.packet
        seen.add(packet.kind)
        assert (mine.sender, mine.frames[:2]) == (yours.sender, yours.frames[:2])
        if packet.kind is Chunk:
            assert mine.frames == yours.frames, "the model that is encrypted does not depend on it"
        elif packet.payload is not None:
            assert yours.packet.payload is not None
            difference = ring.unpack(yours.packet.payload) - ring.unpack(packet.payload)
            masked[mine.sender, packet.envelope.round].append(difference)
    assert {(name, 2) for name in one.roster.clients} < masked.keys() <= plain.keys()
    for key, chunks in masked.items():
        np.testing.assert_array_equal(np.concatenate(chunks), plain[key])
        assert np.any(plain[key])
    unseen = {Abort, Resume} | ({ConfirmSurvivors} if mode == "semi-honest" else set())
    unseen |= {VectorChunk} if parameters == 10 else set()
    keyed = {ConfirmKey, KeyAccepted, KeyCommit, KeyContribution, KeyedModel, Chunk}
    # Nobody has a reason to complain.
    unseen |= {AnswerComplaints}
    unseen |= {KeyComplaint} if changes else keyed | {KeyComplaint}
    assert seen == CLIENT_FIELDS.keys() - unseen


def test_masked_words_are_uniform_and_plain_ones_are_not() -> None:
    """Chi-square over the values of every byte of the words. The randomness is fixed, so the result is too; a right
    stream would fall below the bound once in 25,000 seeds (1e-6 for each of at most 10 x 4 figures)."""
    one = held(0, mode="active", parameters=PARAMETERS)
    frames = defaultdict(list)
    for parcel in said(one):
        if parcel.packet.payload is not None:
            frames[parcel.sender, parcel.packet.envelope.round].append(bytes(parcel.packet.payload))
    ring = one.configuration.packing().ring
    assert len(frames) > CLIENTS
    for key, chunks in frames.items():
        words = ring.unpack(b"".join(chunks))
        # Equal words are expected once in 2^32; a vector left in the clear would have all of them.
        assert np.count_nonzero(words == one.vectors[key]) < 10
        assert lowest_probability(words) > 1e-6
        assert lowest_probability(one.vectors[key]) < 1e-12


def lowest_probability(words: npt.NDArray[Any]) -> float:
    octets = np.ascontiguousarray(words).view(np.uint8).reshape(len(words), -1)
    return min(float(chisquare(np.bincount(column, minlength=256)).pvalue) for column in octets.T)


SERVER_EVENTS: dict[str, set[str]] = {
    "configuration-proposed": {
        "clients", "cohort", "colluders", "configuration_hash", "evaluates", "max_weight", "neighbours", "parameters",
        "ring_bits", "rounds", "step", "threshold", "vector_bytes",
    },
    "invocation-recorded": {"command", "machine", "seed", "started", "versions"},
    "listening-started": {"address", "service", "session"},
    "link-opened": {"omitted", "peer"},
    "link-lost": {"omitted", "peer"},
    "client-joined": {"member"},
    "round-started": {"cohort", "round"},
    "phase-ended": {"next", "phase", "round", "seconds"},
    "traffic-counted": {"phase", "received", "round", "sent"},
    "phase-opened": {"members", "phase"},
    "round-ended": {
        "round", "status", "code", "detail", "culprit", "cohort", "absent", "repeated", "survivors", "dropped",
        "seconds",
        "samples", "train_accuracy", "train_loss", "clipped",  # sums of the survivors, or quotients of sums
        "held_out",  # the same
        "accuracy", "balanced_accuracy", "loss",  # of the server's own test images
        "metrics",  # means of what own training steps return, over all
    },
    "classes-evaluated": {"found"},  # of the server's own test images
    "messages-timed": {"received", "sent"},
    "work-measured": {"seconds"},  # by kind of work of the protocol
    "session-ended": {"code", "detail"},
}  # fmt: skip
"""Every field of the events that a server writes in a run without trouble."""

CLIENT_EVENTS: dict[str, set[str]] = {
    "link-opened": {"omitted", "peer"},
    "link-lost": {"omitted", "peer"},
    "configuration-accepted": {"fixed_part", "mode", "scheme", "session"},
    "phase-ended": {"next", "phase", "round", "seconds"},
    "traffic-counted": {"phase", "received", "round", "sent"},
    "client-round-ended": {"code", "detail", "round"},
    "update-computed": {"choosing_seconds", "kept", "layers", "round", "training_seconds", "uncounted"},
    "messages-timed": {"received", "sent"},
    "work-measured": {"seconds"},  # by kind of work of the protocol
    "session-ended": {"code", "detail"},
}
"""The clients' own logs hold no metric either."""

TOML = """
[federation]
clients = 4
rounds = 2
[model]
image_size = 8
patch_size = 4
width = 8
depth = 1
heads = 2
[training]
epochs = 1
held_out = 0.2
[aggregation]
clip = 0.001
"""


@pytest.mark.end_to_end
def test_logs_and_summary_hold_sums_only(tmp_path: Path) -> None:
    """A run of real processes. What every client contributed is known from --verify, which records it for tests."""
    plan = new_plan(parse(TOML, "test"), tmp_path / "run", verify=True)
    summary = msgspec.to_builtins(asyncio.run(simulate(plan, lambda event: None)))
    logs = {
        path.stem: [json.loads(line) for line in path.read_text().splitlines()]
        for path in (plan.run.path / "events").iterdir()
    }
    for name, events in logs.items():
        known = SERVER_EVENTS if name == SERVER else CLIENT_EVENTS
        for event in events:
            assert event.keys() - {"time", "party", "event"} == known[event["event"]]
            if "found" in event:
                assert event["found"].keys() == {"classes", "confusion", "round"}

    size = next(event for event in logs[SERVER] if event["event"] == "configuration-proposed")["parameters"]
    aggregation = plan.experiment.packing(tensor_sizes=(size,), metrics=METRICS)
    done = {event["round"]: event for event in logs[SERVER] if event["event"] == "round-ended"}
    for path in plan.run.verified_rounds():
        parts = {}
        for name in logs.keys() - {SERVER}:
            with np.load(path / f"{name}.npz") as update:
                parts[name] = aggregation.decode(update["words"], contributors=1).metrics
        sums = {metric: sum(part[metric] for part in parts.values()) for metric in METRICS}
        event = done[int(path.name)]
        assert (event["samples"], event["clipped"]) == (sums["samples"], sums["clipped"])
        assert event["train_accuracy"] == sums["correct"] / sums["samples"]
        assert event["train_loss"] == sums["loss"] * LOSS_UNIT / sums["samples"]
        assert event["held_out"] == {
            "round": event["round"] - 1,
            "images": sums["held_out"],
            "accuracy": sums["held_out_correct"] / sums["held_out"],
            "loss": sums["held_out_loss"] * LOSS_UNIT / sums["held_out"],
        }
        (entry,) = (entry for entry in summary["rounds"] if entry["round"] == event["round"])
        assert entry.keys() == SERVER_EVENTS["round-ended"] | {"bytes_sent", "local"}
        assert all(entry[key] == event[key] for key in SERVER_EVENTS["round-ended"])
        assert all(part["clipped"] > 0 for part in parts.values())
    for party in summary["parties"].values():
        assert party.keys() == {"role", "phases", "training_seconds", "protocol_seconds", "waiting_seconds"}
        assert all(phase.keys() == {"seconds", "bytes_sent", "bytes_received"} for phase in party["phases"].values())
