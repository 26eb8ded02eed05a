"""The connecting end: what it says when no link comes about, and how it finds back."""

import asyncio
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
import zmq
import zmq.asyncio

from tacit.parties.links.client_endpoint import (
    ClientEndpoint,
    UnreachableError,
    WrongServerError,
)
from tacit.parties.links.endpoint import (
    AddressError,
    LinkUp,
    Received,
)
from tacit.parties.links.keys import PartyKeys
from tacit.parties.links.server_endpoint import ServerEndpoint
from tacit.protocol.core.roster import Roster

Keys = dict[str, PartyKeys]
ANYWHERE = "tcp://127.0.0.1:*"


@pytest.fixture
def silent_address() -> Iterator[str]:
    """A port where nothing listens; it is held, so that no other process takes it, but a ZeroMQ socket may share it."""
    with socket.socket() as placeholder:
        placeholder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        placeholder.bind(("127.0.0.1", 0))
        yield f"tcp://127.0.0.1:{placeholder.getsockname()[1]}"


LINK_LOST_UNSEEN = """
import asyncio, threading
from tacit.parties.links.client_endpoint import ClientEndpoint, UnreachableError
from tacit.parties.links.keys import generate
from tacit.parties.links.server_endpoint import ServerEndpoint
from tacit.protocol.core.roster import Roster

keys = {name: generate(name) for name in ("server", "alice")}
roster = Roster((keys["server"].member("server"), keys["alice"].member("client")))
addresses, listening, closed = [], threading.Event(), threading.Event()

async def serve():
    async with await ServerEndpoint.bind("tcp://127.0.0.1:*", keys=keys["server"], roster=roster) as server:
        addresses.append(server.address)
        listening.set()
        while not server._open:
            await server._follow_links()
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.1)  # For the handshake, of which the server sees nothing before the first message.
    closed.set()

async def join():
    connecting = ClientEndpoint.connect(
        addresses[0], keys=keys["alice"], server=roster.server, connect_deadline=1
    )
    task = asyncio.ensure_future(connecting)
    await asyncio.sleep(0)
    closed.wait()  # The loop stands still while the link comes and goes.
    try:
        await task
    except UnreachableError:
        print("at its deadline")

threading.Thread(target=lambda: asyncio.run(serve()), daemon=True).start()
listening.wait()
asyncio.run(join())
"""


def test_a_link_that_has_come_and_gone_unseen_does_not_hold_up_the_deadline() -> None:
    # In a process of its own: it used to turn round for ever, deaf to every deadline.
    done = subprocess.run([sys.executable, "-c", LINK_LOST_UNSEEN], capture_output=True, text=True, timeout=60)
    assert done.stdout == "at its deadline\n", done.stderr


ABANDONED = """
import asyncio, gc
from tacit.parties.links.client_endpoint import ClientEndpoint
from tacit.parties.links.keys import generate
from tacit.parties.links.server_endpoint import ServerEndpoint
from tacit.protocol.core.roster import Roster

keys = {name: generate(name) for name in ("server", "alice")}
roster = Roster((keys["server"].member("server"), keys["alice"].member("client")))

async def abandon():
    server = await ServerEndpoint.bind("tcp://127.0.0.1:*", keys=keys["server"], roster=roster)
    client = await ClientEndpoint.connect(server.address, keys=keys["alice"], server=roster.server)
    server.cycle, client.cycle = client, server

asyncio.run(abandon())
gc.collect()
print("collected", flush=True)
"""


def test_an_endpoint_that_nobody_closes_does_not_hang_the_garbage_collector() -> None:
    done = subprocess.run([sys.executable, "-c", ABANDONED], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == ("collected\n", 0), done.stderr


def hasty(obstacle: str, times: int) -> type[ClientEndpoint]:
    """An end whose deadline comes when it has met this obstacle so many times in a row."""

    class Hasty(ClientEndpoint):
        met = 0

        async def _follow_links(self) -> None:
            await super()._follow_links()
            self.met = self.met + 1 if obstacle in str(self._obstacle) else 0
            if self.met == times:
                raise TimeoutError

    return Hasty


@pytest.mark.asyncio
async def test_what_listens_says_nothing(keys: Keys, roster: Roster) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        reason = f"something at {address} accepts connections but does not answer"
        with pytest.raises(UnreachableError, match=reason):
            await hasty(reason, 1).connect(address, keys=keys["alice"], server=roster.server)


@pytest.mark.asyncio
async def test_what_listens_hangs_up(keys: Keys, roster: Roster) -> None:
    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    listener = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    async with listener:
        address = f"tcp://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        reason = f"not a tacit server at {address}"
        with pytest.raises(WrongServerError, match=reason):
            await hasty(reason, 5).connect(address, keys=keys["alice"], server=roster.server)


@pytest.mark.asyncio
async def test_wrong_server_key(keys: Keys, roster: Roster) -> None:
    impostor = keys["stranger"].member("server")
    async with await ServerEndpoint.bind(ANYWHERE, keys=keys["server"], roster=roster) as server:
        reason = f"wrong server key or not a tacit server at {server.address}"
        with pytest.raises(WrongServerError, match=reason):
            await hasty(reason, 1).connect(server.address, keys=keys["alice"], server=impostor)


@pytest.mark.asyncio
async def test_server_without_curve(keys: Keys, roster: Roster) -> None:
    context = zmq.asyncio.Context()
    with context.socket(zmq.ROUTER) as plain:
        plain.bind(ANYWHERE)
        address = plain.getsockopt_string(zmq.LAST_ENDPOINT)
        with pytest.raises(WrongServerError, match=f"wrong server key or not a tacit server at {address}"):
            await ClientEndpoint.connect(address, keys=keys["alice"], server=roster.server)
    context.term()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("address", "reason"),
    [("127.0.0.1:9000", "is not an address"), ("tcp://127.0.0.1:*", "cannot connect to tcp://127.0.0.1")],
)
async def test_bad_addresses(keys: Keys, roster: Roster, address: str, reason: str) -> None:
    with pytest.raises(AddressError, match=reason):
        await ClientEndpoint.connect(address, keys=keys["alice"], server=roster.server)


@pytest.mark.asyncio
async def test_server_that_starts_later(keys: Keys, roster: Roster, silent_address: str) -> None:
    connecting = asyncio.create_task(ClientEndpoint.connect(silent_address, keys=keys["alice"], server=roster.server))
    # The attempt is under way, and has met a closed port, before the server exists.
    with pytest.raises(UnreachableError):
        await ClientEndpoint.connect(silent_address, keys=keys["bob"], server=roster.server, connect_deadline=0.3)
    async with (
        await ServerEndpoint.bind(silent_address, keys=keys["server"], roster=roster) as server,
        await connecting as client,
    ):
        await client.send([b"hello"])
        assert await server.receive() == LinkUp("alice")
        assert (await server.receive()).sender == "alice"


@pytest.mark.asyncio
async def test_silent_client_is_known_to_a_restarted_server(keys: Keys, roster: Roster, until: Callable) -> None:
    server = await ServerEndpoint.bind(ANYWHERE, keys=keys["server"], roster=roster)
    async with await ClientEndpoint.connect(server.address, keys=keys["alice"], server=roster.server) as client:
        await server.close()
        receiving = asyncio.create_task(until(client, Received))
        async with await ServerEndpoint.bind(server.address, keys=keys["server"], roster=roster) as successor:
            assert await until(successor, LinkUp) == LinkUp("alice")
            await successor.send("alice", [b"welcome back"])
            assert bytes((await receiving).frames[0]) == b"welcome back"


@pytest.mark.asyncio
async def test_clients_that_share_a_context_have_their_own_links_and_its_owner_ends_it(
    keys: Keys, roster: Roster
) -> None:
    context = zmq.asyncio.Context()
    async with await ServerEndpoint.bind(ANYWHERE, keys=keys["server"], roster=roster) as server:
        opened = [
            await ClientEndpoint.connect(server.address, keys=keys[name], server=roster.server, context=context)
            for name in ("alice", "bob")
        ]
        for endpoint, name in zip(opened, ("alice", "bob"), strict=True):
            await endpoint.send([name.encode()])
        heard = {}
        while len(heard) < 2:
            event = await server.receive()
            if isinstance(event, Received):
                heard[event.sender] = bytes(event.frames[0])
        assert heard == {"alice": b"alice", "bob": b"bob"}
        await opened[0].close()
        # The other one's link is as it was.
        await opened[1].send([b"again"])
        while not isinstance(event := await server.receive(), Received):
            pass
        assert (event.sender, bytes(event.frames[0])) == ("bob", b"again")
        await opened[1].close()
        assert not context.closed
    await asyncio.to_thread(context.term)
