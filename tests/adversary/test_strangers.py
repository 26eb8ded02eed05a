"""Strangers on the server's port, over real sockets: none gets a link, and the members' round completes exactly."""

import asyncio
import os
from typing import Any

import numpy as np
import pytest
import zmq
import zmq.asyncio

from tacit.parties.learning.learner import Update
from tacit.parties.links.client_endpoint import ClientEndpoint, NotAdmittedError
from tacit.parties.links.keys import encode_key, generate
from tacit.parties.session.events import HandshakeRefused
from tacit.protocol.core.codec import decode, encode_structure
from tacit.protocol.core.errors import Code
from tacit.protocol.core.events import MessageRefused
from tacit.protocol.core.link import NO_SESSION, Link, Traffic
from tacit.protocol.core.machine import Ended
from tacit.protocol.core.roster import Roster
from tacit.protocol.session.events import ClientJoined
from tacit.protocol.session.messages import MESSAGES, Hello

REFUSED = "a handshake failed: a peer without this server's key, or no tacit client"


async def hold_round(federation: Any, server: asyncio.Task[Ended], *names: str) -> None:
    """These clients join, the last one first; the one round is run with them and its sum is that of their words."""
    updates: dict[str, Update] = {}
    clients = []
    for name in reversed(names):
        before = len(federation.events("server", ClientJoined))
        clients.append(federation.join(name, on_update=lambda round, update, name=name: updates.update({name: update})))
        async with asyncio.timeout(federation.seconds):
            while len(federation.events("server", ClientJoined)) == before:
                await asyncio.sleep(0.01)
    assert [end.code for end in await federation.all_of(server, *clients)] == [None] * (len(names) + 1)
    ((done, _),) = federation.rounds
    assert done.survivors == names
    packing = federation.configuration.packing()
    total = np.zeros(packing.length, packing.ring.word)
    for name in names:
        packing.ring.add_into(total, updates[name].words)
    np.testing.assert_array_equal(done.total, total)


def refused_by(federation: Any) -> set[tuple[str | None, str | None]]:
    """Keys and addresses of refused handshakes."""
    return {(fields.public_key, fields.address) for fields in federation.events("server", HandshakeRefused)}


@pytest.mark.threat("stranger/no-key", "stranger/random-bytes", "stranger/endless-handshake", "client/half-open")
@pytest.mark.asyncio
async def test_a_round_among_strangers(federation: Any) -> None:
    """Without CURVE, with a key of nobody, with noise, and with handshakes that do not go on, all at once."""
    server = await federation.serve(rounds=1)
    host, port = federation.address.removeprefix("tcp://").split(":")
    stranger = generate("stranger")
    context = zmq.asyncio.Context()
    writers = []
    for start in (os.urandom(1000), b"GET / HTTP/1.1\r\n\r\n", b"\xff" + bytes(8) + b"\x7f", b"") * 20:
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(start)
        writers.append(writer)
    with context.socket(zmq.DEALER) as plain, context.socket(zmq.DEALER) as unknown:
        unknown.setsockopt(zmq.CURVE_SERVERKEY, federation.keys["server"].curve_public)
        unknown.setsockopt(zmq.CURVE_PUBLICKEY, stranger.curve_public)
        unknown.setsockopt(zmq.CURVE_SECRETKEY, stranger.curve_secret)
        for socket in (plain, unknown):
            socket.setsockopt(zmq.LINGER, 0)
            socket.connect(federation.address)
            await socket.send_multipart(
                Link("client-1", "server", NO_SESSION, Traffic(), MESSAGES).frames(
                    Hello(roster=federation.roster.hash), round=0
                )
            )
        async with asyncio.timeout(federation.seconds):
            expected = {(None, "127.0.0.1"), (encode_key(stranger.curve_public), "127.0.0.1")}
            # Where a connection has ended before it is looked at, there is no address.
            while refused_by(federation) - {(None, None)} != expected:
                await asyncio.sleep(0.01)
        await hold_round(federation, server, *federation.clients)
    context.term()
    for writer in writers:
        writer.transport.abort()
    assert refused_by(federation) - {(None, None)} == expected
    assert federation.events("server", MessageRefused) == []


@pytest.mark.threat("stranger/removed-key")
@pytest.mark.asyncio
async def test_a_key_that_was_removed_from_the_roster(federation: Any) -> None:
    """client-4 still holds the old roster, where it stands; the others hold the new one."""
    former = federation.roster
    federation.roster = Roster(tuple(member for member in former.members if member.name != "client-4"))
    server = await federation.serve(rounds=1)
    with pytest.raises(NotAdmittedError, match="does not know this key"):
        await federation.join("client-4", roster=former)
    await hold_round(federation, server, *federation.clients[:3])
    (refused,) = federation.events("server", HandshakeRefused)
    assert refused.public_key == encode_key(federation.keys["client-4"].curve_public)
    assert refused.reason == "this key is not in the roster"


MISNAMED = {
    "another's name": ({"sender": "client-3"}, Code.SENDER, "it calls itself 'client-3'"),
    "the server's name": ({"sender": "server"}, Code.SENDER, "it calls itself 'server'"),
    "version 0": ({"version": 0}, Code.VERSION, "protocol version 0, here 5 of a federation"),
    "release 0.2.0": ({"version": 2}, Code.VERSION, "protocol version 2, here 5 of a federation: install the same"),
}


@pytest.mark.threat("stranger/anothers-name", "stranger/old-version")
@pytest.mark.parametrize("case", MISNAMED)
@pytest.mark.asyncio
async def test_a_member_that_is_not_who_it_says_or_speaks_otherwise(federation: Any, case: str) -> None:
    """client-4's key opens the link; client-3, whose name it takes, takes part in the round all the same."""
    changes, code, detail = MISNAMED[case]
    server = await federation.serve(rounds=1)
    hello = Hello(roster=federation.roster.hash)
    envelope, body = Link("client-4", "server", NO_SESSION, Traffic(), MESSAGES).frames(hello, round=0)
    read = decode([envelope, body], MESSAGES).envelope
    changed = type(read)(**{name: getattr(read, name) for name in read.__struct_fields__} | changes)
    async with await ClientEndpoint.connect(
        federation.address, keys=federation.keys["client-4"], server=federation.roster.server
    ) as bad:
        await bad.send([encode_structure(changed), body])
        await hold_round(federation, server, *federation.clients[:3])
    (refused,) = federation.events("server", MessageRefused)
    assert (refused.member, refused.code) == ("client-4", code.name)
    assert detail in refused.detail


@pytest.mark.threat("client/duplicate-identity")
@pytest.mark.asyncio
async def test_a_second_start_under_one_name_replaces_the_first(federation: Any) -> None:
    """client-4 says hello twice, over two links: it counts once."""
    server = await federation.serve(rounds=1)
    hello = Hello(roster=federation.roster.hash)
    frames = Link("client-4", "server", NO_SESSION, Traffic(), MESSAGES).frames(hello, round=0)
    async with await ClientEndpoint.connect(
        federation.address, keys=federation.keys["client-4"], server=federation.roster.server
    ) as first:
        await first.send(frames)
        await federation.event("server", ClientJoined)
        await hold_round(federation, server, *federation.clients)
    assert [fields.member for fields in federation.events("server", ClientJoined)].count("client-4") == 2
