"""Rounds over real sockets through a cable that is cut and mended: nobody loses one, and the sums are exact."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tacit.protocol.core.events import MessageRefused
from tacit.protocol.core.machine import Ended
from tacit.protocol.session.events import ClientJoined, ClientLeft, ClientResumed

CLIENT = "client-4"
ROUNDS = 2
AWAY_SECONDS = 0.3


class Cable:
    """A port that leads to another one. cuts: after so many bytes, in both directions together, all connections are
    reset, and until some time later new ones as well; stalls: nothing passes for that time."""

    def __init__(self, port: int, *, cuts: Iterable[int] = (), stalls: Iterable[int] = ()) -> None:
        self.carried = 0
        self.cut_off = 0
        self._port = port
        self._moments = sorted([*((at, True) for at in cuts), *((at, False) for at in stalls)])
        self._open = asyncio.Event()
        self._open.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            if self._open.is_set():
                far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._port)
                self._writers |= {writer, far_writer}
                await asyncio.gather(self._carry(reader, far_writer), self._carry(far_reader, writer))
        writer.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                await self._open.wait()
                self.carried += len(data)
                if self._moments and self.carried >= self._moments[0][0]:
                    self._interrupt(cut=self._moments.pop(0)[1])
                if writer.transport.is_closing():
                    return
                writer.write(data)
                await writer.drain()
        writer.transport.abort()

    def _interrupt(self, *, cut: bool) -> None:
        self.cut_off += 1
        self._open.clear()
        if cut:
            for writer in self._writers:
                writer.transport.abort()
            self._writers.clear()
        asyncio.get_running_loop().call_later(AWAY_SECONDS, self._open.set)


@contextlib.asynccontextmanager
async def cable(address: str, **moments: Any) -> AsyncIterator[tuple[Cable, str]]:
    """A cable that leads to a server's address, and the address of its near end."""
    made = Cable(int(address.rpartition(":")[2]), **moments)
    async with await asyncio.start_server(made.accept, "127.0.0.1", 0) as listening:
        yield made, f"tcp://127.0.0.1:{listening.sockets[0].getsockname()[1]}"


async def play(federation: Any, **moments: Any) -> Cable:
    """Rounds in which one client's link is such a cable. Everybody is in all sums, and these are exact."""
    words: dict[tuple[int, str], Any] = {}
    server = await federation.serve(rounds=ROUNDS)
    async with cable(federation.address, **moments) as (made, near):
        clients = []
        for name in federation.clients:
            own, federation.address = federation.address, near if name == CLIENT else federation.address
            clients.append(
                federation.join(
                    name, on_update=lambda round, update, name=name: words.update({(round, name): update.words})
                )
            )
            federation.address = own
        ended = await federation.all_of(server, *clients)
    assert ended[1:] == [Ended(None, "the federation is finished")] * len(federation.clients)
    packing = federation.configuration.packing()
    assert [done.round for done, _ in federation.rounds] == list(range(1, ROUNDS + 1))
    for done, _ in federation.rounds:
        assert (done.code, done.survivors, done.dropped) == (None, federation.clients, ())
        expected = np.zeros(packing.length, packing.ring.word)
        for name in federation.clients:
            packing.ring.add_into(expected, words[done.round, name])
        np.testing.assert_array_equal(done.total, expected)
    assert len(federation.events("server", ClientJoined)) == len(federation.clients)
    assert federation.events("server", MessageRefused) == federation.events("server", ClientLeft) == []
    return made


@pytest.fixture
def wide(federation: Any, tmp_path: Path) -> Any:
    """A federation whose model and vectors are several chunks each, and whose links have time to come back."""
    return type(federation)(tmp_path, width=192, grace=120.0)


TOTAL = 4_500_000
"""Less than the cable carries in all: twice a model of 1.8 megabytes, and a vector of more than one."""
HANDSHAKE = 3_000


@pytest.mark.asyncio
@pytest.mark.parametrize("run", [0, *(pytest.param(run, marks=pytest.mark.exhaustive) for run in (1, 2, 3))])
async def test_a_cable_that_is_cut_anywhere_costs_nobody_a_round(wide: Any, run: int) -> None:
    made = await play(wide, cuts=[TOTAL * (4 * part + run) // 16 + HANDSHAKE for part in range(4)])
    assert (made.cut_off, len(wide.events("server", ClientResumed))) == (4, 4), made.carried


@pytest.mark.asyncio
async def test_a_cable_that_is_silent_for_a_while_loses_nothing(wide: Any) -> None:
    """The connections outlive it: nothing has to be said again."""
    made = await play(wide, stalls=[TOTAL * part // 4 + HANDSHAKE for part in range(4)])
    assert made.cut_off == 4
    # The client may hear that the link is gone when the server has left, before it reads the server's last word.
    assert wide.events("server", ClientResumed) == []
