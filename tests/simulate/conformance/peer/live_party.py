"""A party of ours in a thread with an event loop of its own, for as long as a test needs it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

from tacit.parties.inference.conversation import InferenceError
from tacit.parties.links.endpoint import EndpointError
from tacit.protocol.core.errors import LocalProtocolError
from tests.cli.hosts import free_port

SECONDS: Final = 30.0
"""Only how long a broken test hangs."""


def free_address() -> str:
    return f"tcp://127.0.0.1:{free_port()}"


@contextlib.contextmanager
def running(live: Callable[[], Awaitable[Any]]) -> Iterator[None]:
    """Run it, again whenever it ends; what is wrong with a broken one shows in what it says."""
    started: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = []
    ready, over = threading.Event(), threading.Event()

    async def serve() -> None:
        task = asyncio.current_task()
        assert task is not None
        started.append((asyncio.get_running_loop(), task))
        ready.set()
        while not over.is_set():
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
        over.set()
        loop, task = started[0]
        last = time.monotonic() + SECONDS
        # On a busy machine one cancellation was once not enough: a broken party went on with its next session.
        while thread_of_party.is_alive() and time.monotonic() < last:
            with contextlib.suppress(RuntimeError):  # The loop may be closed by now.
                loop.call_soon_threadsafe(task.cancel)
            thread_of_party.join(1.0)
        assert not thread_of_party.is_alive()
