"""Ctrl-C and SIGTERM end a command in the same way, once: signals during its end are ignored.

`arm` is called at the start of a command. The first signal raises KeyboardInterrupt, which a command answers with a
line and the exit status 130, or with the status alone; later ones are ignored, so that it can clean up.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from types import FrameType
from typing import Any, Final, NoReturn, TypeVar

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)

Result = TypeVar("Result")


def arm() -> None:
    """Make the next signal interrupt this process, which has not started any other work."""
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)


def disarm() -> None:
    """Ignore signals from now on: the command is ending."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    disarm()
    raise KeyboardInterrupt


async def interruptible(work: Coroutine[Any, Any, Result]) -> Result:
    """Await the work, which the first signal cancels. KeyboardInterrupt if it did."""
    loop, task, before = asyncio.get_running_loop(), asyncio.current_task(), list(map(signal.getsignal, SIGNALS))
    interrupted = False

    def cancel() -> None:
        nonlocal interrupted
        if not interrupted and task is not None:
            interrupted = True
            task.cancel()

    for number in SIGNALS:
        loop.add_signal_handler(number, cancel)
    try:
        return await work
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    finally:
        for number, handler in zip(SIGNALS, before, strict=True):
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN if interrupted and handler is _interrupt else handler)
