"""A server that cheats on purpose: it has clients compute the same twice, and one of them left out the second time.

The first round has everybody. Every later one begins from the same model but for one unit in the last place of one
parameter, so that everybody's update is the same again, and lacks somebody: what the first sum has more is theirs.
Where the roster has groups the server takes no heed of them, and tries to leave out one client alone before it leaves
out groups. It is a server as any other but for that, and a client sees no rule broken, unless there are groups. Only an
audit starts it (Plan.subtracts).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tacit.protocol.core.machine import Output
from tacit.protocol.core.roster import Roster
from tacit.protocol.session.server import TrainingServer
from tacit.protocol.session.server_session import Model
from tacit.protocol.sum.agreement import Agreement
from tacit.protocol.sum.configuration import Configuration


def schedule(roster: Roster) -> tuple[tuple[str, ...], ...]:
    """Who is left out, round by round: nobody, then each client; with groups nobody, the first client, each group."""
    alone = tuple((name,) for name in roster.clients)
    return ((), *alone[:1], *roster.groups) if roster.groups else ((), *alone)


class SubtractingServer(TrainingServer):
    """Takes no heed of the sums; after the schedule it begins again."""

    def __init__(self, roster: Roster, configuration: Configuration, model: bytes, **given: Any) -> None:
        super().__init__(roster, configuration, model, **given)
        self._first = np.frombuffer(model, "<f4")

    def next_round(self, model: bytes, now: float, *, unusable: str = "") -> list[Output]:
        values = self._first.copy()
        if self.round % 2:
            values[0] = np.nextafter(values[0], np.float32(np.inf))
        return super().next_round(values.tobytes(), now, unusable=unusable)

    def _gathered(self, there: Sequence[str]) -> tuple[str, ...]:
        parts = schedule(self._roster)
        out = parts[self.round % len(parts)]
        if not out:
            return super()._gathered(there)
        return tuple(name for name in self._roster.clients if name in there and name not in out)

    def _agreement(self, cohort: tuple[str, ...], round: int, model: Model) -> Agreement:
        return replace(super()._agreement(cohort, round, model), groups=())
