"""Somebody answers at the server's address while the server is away: the client bears it until the server is back."""

import asyncio
import contextlib
from collections.abc import Callable

import pytest

from tacit.parties.links.client_endpoint import ClientEndpoint
from tacit.parties.links.endpoint import HandshakeRefused, LinkLost, LinkUp, Received
from tacit.parties.links.keys import PartyKeys
from tacit.parties.links.server_endpoint import ServerEndpoint
from tacit.protocol.core.roster import Roster

NULL_GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(16 + 32)
"""What ZMTP 3 begins with (ZeroMQ RFC 23), of a server without CURVE."""


async def answered(address: str, greeting: bytes) -> None:
    """Answer one connection with this, and hang up when the other side has."""
    connected = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting)
        if greeting:
            with contextlib.suppress(ConnectionResetError):
                while await reader.read(1000):
                    pass
        writer.close()
        connected.set()

    host, port = address.removeprefix("tcp://").split(":")
    async with await asyncio.start_server(answer, host, int(port)):
        async with asyncio.timeout(20):
            await connected.wait()


@pytest.mark.asyncio
@pytest.mark.threat("stranger/in-the-servers-place")
@pytest.mark.parametrize(
    "impostor",
    [
        "says that the key is unknown",
        pytest.param("speaks another mechanism", marks=pytest.mark.end_to_end),
        "hangs up",
    ],
)
async def test_who_answers_in_the_place_of_a_server_that_was_there_ends_nothing(
    keys: dict[str, PartyKeys], roster: Roster, until: Callable, impostor: str
) -> None:
    """Nobody has shown a key when a handshake fails. When the server is back, so is the link."""
    server = await ServerEndpoint.bind("tcp://127.0.0.1:*", keys=keys["server"], roster=roster)
    address = server.address
    async with await ClientEndpoint.connect(address, keys=keys["alice"], server=roster.server) as client:
        await client.send([b"hello"])
        assert (await until(server, Received)).sender == "alice"
        await server.close()
        assert await until(client, LinkLost) == LinkLost("server")
        returning = asyncio.create_task(until(client, LinkUp))
        if impostor == "says that the key is unknown":
            async with await ServerEndpoint.bind(address, keys=keys["server"], roster=roster, peers=["bob"]) as other:
                assert (await until(other, HandshakeRefused)).reason == "this key is not in the roster"
        else:
            await answered(address, b"" if impostor == "hangs up" else NULL_GREETING)
        async with await ServerEndpoint.bind(address, keys=keys["server"], roster=roster) as successor:
            assert await returning == LinkUp("server")
            await client.send([b"still here"])
            assert bytes((await until(successor, Received)).frames[0]) == b"still here"
