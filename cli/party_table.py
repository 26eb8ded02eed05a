"""The parties of a run, live: in which phase each is and for how long, its traffic, its last sign of life.

Every process tells each phase that it enters and, once a second, that it is there, and how much of its training is
done; the server tells whom it waits for. Below them: how many rounds are done, and how long the others may take.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from tacit.cli.output import table

MOST_ROWS = 24
"""Rows shown; of more parties, those that have been silent for longest."""
MOST_NAMES = 4
"""Names shown of those who are waited for."""
_JUDGED_BY = 5
"""Rounds by which the next ones are judged."""


@dataclass
class _Row:
    phase: str = "starting"
    since: float = 0.0
    sent: int = 0
    received: int = 0
    heard: float = 0.0
    waits: tuple[str, ...] = ()
    waits_since: float = 0.0
    done: float = 0.0
    """The share of the training that is done."""


class PartyTable:
    """A renderable that is up to date whenever it is drawn. `clock` is in seconds."""

    def __init__(self, rounds: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rounds = rounds
        self._clock = clock
        self._rows: dict[str, _Row] = {}
        self._round = 0
        """The last that is done."""
        self._ends: deque[float] = deque(maxlen=_JUDGED_BY + 1)
        """When the first round began, and when the last ones were done."""

    def take(self, party: str, event: str, fields: Mapping[str, Any]) -> None:
        """One event of a party."""
        now = self._clock()
        row = self._rows.setdefault(party, _Row(since=now))
        row.heard = now
        row.done = fields.get("done", 0.0)
        if event == "phase":
            row.phase, row.since = fields["next"].lower().replace("_", " "), now
        elif event == "round" and not self._ends:
            self._ends.append(now)
        elif event == "round-done":
            self._round = fields["round"]
            self._ends.append(now)
        elif event == "traffic":
            row.sent += fields["sent"]
            row.received += fields["received"]
        elif event == "waiting":
            row.waits, row.waits_since = tuple(fields["on"]), now
        elif event in ("exited", "failed"):
            row.phase, row.since, row.waits = "ended" if event == "exited" else "failed", now, ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if not self._rows:
            yield Text("loading torch, once for all parties")
            return
        now = self._clock()
        rows = []
        silent = sorted(self._rows, key=lambda name: self._rows[name].heard)[:MOST_ROWS]
        for name, row in self._rows.items():
            if name not in silent:
                continue
            waits = ""
            if row.waits:
                named = ", ".join(row.waits[:MOST_NAMES]) + (", ..." if len(row.waits) > MOST_NAMES else "")
                waits = f"{named} ({now - row.waits_since:.0f} s)"
            moved = (f"{count / 1e6:.1f} MB" for count in (row.sent, row.received))
            phase = f"{row.phase} {row.done:.0%}" if row.done else row.phase
            rows.append((name, phase, f"{now - row.since:.0f} s", *moved, f"{now - row.heard:.0f} s ago", waits))
        headings = ("party", "phase", "for", "sent", "received", "last heard", "waits for")
        least = ("received", "sent", "last heard", "for")
        yield table(headings, rows, left=("phase", "waits for"), least=least)
        if self._round >= self._rounds:
            yield Text("all rounds are done; the summary is made, and the report is drawn")
        elif len(self._ends) > 1:
            each = (self._ends[-1] - self._ends[0]) / (len(self._ends) - 1)
            left = max(0.0, (self._rounds - self._round) * each - (now - self._ends[-1]))
            yield Text(f"{self._round} of {self._rounds} rounds are done; about {_duration(left)} left")


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
