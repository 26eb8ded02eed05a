"""A member that has the process of its server end, over real sockets: libzmq aborts it, and nothing prevents that.

Where this fails, libzmq does so no more: the row of the threat model and the word in parties/links/endpoint.py can go.
"""

import asyncio
import faulthandler
import os
import signal
import socket
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection

import pytest
import zmq

from tacit.parties.links.endpoint import LinkUp
from tacit.parties.links.keys import PartyKeys
from tacit.parties.links.server_endpoint import ServerEndpoint
from tacit.protocol.core.roster import Roster

PATIENCE = 60.0
RESET = b"\1" + bytes(7)
"""Has the kernel reset a connection instead of closing it."""


def serve(keys: PartyKeys, roster: Roster, told: Connection) -> None:
    """A server that is busy from the moment on in which its first member is there."""

    async def busy() -> None:
        server = await ServerEndpoint.bind("tcp://127.0.0.1:*", keys=keys, roster=roster)
        told.send(server.address)
        assert await server.receive() == LinkUp("alice")
        await asyncio.sleep(PATIENCE)

    # pytest's would write all of this process's stacks.
    faulthandler.disable()
    asyncio.run(busy())


def flood(keys: PartyKeys, server: bytes, address: str) -> None:
    """Sends until nothing is taken any more, and resets the connection."""
    member = zmq.Context().socket(zmq.DEALER)
    member.set(zmq.SNDTIMEO, 5000)
    member.set(zmq.CURVE_SERVERKEY, server)
    member.set(zmq.CURVE_PUBLICKEY, keys.curve_public)
    member.set(zmq.CURVE_SECRETKEY, keys.curve_secret)
    member.connect(address)
    with suppress(zmq.Again):
        while True:
            member.send(bytes(1 << 16))
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(OSError), socket.socket(fileno=os.dup(int(descriptor))) as found:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.end_to_end
@pytest.mark.threat("client/aborts-server")
def test_a_member_aborts_a_server_that_is_busy(
    keys: dict[str, PartyKeys], roster: Roster, capfd: pytest.CaptureFixture[str]
) -> None:
    fork = get_context("fork")
    here, there = fork.Pipe()
    server = fork.Process(target=serve, args=(keys["server"], roster, there))
    server.start()
    try:
        assert here.poll(PATIENCE)
        member = fork.Process(target=flood, args=(keys["alice"], keys["server"].curve_public, here.recv()))
        member.start()
        member.join(PATIENCE)
        assert member.exitcode == -signal.SIGKILL
        # At its next heartbeat.
        server.join(PATIENCE)
        assert server.exitcode == -signal.SIGABRT
        assert "!_io_error" in capfd.readouterr().err
    finally:
        server.kill()
        server.join()
