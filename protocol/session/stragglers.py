"""Clients that a server leaves out of some rounds, because they cost the last ones too much: stragglers and refusals.

A client that misses the deadline in two rounds running sits out the next one; if it misses it again, the next two, then
four, up to MOST_SKIPPED. A client that refuses a round by its policy sits out one at once. A round that it completes
clears all of that. Nobody is blamed: the client keeps its place in the session.
"""

from __future__ import annotations

from typing import Final

from tacit.protocol.core.errors import Code
from tacit.protocol.session.rounds import RoundDone

PATIENT: Final = 2
"""Rounds running in which a client may miss the deadline before it is skipped."""
MOST_SKIPPED: Final = 64
"""The most rounds that a client is skipped at a time."""
FEWEST_TIMED: Final = 3
"""A round has its own deadline until the session has completed so many."""
MOST_TIMED: Final = 64
"""The number of completed rounds whose median counts."""
PROCEED_AFTER: Final = 2
"""A round goes on with those who are ready after so many times the median of completed rounds."""
LEAST_PROCEED_SECONDS: Final = 10.0
"""No round goes on without the others before this time."""


class Stragglers:
    def __init__(self) -> None:
        self._strikes: dict[str, int] = {}
        self._until: dict[str, int] = {}
        """The last round that each of them is skipped in."""
        self._reasons: dict[str, str] = {}
        self._refused: dict[str, str] = {}
        """Refusals in the round that goes on."""

    def skipped(self, round: int) -> dict[str, str]:
        """The clients to leave out of this round, and why."""
        return {name: self._reasons[name] for name, until in self._until.items() if round <= until}

    def refuses(self, name: str, detail: str) -> None:
        """A client has refused the round that goes on."""
        self._refused[name] = detail

    def forgive(self, name: str) -> None:
        """Take a client into the next round, whatever it missed or refused before."""
        for kept in (self._strikes, self._until, self._reasons, self._refused):
            kept.pop(name, None)

    def note(self, done: RoundDone) -> None:
        """Learn from a round that is over."""
        late = {dropped.member for dropped in done.dropped if dropped.code is Code.TIMEOUT}
        for name in set(done.survivors) - late:
            self._strikes.pop(name, None)
            self._until.pop(name, None)
        for name in late:
            self._strike(name, done.round, self._strikes.get(name, 0) + 1, "it missed the deadline of its last rounds")
        for name, detail in self._refused.items():
            strikes = max(self._strikes.get(name, 0), PATIENT - 1) + 1
            self._strike(name, done.round, strikes, f"it refused its last round: {detail}")
        self._refused.clear()

    def _strike(self, name: str, round: int, strikes: int, reason: str) -> None:
        self._strikes[name] = strikes
        if strikes >= PATIENT:
            skips = min(MOST_SKIPPED, 2 ** min(strikes - PATIENT, MOST_SKIPPED))
            self._until[name] = round + skips
            self._reasons[name] = f"{reason}, and is skipped until round {round + skips + 1}"
