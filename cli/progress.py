"""The progress of a command that takes more than two seconds, on a terminal and in a pipe alike."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from rich.console import Console

from tacit.protocol.core.errors import printable

FIRST: Final = 2.0
"""Seconds until the first line without a terminal."""
EVERY: Final = 10.0
"""Seconds between two lines at the beginning; later a tenth of the elapsed time."""


class Progress:
    """Describes the present step: in place on a terminal, else as lines, with the elapsed seconds.

    A quiet console shows none. text: that step, or a function that returns it when a line is due."""

    def __init__(self, console: Console, text: str | Callable[[], str] = "starting", *, first: float = FIRST) -> None:
        self.text = text
        self._first = first
        self._console = console
        self._status = console.status(text) if console.is_terminal and isinstance(text, str) else None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._repeat, daemon=True)

    def __enter__(self) -> Progress:
        if self._status is not None:
            self._status.start()
        elif not self._console.quiet:
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        if self._status is not None:
            self._status.stop()
        elif self._thread.is_alive():
            self._thread.join()

    def update(self, text: str) -> None:
        self.text = text
        if self._status is not None:
            self._status.update(text)

    def _repeat(self) -> None:
        began, wait = time.monotonic(), self._first
        while not self._over.wait(wait):
            wait = max(EVERY, (time.monotonic() - began) / 10)
            text = self.text if isinstance(self.text, str) else self.text()
            line = f"{text} ({time.monotonic() - began:.0f} s)"
            self._console.print(printable(line), markup=False, soft_wrap=True)
