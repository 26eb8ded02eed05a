"""Members that flood the server or starve it of bytes, over real sockets: the others' rounds complete exactly.

Three honest clients stand beside client-4, which joins, is selected, and then only makes trouble. It is over when its
link is cut, and the round goes on without it; the next one runs as if nothing had happened.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
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
from tacit.protocol.core.messages import Fetch, Message
from tacit.protocol.core.roster import Roster
from tacit.protocol.session.events import RoundStarted
from tacit.protocol.session.messages import MESSAGES, Finish, Hello

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
