"""The server's end of links: real sockets and real CURVE, the handshake's checks, links that come and go."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import zmq
import zmq.asyncio

from tacit.parties.links.client_endpoint import ClientEndpoint, NotAdmittedError
from tacit.parties.links.endpoint import (
    MOST_LINKS,
    AddressError,
    EndpointError,
    Event,
    HandshakeRefused,
    Limits,
    LinkLost,
    LinkUp,
    NotConnectedError,
    Received,
)
from tacit.parties.links.keys import PartyKeys, encode_key
from tacit.parties.links.server_endpoint import ZAP_ADDRESS, Connections, ServerEndpoint, ZapHandler
from tacit.parties.links.tokens import TokenFile
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


KEY = bytes(range(32))
GOOD = [b"1.0", b"request", b"tacit", b"192.0.2.7", b"", b"CURVE", KEY]


@asynccontextmanager
async def asking(refused: list[tuple[bytes, str]]) -> AsyncIterator[zmq.asyncio.Socket]:
    async def admit(name: str) -> str:
        return f"{name} 7"

    async def on_refused(key: bytes, address: str, reason: str) -> None:
        refused.append((key, address))

    context = zmq.asyncio.Context()
    handler = ZapHandler(context, {KEY: "alice"}, admit, on_refused)
    with context.socket(zmq.REQ) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(ZAP_ADDRESS)
        yield socket
    await handler.close()
    context.term()


@pytest.mark.asyncio
async def test_known_key_gets_the_user_id_of_its_member() -> None:
    refused: list[tuple[bytes, str]] = []
    async with asking(refused) as socket:
        await socket.send_multipart(GOOD)
        assert await socket.recv_multipart() == [b"1.0", b"request", b"200", b"OK", b"alice 7", b""]
    assert not refused


@pytest.mark.asyncio
@pytest.mark.parametrize("key", [bytes(32), KEY[:31], KEY + b"\0", b"", b"alice"], ids=repr)
async def test_unknown_key_is_refused_and_reported(key: bytes) -> None:
    refused: list[tuple[bytes, str]] = []
    async with asking(refused) as socket:
        await socket.send_multipart([*GOOD[:6], key])
        assert await socket.recv_multipart() == [b"1.0", b"request", b"400", b"key not in the roster", b"", b""]
    assert refused == [(key, "192.0.2.7")]


OTHERS = {
    "version": [b"1.1", *GOOD[1:]],
    "no domain": [*GOOD[:2], b"", *GOOD[3:]],
    "other domain": [*GOOD[:2], b"global", *GOOD[3:]],
    "NULL": [*GOOD[:5], b"NULL"],
    "NULL with a key": [*GOOD[:5], b"NULL", KEY],
    "PLAIN": [*GOOD[:5], b"PLAIN", b"alice", b"password"],
    "no key": GOOD[:6],
    "two keys": [*GOOD, KEY],
    "too short": GOOD[:2],
}


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", OTHERS)
async def test_anything_else_is_refused(kind: str) -> None:
    refused: list[tuple[bytes, str]] = []
    async with asking(refused) as socket:
        await socket.send_multipart(OTHERS[kind])
        answer = await socket.recv_multipart()
        assert answer[:3] == [b"1.0", b"request", b"400"]
        assert answer[4:] == [b"", b""]
        # The handler goes on.
        await socket.send_multipart(GOOD)
        assert (await socket.recv_multipart())[2] == b"200"
    assert not refused


async def send_for_ever(server: ServerEndpoint) -> None:
    async with asyncio.timeout(30):
        while True:
            await server.send("alice", [b"hello"])
            await asyncio.sleep(0)


@pytest.mark.asyncio
async def test_remains_of_an_ended_link_do_not_open_it_again(keys: Keys, roster: Roster) -> None:
    """A link that came and went, and one that took over its descriptor, before the server looked."""
    async with await ServerEndpoint.bind(ANYWHERE, keys=keys["server"], roster=roster) as server:
        async with await ClientEndpoint.connect(server.address, keys=keys["alice"], server=roster.server) as alice:
            await alice.send([b"remains"])
        async with await ClientEndpoint.connect(server.address, keys=keys["bob"], server=roster.server) as bob:
            await bob.send([b"bob"])
            events: list[Event] = []
            while not (events and isinstance(events[-1], Received) and events[-1].sender == "bob"):
                events.append(await asyncio.wait_for(server.receive(), 30))
            assert [event.sender for event in events if isinstance(event, Received)] == ["alice", "bob"]
            assert [event.peer for event in events if isinstance(event, LinkUp)].count("bob") == 1
            # Whatever was seen of Alice's link, it is over, and Bob's is not.
            ups = sum(event == LinkUp("alice") for event in events)
            assert ups == sum(event == LinkLost("alice") for event in events)
            assert LinkLost("bob") not in events
            with pytest.raises(NotConnectedError):
                await server.send("alice", [b"hello"])
            await server.send("bob", [b"hello"])


@pytest.mark.asyncio
@pytest.mark.parametrize("with_tokens", [False, True])
async def test_the_last_words_of_a_client_are_heard(
    keys: Keys, roster: Roster, until: Callable, tmp_path: Path, with_tokens: bool
) -> None:
    """Also where the end of its link is noticed before they are read: nobody says them again."""
    own, others = (TokenFile(tmp_path / name) if with_tokens else None for name in ("alice", "server"))
    async with await ServerEndpoint.bind(ANYWHERE, keys=keys["server"], roster=roster, tokens=others) as server:
        async with await ClientEndpoint.connect(
            server.address, keys=keys["alice"], server=roster.server, tokens=own
        ) as alice:
            await until(server, LinkUp)
            await alice.send([b"last"])
        async with asyncio.timeout(30):
            with pytest.raises(NotConnectedError):
                await send_for_ever(server)
            assert await server.receive() == LinkLost("alice")
            heard = await server.receive()
    assert isinstance(heard, Received)
    assert [bytes(frame) for frame in heard.frames] == [b"last"]


@pytest.mark.asyncio
async def test_send_notices_a_lost_link_before_receive_does(keys: Keys, roster: Roster, until: Callable) -> None:
    async with await ServerEndpoint.bind(ANYWHERE, keys=keys["server"], roster=roster) as server:
        async with await ClientEndpoint.connect(server.address, keys=keys["alice"], server=roster.server):
            await until(server, LinkUp)
        with pytest.raises(NotConnectedError, match="'alice' has"):
            await send_for_ever(server)
        assert await server.receive() == LinkLost("alice")


@pytest.mark.asyncio
async def test_send_that_notices_a_lost_link_wakes_a_waiting_receiver(
    keys: Keys, roster: Roster, until: Callable
) -> None:
    async with await ServerEndpoint.bind(ANYWHERE, keys=keys["server"], roster=roster) as server:
        async with await ClientEndpoint.connect(server.address, keys=keys["alice"], server=roster.server):
            await until(server, LinkUp)
            waiting = asyncio.create_task(until(server, LinkLost))
        with pytest.raises(NotConnectedError):
            await asyncio.gather(*(server.send("alice", [b"hello"]) for _ in range(1000)))
        assert await waiting == LinkLost("alice")


SECONDS = 10.0  # Of a handshake.


def test_silent_links_of_others_hold_up_no_place_for_long() -> None:
    connections = Connections(SECONDS)
    connections.accept(1, 0.0)
    assert connections.admit("bob", 0.0) == 1
    for descriptor in range(2, 2 + MOST_LINKS):
        now = 100.0 * descriptor
        connections.accept(descriptor, now)
        assert connections.admit("alice", now) is not None
        connections.end(descriptor)
    # All of Alice's ended without a word, and Bob's is as silent: it was opened at another time.
    assert connections.admit("alice", 2000.0) is not None


def test_a_silent_link_keeps_its_place_until_it_ends() -> None:
    connections = Connections(SECONDS)
    for descriptor in range(MOST_LINKS):
        connections.accept(descriptor, float(descriptor))
        assert connections.admit("alice", float(descriptor)) is not None
    connections.accept(100, 1e6)
    assert connections.admit("alice", 1e6) is None
    connections.end(0)
    assert connections.admit("alice", 1e6) is not None
    connections.accept(101, 1e6)
    assert connections.admit("alice", 1e6) is None
    # Others have places of their own.
    assert connections.admit("bob", 1e6) is not None


def test_a_link_that_is_over_when_it_is_first_heard_is_no_failed_handshake() -> None:
    connections = Connections(SECONDS)
    connections.accept(1, 1.0)
    first = connections.admit("alice", 2.0)
    assert first is not None
    connections.speak("alice", first, 1, None)
    assert connections.failing(1) == (False, None)
    connections.end(1)
    # Another one has its descriptor by the time that a message of the former is read.
    connections.accept(1, 3.0)
    second = connections.admit("alice", 4.0)
    assert second is not None
    connections.end(1)
    connections.accept(1, 5.0)
    connections.speak("alice", second, 1, None)
    assert connections.failing(1) == (True, None)


@pytest.mark.asyncio
async def test_links_that_come_and_go_keep_no_places(keys: Keys, roster: Roster, until: Callable) -> None:
    async with await ServerEndpoint.bind(ANYWHERE, keys=keys["server"], roster=roster) as server:
        for _ in range(3 * MOST_LINKS):
            async with await ClientEndpoint.connect(server.address, keys=keys["alice"], server=roster.server) as alice:
                await alice.send([b"hello"])
                assert (await until(server, Received)).sender == "alice"
