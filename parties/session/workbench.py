"""What a party does in a thread: one thing after the other, and only what is still wanted.

Work that begins takes the place of what was begun before. That is interrupted where it says so (Proceed), and nobody
hears of its result; what follows begins when it has ended. So two never work on the same model. Parties that share a
process may share the thread too: then they take turns.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from contextvars import copy_context
from typing import Any

from tacit.models.interruption import Interrupted, Proceed

Work = Callable[[Proceed], Any]


class Workbench:
    """The thread of one party. executor: where it is; None: wherever there is room."""

    def __init__(self, executor: Executor | None = None) -> None:
        self._executor = executor
        self.present: asyncio.Future[Any] | None = None
        """What is wanted now; None when there is nothing, or its result was taken."""
        self.done = 0.0
        """The share of the present work that is done, 0 to 1, as far as it says so."""
        self._last: asyncio.Future[Any] | None = None
        """What may still be in the thread."""
        self._unwanted = threading.Event()

    def begin(self, work: Work) -> None:
        """Do this, in the place of what was begun before. It calls what it is given as often as it can."""
        self.drop()
        before, self._unwanted, self.done = self._last, threading.Event(), 0.0
        self.present = self._last = asyncio.ensure_future(self._in_turn(before, work, self._unwanted))

    def take(self) -> asyncio.Future[Any] | None:
        """What is wanted and done, once."""
        if self.present is None or not self.present.done():
            return None
        done, self.present = self.present, None
        # It holds its result, and who was interrupted may still be in the thread.
        self._last = None if self._last is done else self._last
        return done

    def drop(self) -> None:
        """Nobody wants any more what was begun."""
        self._unwanted.set()
        if self.present is not None:
            # Whatever becomes of it.
            self.present.add_done_callback(lambda dropped: dropped.cancelled() or dropped.exception())
            self.present = None

    async def _in_turn(self, before: asyncio.Future[Any] | None, work: Work, unwanted: threading.Event) -> Any:
        def proceed(done: int = 0, total: int = 0, /) -> None:
            if unwanted.is_set():
                raise Interrupted
            self.done = done / total if total else 0.0

        def take_turn() -> Any:
            # It may have waited for others.
            proceed()
            return work(proceed)

        if before is not None:
            await asyncio.wait([before])
        return await asyncio.get_running_loop().run_in_executor(self._executor, copy_context().run, take_turn)
