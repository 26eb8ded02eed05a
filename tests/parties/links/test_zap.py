"""The ZAP handler, asked directly: every field of a request that is not as it should be refuses the handshake."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import zmq
import zmq.asyncio

from tacit.parties.links.server_endpoint import ZAP_ADDRESS, ZapHandler

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
