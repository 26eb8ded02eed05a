"""Where processes that others have started connect to a supervisor: who knows the secret of the run is let in.

Every connection shows it in a thread of its own, and each word of it within seconds: a stranger that says nothing, or
nothing that can be read, holds up nobody. Before that nothing of it is looked at.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import struct
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection, Listener, answer_challenge, deliver_challenge
from typing import Final

LONGEST_NAME: Final = 256
_PATIENCE_SECONDS: Final = 10


class Door:
    """Open from when it is made, within an event loop, until it is closed.

    host: the address of this machine at which it listens. welcome: called in the loop with the name that a process
    says first, and its connection.
    """

    def __init__(self, host: str, welcome: Callable[[str, Connection], None]) -> None:
        self.secret = secrets.token_bytes(32)
        """For `Client(address, authkey=secret)` of multiprocessing.connection."""
        self._listener = Listener((host, 0), backlog=128)
        self.address: tuple[str, int] = self._listener.address
        self._welcome = welcome
        self._loop = asyncio.get_running_loop()
        self._closed = False
        self._answering = threading.Thread(target=self._answer, daemon=True)
        self._answering.start()

    def close(self) -> None:
        """Let nobody in any more."""
        self._closed = True
        with contextlib.suppress(OSError), socket.create_connection(self.address):
            # So that its thread sees it. As long as that accepts, whoever comes gets a connection, closed or not.
            self._answering.join()
        self._listener.close()

    def _answer(self) -> None:
        while not self._closed:
            with contextlib.suppress(OSError):
                connection = self._listener.accept()
                threading.Thread(target=self._let_in, args=(connection,), daemon=True).start()

    def _let_in(self, connection: Connection) -> None:
        try:
            _wait_at_most(connection, _PATIENCE_SECONDS)
            deliver_challenge(connection, self.secret)
            answer_challenge(connection, self.secret)
            name = connection.recv_bytes(LONGEST_NAME).decode()
            _wait_at_most(connection, 0)
            self._loop.call_soon_threadsafe(self._welcome, name, connection)
        except Exception:  # Whatever a stranger said, or the loop is over.
            connection.close()


def _wait_at_most(connection: Connection, seconds: int) -> None:
    """How long reading waits for something to come; 0: for ever."""
    with socket.socket(fileno=os.dup(connection.fileno())) as shared:
        shared.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", seconds, 0))
