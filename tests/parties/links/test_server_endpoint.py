"""The listening end, with real sockets and real CURVE on the loopback interface."""

import asyncio
from collections.abc import Callable

import pytest
import zmq
import zmq.asyncio

from tacit.parties.links.client_endpoint import ClientEndpoint, NotAdmittedError
from tacit.parties.links.endpoint import (
    AddressError,
    EndpointError,
    HandshakeRefused,
    Limits,
    LinkLost,
    LinkUp,
    Received,
)
from tacit.parties.links.keys import PartyKeys, encode_key
from tacit.parties.links.server_endpoint import ServerEndpoint
from tacit.protocol.core.roster import Roster

Keys = dict[str, PartyKeys]
ANYWHERE = "tcp://127.0.0.1:*"


def raw_client(context: zmq.asyncio.Context, server: ServerEndpoint, keys: Keys, name: str) -> zmq.asyncio.Socket:
    """A member's DEALER without our client endpoint, which may do what that one would not."""
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.CURVE_SERVERKEY, keys["server"].curve_public)
    socket.setsockopt(zmq.CURVE_PUBLICKEY, keys[name].curve_public)
    socket.setsockopt(zmq.CURVE_SECRETKEY, keys[name].curve_secret)
    socket.connect(server.address)
    return socket


@pytest.mark.asyncio
async def test_addresses_of_ipv6(keys: Keys, roster: Roster, until: Callable) -> None:
    async with await ServerEndpoint.bind("tcp://[::1]:*", keys=keys["server"], roster=roster) as server:
        assert server.address.startswith("tcp://[::1]:")
        async with await ClientEndpoint.connect(server.address, keys=keys["alice"], server=roster.server) as alice:
            await alice.send([b"hello"])
            assert (await until(server, Received)).sender == "alice"


@pytest.mark.asyncio
async def test_nobody_gets_in_where_nobody_answers_for_the_roster(keys: Keys, roster: Roster, until: Callable) -> None:
    """libzmq lets everybody in where there is no handler, unless it is told that there has to be one."""
    async with await ServerEndpoint.bind(ANYWHERE, keys=keys["server"], roster=roster) as server:
        await server._zap.close()
        context = zmq.asyncio.Context()
        with raw_client(context, server, keys, "alice") as alice:
            await alice.send(b"let me in")
            assert await until(server, HandshakeRefused)
        context.term()


@pytest.mark.asyncio
async def test_a_member_cannot_speak_as_another(keys: Keys, roster: Roster, until: Callable) -> None:
    context = zmq.asyncio.Context()
    async with (
        await ServerEndpoint.bind(ANYWHERE, keys=keys["server"], roster=roster) as server,
        await ClientEndpoint.connect(server.address, keys=keys["bob"], server=roster.server),
    ):
        assert await until(server, LinkUp) == LinkUp("bob")
        # Alice claims Bob's name wherever ZeroMQ lets her write something.
        with context.socket(zmq.DEALER) as alice:
            alice.setsockopt(zmq.LINGER, 0)
            alice.setsockopt(zmq.ROUTING_ID, b"bob")
            alice.setsockopt(zmq.METADATA, b"X-User-Id:bob")
            alice.setsockopt(zmq.CURVE_SERVERKEY, keys["server"].curve_public)
            alice.setsockopt(zmq.CURVE_PUBLICKEY, keys["alice"].curve_public)
            alice.setsockopt(zmq.CURVE_SECRETKEY, keys["alice"].curve_secret)
            alice.connect(server.address)
            await alice.send_multipart([b"bob", b"I am bob"])
            assert (await until(server, Received)).sender == "alice"
            # What is for Alice reaches her (after the greeting), whatever routing id she chose.
            await server.send("alice", [b"for alice"])
            assert await alice.recv_multipart() == [b""]
            assert await alice.recv_multipart() == [b"for alice"]
    context.term()


@pytest.mark.asyncio
async def test_refused_key_is_named_on_both_sides(keys: Keys, roster: Roster, until: Callable) -> None:
    async with await ServerEndpoint.bind(ANYWHERE, keys=keys["server"], roster=roster) as server:
        for _ in range(2):
            with pytest.raises(NotAdmittedError, match=r"does not know this key \(status 400\).*add 'stranger'"):
                await ClientEndpoint.connect(server.address, keys=keys["stranger"], server=roster.server)
        refusal = await until(server, HandshakeRefused)
        assert refusal.public_key == encode_key(keys["stranger"].curve_public)
        assert refusal.address == "127.0.0.1"
        assert "not in the roster" in refusal.reason
        # Only the first of equal refusals is reported: the next event is another one.
        async with await ClientEndpoint.connect(server.address, keys=keys["alice"], server=roster.server):
            assert await server.receive() == LinkUp("alice")


@pytest.mark.asyncio
async def test_the_servers_own_key_is_not_admitted(keys: Keys, roster: Roster) -> None:
    async with await ServerEndpoint.bind(ANYWHERE, keys=keys["server"], roster=roster) as server:
        with pytest.raises(NotAdmittedError, match="'server'"):
            await ClientEndpoint.connect(server.address, keys=keys["server"], server=roster.server)


@pytest.mark.asyncio
async def test_refusal_wakes_a_waiting_receiver(keys: Keys, roster: Roster, until: Callable) -> None:
    async with await ServerEndpoint.bind(ANYWHERE, keys=keys["server"], roster=roster) as server:
        waiting = asyncio.create_task(until(server, HandshakeRefused))
        with pytest.raises(NotAdmittedError):
            await ClientEndpoint.connect(server.address, keys=keys["stranger"], server=roster.server)
        assert (await waiting).public_key == encode_key(keys["stranger"].curve_public)


@pytest.mark.asyncio
async def test_stranger_without_curve(keys: Keys, roster: Roster, until: Callable) -> None:
    context = zmq.asyncio.Context()
    async with await ServerEndpoint.bind(ANYWHERE, keys=keys["server"], roster=roster) as server:
        with context.socket(zmq.DEALER) as socket:
            socket.setsockopt(zmq.LINGER, 0)
            socket.connect(server.address)
            await socket.send(b"hello")
            refusal = await until(server, HandshakeRefused)
        assert refusal.public_key is None
        async with await ClientEndpoint.connect(server.address, keys=keys["alice"], server=roster.server) as alice:
            await alice.send([b"the first that is delivered"])
            assert (await until(server, Received)).sender == "alice"
    context.term()


@pytest.mark.asyncio
@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\xff" + bytes(8) + b"\x7f\x03"])
async def test_a_failed_handshake_has_an_address_and_is_told_once(
    keys: Keys, roster: Roster, until: Callable, said: bytes
) -> None:
    """Whoever was refused by key is reported with it, and not again; a member that says nothing is not."""
    async with await ServerEndpoint.bind(ANYWHERE, keys=keys["server"], roster=roster) as server:
        host, port = server.address.removeprefix("tcp://").split(":")
        for source in ("127.0.0.2", "127.0.0.3", "127.0.0.2"):
            _, writer = await asyncio.open_connection(host, int(port), local_addr=(source, 0))
            with pytest.raises(NotAdmittedError):
                # Whose connection has been accepted later.
                await ClientEndpoint.connect(server.address, keys=keys["stranger"], server=roster.server)
            writer.write(said)
            writer.close()
        refused = [await until(server, HandshakeRefused) for _ in range(3)]
        assert [one.address for one in refused] == ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
        assert [one.public_key is None for one in refused] == [False, True, True]
        async with await ClientEndpoint.connect(server.address, keys=keys["alice"], server=roster.server):
            assert await server.receive() == LinkUp("alice")
        assert await server.receive() == LinkLost("alice")


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "noise", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\xff" + bytes(8) + b"\x7f\x03\x00CURVE" + bytes(80)]
)
async def test_noise_disturbs_nobody(keys: Keys, roster: Roster, until: Callable, noise: bytes) -> None:
    async with await ServerEndpoint.bind(ANYWHERE, keys=keys["server"], roster=roster) as server:
        host, port = server.address.removeprefix("tcp://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(noise)
        async with await ClientEndpoint.connect(server.address, keys=keys["alice"], server=roster.server) as alice:
            await alice.send([b"hello"])
            assert (await until(server, Received)).sender == "alice"
        writer.transport.abort()


@pytest.mark.asyncio
async def test_oversized_frame_costs_the_link(keys: Keys, roster: Roster, until: Callable) -> None:
    context = zmq.asyncio.Context()
    limits = Limits(max_frame_bytes=2000)
    async with await ServerEndpoint.bind(ANYWHERE, keys=keys["server"], roster=roster, limits=limits) as server:
        with raw_client(context, server, keys, "alice") as alice:
            await alice.send(bytes(2000))
            assert (await until(server, Received)).frames[0].nbytes == 2000
            await alice.send(bytes(2001))
            assert await server.receive() == LinkLost("alice")
    context.term()


@pytest.mark.parametrize(("field", "value", "least"), [("max_frame_bytes", 1023, 1024), ("queue_messages", 1, 2)])
def test_limits_that_libzmq_could_not_work_with(field: str, value: int, least: int) -> None:
    with pytest.raises(ValueError, match=f"{field} = {value}: use {least} or more"):
        Limits(**{field: value})


@pytest.mark.asyncio
async def test_port_in_use(keys: Keys, roster: Roster) -> None:
    async with await ServerEndpoint.bind(ANYWHERE, keys=keys["server"], roster=roster) as server:
        with pytest.raises(
            AddressError, match=f"cannot listen at {server.address}: Address already in use; use an address"
        ):
            await ServerEndpoint.bind(server.address, keys=keys["server"], roster=roster)


@pytest.mark.asyncio
async def test_keys_that_are_not_the_rosters(keys: Keys, roster: Roster) -> None:
    other = PartyKeys(**{**vars(keys["stranger"]), "name": "server"})
    with pytest.raises(EndpointError, match="the roster has other public keys for 'server'"):
        await ServerEndpoint.bind(ANYWHERE, keys=other, roster=roster)
    with pytest.raises(LookupError, match="'stranger' is not in the roster"):
        await ServerEndpoint.bind(ANYWHERE, keys=keys["stranger"], roster=roster)
