"""A key with many links: a few are admitted, whatever the member does with them, and places come back."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import zmq
import zmq.asyncio

from tacit.parties.links import endpoint
from tacit.parties.links.client_endpoint import ClientEndpoint, UnreachableError
from tacit.parties.links.endpoint import MOST_LINKS, HandshakeRefused, Limits, LinkUp, Received
from tacit.parties.links.keys import PartyKeys
from tacit.parties.links.server_endpoint import ServerEndpoint
from tacit.protocol.core.roster import Roster

Keys = dict[str, PartyKeys]
ANYWHERE = "tcp://127.0.0.1:*"
MANY = 60


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@contextlib.asynccontextmanager
async def served(keys: Keys, roster: Roster) -> AsyncIterator[tuple[ServerEndpoint, asyncio.Queue]]:
    events: asyncio.Queue = asyncio.Queue()

    async def read() -> None:
        while True:
            events.put_nowait(await server.receive())

    async with await ServerEndpoint.bind(
        ANYWHERE, keys=keys["server"], roster=roster, limits=Limits(handshake_seconds=1.0)
    ) as server:
        reading = asyncio.create_task(read())
        yield server, events
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


def iter_now(events: asyncio.Queue) -> Iterator[object]:
    while not events.empty():
        yield events.get_nowait()


class Dealers:
    def __init__(self, address: str, keys: Keys, name: str) -> None:
        self.context = zmq.asyncio.Context()
        self._address, self._keys, self._name = address, keys, name
        self.sockets: list[zmq.asyncio.Socket] = []

    async def open(self, *, word: bytes | None = b"") -> bool:
        """Open one more link, and say this on it, if anything; whether it was admitted."""
        socket = self.context.socket(zmq.DEALER)
        for option, value in ((zmq.LINGER, 0), (zmq.RECONNECT_IVL, -1)):
            socket.setsockopt(option, value)
        socket.setsockopt(zmq.CURVE_SERVERKEY, self._keys["server"].curve_public)
        socket.setsockopt(zmq.CURVE_PUBLICKEY, self._keys[self._name].curve_public)
        socket.setsockopt(zmq.CURVE_SECRETKEY, self._keys[self._name].curve_secret)
        monitor = socket.get_monitor_socket(
            zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
        )
        socket.connect(self._address)
        event = int.from_bytes((await asyncio.wait_for(monitor.recv_multipart(), 30))[0][:2], "little")
        socket.disable_monitor()
        monitor.close(linger=0)
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED and word is not None:
            await socket.send(word)
        self.sockets.append(socket)
        return event == zmq.EVENT_HANDSHAKE_SUCCEEDED

    def close(self) -> None:
        for socket in self.sockets:
            socket.close()
        self.sockets.clear()
        self.context.term()


@pytest.fixture
def dealers() -> Iterator[Callable]:
    made: list[Dealers] = []

    def make(*arguments) -> Dealers:
        made.append(Dealers(*arguments))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.mark.threat("client/half-open")
@pytest.mark.parametrize("word", [b"", None], ids=["speaking", "silent"])
@pytest.mark.asyncio
async def test_a_member_holds_a_few_links_and_gets_them_back(
    keys: Keys, roster: Roster, dealers: Callable, word: bytes | None
) -> None:
    async with (
        served(keys, roster) as (server, events),
        await ClientEndpoint.connect(server.address, keys=keys["bob"], server=roster.server) as bob,
    ):
        alice = dealers(server.address, keys, "alice")
        admitted = [await alice.open(word=word) for _ in range(MANY)]
        assert admitted == [True] * MOST_LINKS + [False] * (MANY - MOST_LINKS)
        assert any("links open" in e.reason for e in iter_now(events) if isinstance(e, HandshakeRefused))
        # An honest program with that key hears why, and the other members notice nothing.
        with pytest.raises(UnreachableError, match=f"{MOST_LINKS} links of 'alice'"):
            await ClientEndpoint.connect(server.address, keys=keys["alice"], server=roster.server, connect_deadline=0.5)
        await bob.send([b"still here"])
        async with asyncio.timeout(30):
            while not isinstance(event := await events.get(), Received):
                pass
        assert (event.sender, bytes(event.frames[0])) == ("bob", b"still here")
        # When they have ended, its owner is back.
        alice.close()
        async with await ClientEndpoint.connect(server.address, keys=keys["alice"], server=roster.server):
            async with asyncio.timeout(30):
                while await events.get() != LinkUp("alice"):
                    pass


@pytest.mark.threat("client/half-open")
@pytest.mark.asyncio
async def test_descriptors_of_the_server_stay_bounded(keys: Keys, roster: Roster, dealers: Callable) -> None:
    """The member's sockets are in this process as well: each link costs it a descriptor, and the server another."""
    async with served(keys, roster) as (server, _):
        alice = dealers(server.address, keys, "alice")
        for _ in range(MOST_LINKS):
            assert await alice.open()
        before = descriptors()
        for _ in range(MANY):
            assert not await alice.open()
        async with asyncio.timeout(30):
            # A socket of ours that was refused keeps the descriptor of its mailbox, and the server keeps nothing.
            while descriptors() > before + MANY:
                await asyncio.sleep(0.01)


class Void:
    """A way to a server that passes everything on until it swallows everything, and closes nothing."""

    def __init__(self) -> None:
        self._pumps: list[asyncio.Task[None]] = []
        self._writers: list[asyncio.StreamWriter] = []

    async def to(self, address: str) -> str:
        host, port = address.removeprefix("tcp://").split(":")

        async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while octets := await reader.read(1 << 16):
                writer.write(octets)

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            onwards, further = await asyncio.open_connection(host, int(port))
            self._writers += [writer, further]
            self._pumps += [asyncio.create_task(pump(*way)) for way in ((reader, further), (onwards, writer))]

        self._server = await asyncio.start_server(accept, "127.0.0.1")
        return f"tcp://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def swallow(self) -> None:
        for task in self._pumps:
            task.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    def close(self) -> None:
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()


@pytest.mark.threat("client/half-open")
@pytest.mark.asyncio
async def test_an_owner_whose_links_died_without_a_word_is_back(
    keys: Keys, roster: Roster, dealers: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a crash of its host, or where a firewall has forgotten its connections."""
    monkeypatch.setattr(endpoint, "_HEARTBEAT_MS", 100)
    monkeypatch.setattr(endpoint, "_HEARTBEAT_TIMEOUT_MS", 1000)
    void = Void()
    async with served(keys, roster) as (server, _):
        alice = dealers(await void.to(server.address), keys, "alice")
        for _ in range(MOST_LINKS):
            assert await alice.open()
        await void.swallow()
        async with await ClientEndpoint.connect(server.address, keys=keys["alice"], server=roster.server):
            pass
    void.close()
