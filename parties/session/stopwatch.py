"""Where the time of the protocol goes: seconds by kind of work, of one party."""

from __future__ import annotations

import threading
import time
from collections import defaultdict

from tacit.secagg.work import WorkKind, observe


class Stopwatch:
    """Times the protocol within its `with` block: nested work counts for the innermost kind, and all that runs in this
    context counts, the tasks and threads that it hands work to included.

    It costs one or two microseconds a call.
    """

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        """Time spent so far, by the values of WorkKind."""
        self.nested = threading.local()
        """In `seconds`, what the calls inside the current one of this thread have taken."""

    def __enter__(self) -> Stopwatch:
        observe(lambda kind: _Lap(self, kind))
        return self

    def __exit__(self, *error: object) -> None:
        observe(None)


class _Lap:
    """One call of a function that does work of this kind."""

    __slots__ = ("_began", "_kind", "_outer", "_stopwatch")

    def __init__(self, stopwatch: Stopwatch, kind: WorkKind) -> None:
        self._stopwatch = stopwatch
        self._kind = kind

    def __enter__(self) -> None:
        nested = self._stopwatch.nested
        self._outer = getattr(nested, "seconds", 0.0)
        nested.seconds = 0.0
        self._began = time.perf_counter()

    def __exit__(self, *error: object) -> None:
        elapsed = time.perf_counter() - self._began
        nested = self._stopwatch.nested
        self._stopwatch.seconds[self._kind.value] += elapsed - nested.seconds
        nested.seconds = self._outer + elapsed
