"""A party of ours in a thread with an event loop of its own, for as long as a test needs it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

from tacit.parties.inference.conversation import InferenceError
from tacit.parties.links.endpoint import EndpointError
from tacit.protocol.core.errors import LocalProtocolError

SECONDS: Final = 30.0
"""Only how long a broken test hangs."""


def free_address() -> str:
    """Where nobody listens yet."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{free.getsockname()[1]}"


@contextlib.contextmanager
def running(live: Callable[[], Awaitable[Any]]) -> Iterator[None]:
    """Run it, again whenever it ends; what is wrong with a broken one shows in what it says."""
    started: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = []
    ready = threading.Event()

    async def serve() -> None:
        task = asyncio.current_task()
        assert task is not None
        started.append((asyncio.get_running_loop(), task))
        ready.set()
        while True:
            with contextlib.suppress(EndpointError, InferenceError, LocalProtocolError):
                await live()

    def thread() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            asyncio.run(serve())

    thread_of_party = threading.Thread(target=thread)
    thread_of_party.start()
    assert ready.wait(SECONDS)
    try:
        yield
    finally:
        loop, task = started[0]
        loop.call_soon_threadsafe(task.cancel)
        thread_of_party.join(SECONDS)
        assert not thread_of_party.is_alive()
