"""Clients that flood, stall or send costly bodies: they cost the others little, and the server's work is bounded."""

import asyncio
import contextlib
import tracemalloc
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from itertools import dropwhile
from typing import Any

import numpy as np
import pytest
import zmq
import zmq.asyncio

from tacit.parties.learning.learner import Update
from tacit.parties.links.endpoint import Limits, LinkUp, Received
from tacit.parties.links.keys import PartyKeys
from tacit.parties.links.server_endpoint import ServerEndpoint
from tacit.parties.session.events import LinkLost, RoundEnded, WaitingChanged
from tacit.protocol.core.codec import decode
from tacit.protocol.core.errors import Code
from tacit.protocol.core.events import Event, MessageRefused
from tacit.protocol.core.link import NO_SESSION, Link, Traffic
from tacit.protocol.core.machine import Ended
from tacit.protocol.core.messages import BODY_LIMIT, Abort, Fetch, Message, Resume
from tacit.protocol.core.rate_limit import HELLO_SECONDS, HELLOS
from tacit.protocol.core.roster import Roster
from tacit.protocol.session.events import ClientJoined, RoundStarted
from tacit.protocol.session.messages import MESSAGES, Finish, Hello
from tacit.protocol.session.rounds import RoundDone
from tacit.protocol.sum import agreement as agreement_module
from tacit.protocol.sum.agreement import UPLOADS
from tacit.protocol.sum.messages import VectorChunk
from tacit.simulate.world.federation import SERVER, MemoryFederation, small_configuration
from tacit.simulate.world.world import Parcel, altered
from tests.cases import cases

CHEAT = "client-4"
HONEST = ("client-1", "client-2", "client-3")
MANY = 1500


@dataclass
class Member:
    """client-4 without our client: a raw socket that may say anything."""

    federation: Any
    socket: zmq.asyncio.Socket
    link: Link = field(init=False)

    async def join(self) -> None:
        hello = Hello(roster=self.federation.roster.hash)
        await self.socket.send_multipart(Link(CHEAT, "server", NO_SESSION, Traffic(), MESSAGES).frames(hello, round=0))
        while True:
            frames = await self.socket.recv_multipart()
            if len(frames) > 1 and (packet := decode(frames, MESSAGES)).envelope.type == "start-round":
                self.link = Link(CHEAT, "server", packet.envelope.session, Traffic(), MESSAGES)
                return

    async def say(self, message: Message, round: int = 1) -> None:
        await self.socket.send_multipart(self.link.frames(message, round=round))


@contextlib.asynccontextmanager
async def raw(keys: PartyKeys, server: bytes, address: str) -> AsyncIterator[zmq.asyncio.Socket]:
    """A DEALER that sends whatever it likes and reads hardly anything."""
    context = zmq.asyncio.Context()
    with context.socket(zmq.DEALER) as socket:
        for option, value in ((zmq.LINGER, 0), (zmq.SNDHWM, 0), (zmq.RCVHWM, 1), (zmq.RCVBUF, 4096)):
            socket.setsockopt(option, value)
        socket.setsockopt(zmq.CURVE_SERVERKEY, server)
        socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.curve_public)
        socket.setsockopt(zmq.CURVE_SECRETKEY, keys.curve_secret)
        socket.connect(address)
        yield socket
    context.term()


async def ask_and_never_read(member: Member) -> None:
    for _ in range(MANY):
        await member.say(Fetch(chunk=0))


async def talk_out_of_turn(member: Member) -> None:
    for _ in range(MANY):
        await member.say(Finish())


async def repeat_itself(member: Member) -> None:
    frames = member.link.frames(Fetch(chunk=0), round=1)
    for _ in range(MANY):
        await member.socket.send_multipart(frames)


async def say_noise(member: Member) -> None:
    for number in range(MANY):
        await member.socket.send_multipart([number.to_bytes(2, "little")] * 3)


async def send_a_huge_frame(member: Member) -> None:
    await member.socket.send(bytes((64 << 20) + 1))


async def send_many_frames(member: Member) -> None:
    for _ in range(10):
        await member.socket.send_multipart([b"x"] * 1000)


async def send_a_large_body(member: Member) -> None:
    frames = member.link.frames(Fetch(chunk=0), round=1)
    await member.socket.send_multipart([frames[0], bytes(9 << 20)])


TROUBLE: dict[str, tuple[Callable[[Member], Awaitable[None]], type[Event], Code]] = {
    "questions": (ask_and_never_read, MessageRefused, Code.UNEXPECTED),
    "messages out of turn": (talk_out_of_turn, MessageRefused, Code.UNEXPECTED),
    "one message again and again": (repeat_itself, MessageRefused, Code.SEQUENCE),
    "noise": (say_noise, MessageRefused, Code.MALFORMED),
    "a huge frame": (send_a_huge_frame, LinkLost, Code.LEFT),
    "many frames": (send_many_frames, MessageRefused, Code.MALFORMED),
    "a large body": (send_a_large_body, LinkLost, Code.LEFT),
}
"""What client-4 does, the event with which the server notices it, and why it is out of the round in the end."""


def check_rounds(federation: Any, updates: dict[tuple[int, str], Update], survivors: tuple[str, ...]) -> None:
    """Every round ended with these survivors and the exact sum of their words."""
    ring = federation.configuration.packing().ring
    assert [done.round for done, _ in federation.rounds] == [1, 2]
    for done, _ in federation.rounds:
        assert done.survivors == survivors
        total = np.zeros(federation.configuration.packing().length, ring.word)
        for name in survivors:
            ring.add_into(total, updates[done.round, name].words)
        np.testing.assert_array_equal(done.total, total)


async def honest_goes_on(federation: Any) -> None:
    """Wait until the server waits for no honest client, hence serves them all."""
    async with asyncio.timeout(60):
        while True:
            begun = dropwhile(lambda event: not isinstance(event, RoundStarted), federation.told["server"])
            if any(isinstance(event, WaitingChanged) and not {*event.on} & {*HONEST} for event in begun):
                return
            await asyncio.sleep(0.01)


@pytest.mark.threat("client/flood", "client/huge-frames")
@pytest.mark.parametrize("trouble", TROUBLE)
@pytest.mark.asyncio
async def test_one_makes_trouble_and_the_others_lose_nothing(federation: Any, trouble: str) -> None:
    make, noticed, code = TROUBLE[trouble]
    updates: dict[tuple[int, str], Update] = {}
    server = await federation.serve(rounds=2)
    async with raw(federation.keys[CHEAT], federation.keys["server"].curve_public, federation.address) as socket:
        member = Member(federation, socket)
        joining = asyncio.create_task(member.join())
        clients = [
            federation.join(name, on_update=lambda round, update, name=name: updates.update({(round, name): update}))
            for name in HONEST
        ]
        await joining
        await make(member)
        await federation.event("server", noticed)
        await honest_goes_on(federation)
    assert [end.code for end in await federation.all_of(server, *clients)] == [None] * 4
    check_rounds(federation, updates, HONEST)
    (gone,) = federation.events("server", RoundEnded)[0].dropped
    assert (gone.party, gone.included_in_sum, gone.code) == (CHEAT, False, code.name)
    refused = {(fields.member, fields.code) for fields in federation.events("server", MessageRefused)}
    assert refused == ({(CHEAT, code.name)} if noticed is MessageRefused else set())


# Connections that never become a link

PARTIAL = [b"", b"\xff", b"\xff" + bytes(8) + b"\x7f", b"\xff" + bytes(8) + b"\x7f\x03\x00CURVE" + bytes(47)]
"""Nothing, and beginnings of ZMTP's greeting, up to the whole of it with no handshake behind it (ZeroMQ RFC 23)."""
CONNECTIONS = 100


async def dangling(address: str, start: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = address.removeprefix("tcp://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(start)
    return reader, writer


async def ended(reader: asyncio.StreamReader) -> None:
    async with asyncio.timeout(60):
        with contextlib.suppress(ConnectionResetError):
            while await reader.read(1000):
                pass


async def drip(writer: asyncio.StreamWriter) -> None:
    """One byte of a good greeting at a time, for longer than any handshake may take."""
    for byte in PARTIAL[-1] * 100:
        writer.write(bytes([byte]))
        await asyncio.sleep(0.02)


@pytest.mark.threat("client/half-open", "client/slow-bytes", "stranger/endless-handshake")
@pytest.mark.asyncio
async def test_handshakes_that_do_not_end_are_ended(keys: dict[str, PartyKeys], roster: Roster, until: Any) -> None:
    limits = Limits(handshake_seconds=0.3)
    async with await ServerEndpoint.bind(
        "tcp://127.0.0.1:*", keys=keys["server"], roster=roster, limits=limits
    ) as server:
        open_ends = [await dangling(server.address, start) for start in PARTIAL * (CONNECTIONS // len(PARTIAL))]
        slow_reader, slow_writer = await dangling(server.address, b"")
        dripping = asyncio.create_task(drip(slow_writer))
        async with raw(keys["alice"], keys["server"].curve_public, server.address) as alice:
            await alice.send(b"hello")
            assert await until(server, LinkUp) == LinkUp("alice")
            assert (await until(server, Received)).sender == "alice"
            await asyncio.gather(ended(slow_reader), *(ended(reader) for reader, _ in open_ends))
            # Steadily as they came, the bytes bought no more time.
            assert not dripping.done()
            # A finished handshake outlives the limit.
            await alice.send(b"still here")
            assert bytes((await until(server, Received)).frames[0]) == b"still here"
        dripping.cancel()
        for _, writer in (*open_ends, (slow_reader, slow_writer)):
            writer.transport.abort()


@pytest.mark.threat("client/flood")
@pytest.mark.asyncio
async def test_what_waits_for_a_busy_server_is_bounded(keys: dict[str, PartyKeys], roster: Roster, until: Any) -> None:
    """While the server reads nothing, a member gets rid of what the queues hold and no more."""
    size = 1 << 20
    limits = Limits(queue_messages=4)
    async with await ServerEndpoint.bind(
        "tcp://127.0.0.1:*", keys=keys["server"], roster=roster, limits=limits
    ) as server:
        context = zmq.Context()
        with context.socket(zmq.DEALER) as alice:
            for option, value in ((zmq.LINGER, 0), (zmq.SNDHWM, 1), (zmq.SNDBUF, 1 << 16), (zmq.SNDTIMEO, 500)):
                alice.setsockopt(option, value)
            alice.setsockopt(zmq.CURVE_SERVERKEY, keys["server"].curve_public)
            alice.setsockopt(zmq.CURVE_PUBLICKEY, keys["alice"].curve_public)
            alice.setsockopt(zmq.CURVE_SECRETKEY, keys["alice"].curve_secret)
            alice.connect(server.address)
            alice.send(b"hello")
            assert (await until(server, Received)).sender == "alice"
            sent = 0
            with contextlib.suppress(zmq.Again):
                while sent < MANY:
                    alice.send(sent.to_bytes(2, "little") + bytes(size))
                    sent += 1
            # Four in either queue of libzmq and one in its engine, one here; the rest is the kernel's, a few megabytes.
            assert sent <= 4 + 1 + 1 + 1 + 16
            received = [(await until(server, Received)).frames[0] for _ in range(sent)]
            assert [int.from_bytes(frame[:2], "little") for frame in received] == [*range(sent)]
        context.term()


MAPS = BODY_LIMIT - 100


@pytest.mark.threat("client/expensive-bodies")
@cases("kind", ["advertise-keys", "share-keys", "masked-input", "unmask-shares"])
def test_eight_mebibytes_of_empty_maps_cost_the_server_next_to_nothing(kind: str) -> None:
    one = MemoryFederation(small_configuration(5), 5, rounds=2)
    body = b"\x84\xafseed_commitment\xdd" + MAPS.to_bytes(4, "big") + b"\x80" * MAPS
    peaks: list[int] = []

    def hook(parcel: Parcel) -> list[Parcel]:
        if (parcel.sender, parcel.kind) != (CHEAT, kind):
            return [parcel]
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        one.put(replace(parcel, frames=(parcel.frames[0], body, *parcel.frames[2:])))
        peaks.append(tracemalloc.get_traced_memory()[1] - before)
        return []

    one.hook = hook
    tracemalloc.start()
    one.run()
    tracemalloc.stop()
    assert len(peaks) == 1
    assert peaks[0] < 1 << 20
    first, second = one.outcome(RoundDone)
    included = kind == "unmask-shares"
    assert [(drop.member, drop.code, drop.included) for drop in first.dropped] == [(CHEAT, Code.MALFORMED, included)]
    assert first.survivors == one.roster.clients[: 5 if included else 4]
    assert second.survivors == one.roster.clients[:4]
    for done in (first, second):
        np.testing.assert_array_equal(done.total, one.plain_sum(done))


CLIENTS = 13
CHEATS = tuple(f"client-{number}" for number in range(UPLOADS))


@pytest.mark.threat("client/stalled-uploads")
def test_four_of_thirteen_that_stall_stop_nobody_in_any_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement_module, "CHUNK_BYTES", 64)
    one = MemoryFederation(small_configuration(CLIENTS, parameters=200), CLIENTS, rounds=4)
    said: Counter[str] = Counter()

    def hook(parcel: Parcel) -> list[Parcel]:
        """Well numbered, and without a chunk in the first two rounds."""
        if parcel.sender not in CHEATS or parcel.packet.kind is Hello:
            return [parcel]
        if parcel.packet.kind is VectorChunk and parcel.packet.envelope.round < 3:
            return []
        said[parcel.sender] += 1
        return [altered(parcel, sequence=said[parcel.sender] - 1)]

    one.hook = hook
    one.run()
    stalled, again, without, honest = one.outcome(RoundDone)
    for done in (stalled, again):
        assert done.survivors == one.roster.clients[UPLOADS:]
        assert [(drop.member, drop.code) for drop in done.dropped] == [(name, Code.TIMEOUT) for name in CHEATS]
    assert (without.cohort, without.dropped) == (one.roster.clients[UPLOADS:], ())
    assert again.began - stalled.began == one.configuration.phase_seconds
    assert (honest.survivors, honest.dropped) == (one.roster.clients, ())
    for done in (stalled, again, without, honest):
        np.testing.assert_array_equal(done.total, one.plain_sum(done))


TRAINING, TRAIN, PHASE = 5.0, 600.0, 60.0


@pytest.mark.threat("client/never-trains")
def test_who_never_trains_holds_up_fewer_and_fewer_rounds() -> None:
    one = MemoryFederation(small_configuration(5, train_seconds=TRAIN, phase_seconds=PHASE), 5, rounds=60)
    one.training_seconds, one.idle = lambda: TRAINING, {CHEAT}
    one.run()
    rounds = one.outcome(RoundDone)
    assert all(round.survivors == one.roster.clients[:4] for round in rounds)
    assert [round.round for round in rounds if CHEAT in round.cohort] == [1, 2, 4, 7, 12, 21, 38]
    assert one.now <= 2 * (TRAIN + PHASE) + 58 * 2 * TRAINING
    assert one.ended(CHEAT) == Ended(None, "the federation is finished")


TIMES = 500


@pytest.mark.threat("client/endless-hellos")
def test_five_hundred_hellos_in_every_phase_are_answered_a_few_times() -> None:
    one = MemoryFederation(small_configuration(5), 5, rounds=6)
    one.training_seconds = lambda: 1.0
    flooding = True

    def hook(parcel: Parcel) -> list[Parcel]:
        if CHEAT not in (parcel.sender, parcel.receiver) or not flooding or parcel.kind == "hello":
            return [parcel]
        return []

    one.hook = hook
    one.start()
    hello = next(parcel for parcel in one.log if parcel.packet.kind is Hello and parcel.sender == CHEAT)
    for number in range(TIMES):
        one.at(one.now + number * 3.0 / TIMES, lambda: one.put(hello))
    one.settle(until=3.0)
    joined = [event.member for event in one.outcome(ClientJoined)]
    assert joined.count(CHEAT) == HELLOS
    # It comes to its senses, is answered when its turn comes, and is in the rounds that follow.
    flooding = False
    one.start_client(CHEAT)
    one.training_seconds = lambda: float(HELLO_SECONDS)
    one.settle()
    rounds = one.outcome(RoundDone)
    assert len(rounds) == 6
    assert all(set(one.roster.clients[:4]) <= set(done.survivors) for done in rounds)
    assert CHEAT not in rounds[0].survivors
    assert CHEAT in rounds[-1].survivors
    for done in rounds:
        np.testing.assert_array_equal(done.total, one.plain_sum(done))
    assert one.outcome(MessageRefused, SERVER) == []


@pytest.mark.threat("client/endless-hellos", "client/endless-resumptions")
@cases("kind", [Hello, Resume])
def test_what_is_said_outside_of_rounds_names_none(kind: type[Message]) -> None:
    """Each round that a hello named was an entry of the server's traffic, and a line of its log; it bars its sender."""
    one = MemoryFederation(small_configuration(5), 5, rounds=2)
    one.training_seconds = lambda: 60.0
    one.start()
    one.settle(until=one.now + 1.0)
    message = kind(roster=one.roster.hash) if kind is Hello else kind()
    for number in range(1, 50):
        one.put(one.forge(CHEAT, SERVER, message, round=1000 + number))
    one.settle()
    assert max(round for round, _ in one.server.traffic.received) <= 2
    assert CHEAT in one.server.presence.barred
    assert [set(done.survivors) for done in one.outcome(RoundDone)] == [set(one.roster.clients[:4])] * 2


@pytest.mark.threat("client/endless-resumptions")
def test_five_hundred_resumptions_of_nothing_are_answered_a_few_times() -> None:
    one = MemoryFederation(small_configuration(5), 5, rounds=1)
    one.training_seconds = lambda: 60.0
    one.start()
    for number in range(TIMES):
        one.at(
            one.now + number * 3.0 / TIMES,
            lambda: one.put(one.forge(CHEAT, SERVER, Resume(), round=0, session=b"\x07" * 32)),
        )
    one.settle(until=one.now + 3.0)
    answers = [parcel for parcel in one.log if parcel.receiver == CHEAT and parcel.packet.kind is Abort]
    assert len(answers) <= HELLOS
    one.settle()
    (done,) = one.outcome(RoundDone)
    assert set(one.roster.clients[:4]) <= set(done.survivors)
