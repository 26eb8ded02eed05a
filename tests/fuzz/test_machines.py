"""Machines under random histories of messages, calls and time: coded refusals, never a crash or a wrong sum."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import msgspec
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tacit.protocol.adaptation.model_owner import LearningModelOwner
from tacit.protocol.adaptation.states import SumTold
from tacit.protocol.core.codec import decode
from tacit.protocol.core.errors import Code
from tacit.protocol.core.events import MessageRefused
from tacit.protocol.core.machine import Ended, Transmit
from tacit.protocol.core.messages import Abort
from tacit.protocol.group_key.events import KeyAgreementFailed
from tacit.protocol.inference.results import InferenceEnded
from tacit.protocol.inference.states import InferenceState
from tacit.protocol.session.messages import MESSAGES
from tacit.protocol.session.rounds import Journal, RoundDone, RoundOver
from tacit.protocol.session.states import TrainingState
from tacit.protocol.sum.events import ClientDropped
from tacit.protocol.sum.exchange import ClientAborted, ServerAborted, Summed
from tacit.simulate.bench.ends import Peak
from tacit.simulate.world.adaptation import MemoryAdaptation, round_plan
from tacit.simulate.world.federation import SERVER, MemoryFederation, small_configuration
from tacit.simulate.world.inference import data_owner_names
from tacit.simulate.world.world import Parcel
from tests.fuzz.wire import MOST_MESSAGES, Wire
from tests.world.exchange import Delivery
from tests.world.sums import MemorySum, memory_sum

MOST_BYTES = 64 << 20
"""Above what a run starts with; one federation of these tests takes less than a megabyte."""
CLIENTS = 4
PROTECTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"encrypted": True, "group_key": True, "rekey_every": 1},
    {"encrypted": True, "group_key": True, "initial_model": "clients"},
)
"""Without and with a group key."""


def federated(random: Random, modes: Sequence[str]) -> MemoryFederation:
    configuration = small_configuration(CLIENTS, mode=random.choice(modes), **random.choice(PROTECTIONS))
    return MemoryFederation(configuration, CLIENTS, rounds=2)


def codes(outputs: Sequence[Any]) -> list[Code]:
    """The codes that outputs carry; anything that only looks like one fails."""
    found = [output.code for output in outputs if isinstance(output, Ended | RoundOver | RoundDone)]
    found += [drop.code for output in outputs if isinstance(output, RoundDone) for drop in output.dropped]
    assert all(isinstance(code, Code | None) for code in found)
    return [code for code in found if code is not None]


def test_federations(mutate: Callable, budget: Callable, tell: Callable) -> None:
    outcomes: Counter[str] = Counter()
    peak, began = Peak(), time.perf_counter()

    @budget(25, 2_000)
    @given(st.integers(0, 2**64 - 1))
    def check(seed: int) -> None:
        random = Random(seed)
        federation = federated(random, ("active", "semi-honest"))
        # A server whose file says nothing gathers without end.
        federation.start_server(regather_seconds=600.0)
        Wire(federation, random, mutate, outcomes)
        federation.run()
        assert all(federation.ended(name) for name in (SERVER, *federation.roster.clients))
        outcomes["messages"] += len(federation.log)
        outcomes.update(code.name for code in codes([output for _, output in federation.outputs]))
        outcomes["sums"] += sum(done.total is not None for done in federation.outcome(RoundDone))

    check()
    tell("federations", outcomes, time.perf_counter() - began, peak.bytes())
    assert {"sums", "altered", Code.MALFORMED.name, Code.UNEXPECTED.name, Code.SEQUENCE.name} <= outcomes.keys()
    assert peak.bytes() < MOST_BYTES


GARBAGE = (b"\xc1",)


def test_a_refused_message_of_a_client_changes_nothing_for_the_others(
    mutate: Callable, budget: Callable, tell: Callable
) -> None:
    """Refused for whatever reason, it has the effect of garbage: the same federation, run twice, says the same."""
    outcomes: Counter[str] = Counter()
    peak, began = Peak(), time.perf_counter()

    def play(
        position: int, protection: dict[str, Any], make: Callable[[MemoryFederation, Parcel], Sequence[Any]]
    ) -> tuple[str, str, list[Any]]:
        """Replace one message to the server; what becomes of its sender, and what the others are told from then on."""
        federation = MemoryFederation(small_configuration(CLIENTS, **protection), CLIENTS)
        victim: list[str] = []
        told_before = 0

        def hook(parcel: Parcel) -> list[Parcel]:
            nonlocal told_before
            if parcel.receiver != SERVER or victim or sum(p.receiver == SERVER for p in federation.log) < position:
                return [parcel]
            victim.append(parcel.sender)
            told_before = len(federation.log)
            return [replace(parcel, frames=tuple(make(federation, parcel)))]

        federation.hook = hook
        federation.run()
        refused = {
            output.member
            for party, output in federation.outputs
            if party == SERVER and isinstance(output, MessageRefused | ClientDropped)
        }
        for failed in federation.outcome(KeyAgreementFailed):
            if failed.code not in (Code.TIMEOUT.name, Code.LEFT.name):
                refused |= {*failed.by}
        others = [
            (parcel.receiver, type(parcel.message))
            for parcel in federation.log[told_before:]
            if parcel.sender == SERVER and parcel.receiver != victim[0]
        ]
        totals = [
            done.survivors if done.total is not None else done.code is not None
            for done in federation.outcome(RoundDone)
        ]
        return victim[0], "refused" if victim[0] in refused else "accepted", [others, totals]

    @budget(16, 500)
    @given(st.integers(0, 2**64 - 1))
    def check(seed: int) -> None:
        random = Random(seed)
        # After the hellos and the fetching of the model: seven messages of each client in all, five more with a key.
        protection = random.choice(PROTECTIONS)
        position = random.randrange(2 * CLIENTS, (7 + 5 * bool(protection)) * CLIENTS)

        def mutated(federation: MemoryFederation, parcel: Parcel) -> Sequence[Any]:
            others = [sent.frames[1:] for sent in federation.log[-30:]] or [parcel.frames[1:]]
            return [parcel.frames[0], *mutate(random, parcel.frames[1:], others)]

        who, verdict, seen = play(position, protection, mutated)
        outcomes[verdict] += 1
        if verdict == "refused":
            assert (who, verdict, seen) == play(position, protection, lambda federation, parcel: GARBAGE)

    check()
    tell("messages of a client", outcomes, time.perf_counter() - began, peak.bytes())
    assert outcomes["refused"]
    assert peak.bytes() < MOST_BYTES


def test_what_a_client_refuses_leaves_no_trace(mutate: Callable, budget: Callable, tell: Callable) -> None:
    """It leaves the round or the session with a code; nothing goes to its disk, nothing is said but why."""
    outcomes: Counter[str] = Counter()
    peak, began = Peak(), time.perf_counter()

    @budget(40, 2_000)
    @given(st.integers(0, 2**64 - 1))
    def check(seed: int) -> None:
        random = Random(seed)
        mode = random.choice(("active", "semi-honest"))
        protection = random.choice(PROTECTIONS)
        federation = MemoryFederation(small_configuration(CLIENTS, mode=mode, **protection), CLIENTS)
        stop = random.randrange(60 + 40 * bool(protection))
        waiting: list[Parcel] = []

        def hook(parcel: Parcel) -> list[Parcel]:
            if not waiting and parcel.receiver != SERVER and len(federation.log) >= stop:
                waiting.append(parcel)
            return [] if waiting else [parcel]

        federation.hook = hook
        federation.start()
        if not waiting:
            return
        parcel = waiting[0]
        client = federation.clients[parcel.receiver]
        others = [sent.frames for sent in federation.log]
        frames = mutate(random, parcel.frames, others)
        state, journal = client.state, list(federation.journals[parcel.receiver])
        outputs = client.feed(frames, federation.now)
        ended = [output for output in outputs if isinstance(output, Ended | RoundOver) and output.code is not None]
        if not ended:
            accepted = outputs or client.state is not state
            # The first answer names the session, whichever that is.
            session = decode(frames, MESSAGES).envelope.session
            assert not accepted or state is TrainingState.AWAIT_WELCOME or session == federation.server.session
            outcomes["accepted" if accepted else "ignored"] += 1
            return
        outcomes[codes(ended)[0].name] += 1
        said = {decode(output.frames, MESSAGES).kind for output in outputs if isinstance(output, Transmit)}
        assert said <= {Abort}
        assert client.state in (TrainingState.ENDED, TrainingState.AWAIT_ROUND)
        assert not [output for output in outputs if isinstance(output, Journal)]
        assert federation.journals[parcel.receiver] == journal

    check()
    tell("messages of a server", outcomes, time.perf_counter() - began, peak.bytes())
    assert Code.MALFORMED.name in outcomes
    assert peak.bytes() < MOST_BYTES


class SumWire:
    """Alters fields, order and number of the messages of one secure sum; the vectors themselves stay as they are."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.rate = random.choice((0.02, 0.1, 0.4))
        self.run: MemorySum = memory_sum(
            CLIENTS, active=random.random() < 0.5, seed=random.randbytes(8), ring_bits=random.choice((16, 32, 64))
        )
        self.run.hook = self.alter

    def alter(self, delivery: Delivery) -> list[Delivery]:
        random = self.random
        assert len(self.run.log) < MOST_MESSAGES
        if random.random() >= self.rate:
            return [delivery]
        match random.randrange(5):
            case 0:
                return []
            case 1:
                return [delivery, delivery]
            case 2 if self.run.log:
                earlier = random.choice(self.run.log)
                if earlier.payload is None or earlier.sender == delivery.sender:
                    return [replace(earlier, sender=delivery.sender, receiver=delivery.receiver), delivery]
                return [delivery]
            case 3:
                name = random.choice(sorted(self.run.clients))
                self.run.kill(name)
                return [delivery]
        message = delivery.message
        fields = [name for name in message.__struct_fields__ if isinstance(getattr(message, name), bytes)]
        if not fields:
            return [delivery]
        name = random.choice(fields)
        value = getattr(message, name)
        odd = (b"", bytes(len(value)), value + b"\0", value[:-1], value[::-1], random.randbytes(len(value)))
        return [replace(delivery, message=msgspec.structs.replace(message, **{name: random.choice(odd)}))]


def test_secure_sums(budget: Callable, tell: Callable) -> None:
    """An exact sum over those whom the server names, or an end with a code."""
    outcomes: Counter[str] = Counter()
    peak, began = Peak(), time.perf_counter()

    @budget(40, 4_000)
    @given(st.integers(0, 2**64 - 1))
    def check(seed: int) -> None:
        run = SumWire(Random(seed)).run
        run.run()
        (outcome,) = [*run.outcome(Summed), *run.outcome(ServerAborted)]
        if isinstance(outcome, Summed):
            np.testing.assert_array_equal(outcome.total, run.plain_sum(outcome.survivors))
        ends = [*run.outcome(ServerAborted), *run.outcome(ClientAborted), *run.server.drops]
        assert all(isinstance(end.code, Code) for end in ends)
        outcomes.update(end.code.name for end in ends)
        outcomes["sums"] += isinstance(outcome, Summed)
        outcomes["messages"] += len(run.log)

    check()
    tell("secure sums", outcomes, time.perf_counter() - began, peak.bytes())
    assert {"sums", Code.THRESHOLD.name, Code.SIGNATURE.name, Code.MEMBERS.name, Code.SHARES.name} <= outcomes.keys()
    assert peak.bytes() < MOST_BYTES


OWNERS = data_owner_names(3)
OVER = {InferenceState.CLOSED, InferenceState.ABORTED}


def test_sessions_of_adaptation(mutate: Callable, budget: Callable, tell: Callable) -> None:
    outcomes: Counter[str] = Counter()
    peak, began = Peak(), time.perf_counter()

    @budget(30, 2_000)
    @given(st.integers(0, 2**64 - 1))
    def check(seed: int) -> None:
        random = Random(seed)
        plan = round_plan(1, OWNERS, batches=random.choice((1, 2)))
        world = MemoryAdaptation(dict.fromkeys(OWNERS, plan), seed=random.randbytes(8))
        Wire(world, random, mutate, outcomes, rates=(0.001, 0.005, 0.1))
        world.run()
        # A model owner that got the last message of a data owner altered awaits its next pass until the link ends.
        rest = [shell.machine for shell in world.shells if shell.machine.state not in OVER]
        assert all(isinstance(one, LearningModelOwner) and one.state is InferenceState.IDLE for one in rest)
        ends = [told.output for told in world.told if isinstance(told.output, InferenceEnded)]
        assert all(isinstance(end.code, Code | None) for end in ends)
        outcomes.update(end.code.name for end in ends if end.code is not None)
        sums = [told for told in world.told if isinstance(told.output, SumTold) and told.output.data is not None]
        assert not sums or (world.sums.opened, world.sums.survivors) == (1, OWNERS)
        outcomes["sums"] += len(sums)
        outcomes["messages"] += len(world.log)

    check()
    tell("sessions of adaptation", outcomes, time.perf_counter() - began, peak.bytes())
    assert outcomes["sums"]
    assert {"altered", Code.MALFORMED.name, Code.UNEXPECTED.name, Code.SEQUENCE.name} <= outcomes.keys()
    assert peak.bytes() < MOST_BYTES
