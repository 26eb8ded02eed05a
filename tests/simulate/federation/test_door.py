"""Who knows the secret of a run is let in, whoever else stands at the door."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection

import pytest

from tacit.simulate.federation import actors as module
from tacit.simulate.federation.actors import Door

HERE = "127.0.0.1"
PATIENCE = 30


def strangers(door: Door) -> list[socket.socket]:
    """One that says nothing, one whose message cannot be read, and one that breaks off."""
    made = [socket.create_connection(door.address) for _ in range(3)]
    made[1].sendall(bytes(range(256)))
    made[2].sendall(b"\0\0\0\x20half of it")
    return made


@pytest.mark.asyncio
async def test_strangers_hold_up_nobody_and_are_not_let_in() -> None:
    came: asyncio.Queue[tuple[str, Connection]] = asyncio.Queue()
    door = Door(HERE, lambda name, connection: came.put_nowait((name, connection)))
    waiting = strangers(door)
    with pytest.raises(AuthenticationError):
        await asyncio.to_thread(Client, door.address, authkey=b"guessed")
    knows = await asyncio.to_thread(Client, door.address, authkey=door.secret)
    knows.send_bytes(b"worker-1")
    async with asyncio.timeout(PATIENCE):
        name, connection = await came.get()
    assert name == "worker-1"
    # A peer that was let in may be silent for as long as it likes.
    with socket.socket(fileno=os.dup(connection.fileno())) as shared:
        assert not any(shared.getsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.calcsize("ll")))
    connection.send_bytes(b"said")
    assert knows.recv_bytes() == b"said"
    assert came.empty()
    door.close()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.to_thread(socket.create_connection, door.address)
    for each in (knows, connection, *waiting):
        each.close()


@pytest.mark.asyncio
async def test_strangers_are_sent_away_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PATIENCE_SECONDS", 0.1)
    came: asyncio.Queue[str] = asyncio.Queue()
    door = Door(HERE, lambda name, connection: came.put_nowait(name))
    async with asyncio.timeout(PATIENCE):
        for stranger in strangers(door):
            await asyncio.to_thread(gone, stranger)
    assert came.empty()
    door.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("name", [b"\xff", bytes(257)])
async def test_a_name_that_is_none_is_sent_away(name: bytes) -> None:
    came: asyncio.Queue[str] = asyncio.Queue()
    door = Door(HERE, lambda name, connection: came.put_nowait(name))
    knows = await asyncio.to_thread(Client, door.address, authkey=door.secret)
    knows.send_bytes(name)
    async with asyncio.timeout(PATIENCE):
        with pytest.raises((EOFError, ConnectionError)):
            await asyncio.to_thread(knows.recv_bytes)
    assert came.empty()
    knows.close()
    door.close()


@pytest.mark.asyncio
async def test_a_closed_door_is_closed() -> None:
    """At once: of two thousand that did not wait for their thread seven hundred let one more in."""
    for _ in range(100):
        door = Door(HERE, lambda name, connection: None)
        door.close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(door.address)


def gone(stranger: socket.socket) -> None:
    with stranger:
        while True:
            try:
                if not stranger.recv(1 << 10):
                    return
            except ConnectionError:
                return
