"""Clients that a server excludes from some rounds because they delayed the last ones: stragglers and refusals.

A client that misses the deadline in two consecutive rounds sits out the next one; if it misses it again, the next two,
then four, up to MOST_SKIPPED. A client that refuses a round by its policy sits out one at once. A completed round
resets the count. The client is not at fault, and keeps its place in the session.
"""

from __future__ import annotations

from typing import Final

from tacit.protocol.core.errors import Code
from tacit.protocol.session.rounds import RoundDone

PATIENT: Final = 2
"""Consecutive rounds in which a client may miss the deadline before it is skipped."""
MOST_SKIPPED: Final = 64
"""The most rounds that a client is skipped at a time."""
FEWEST_TIMED: Final = 3
"""A round has its own deadline until the session has completed so many."""
MOST_TIMED: Final = 64
"""Number of completed rounds in the median."""
PROCEED_AFTER: Final = 2
"""Multiple of the median of completed rounds after which a round continues with the ready clients."""
LEAST_PROCEED_SECONDS: Final = 10.0
"""No round continues without the others before this time."""


class Stragglers:
    def __init__(self) -> None:
        self._strikes: dict[str, int] = {}
        self._until: dict[str, int] = {}
        """Last round in which each client is skipped."""
        self._reasons: dict[str, str] = {}
        self._refused: dict[str, str] = {}
        """Refusals in the present round."""

    def skipped(self, round: int) -> dict[str, str]:
        """The clients to exclude from this round, with the reasons."""
        return {name: self._reasons[name] for name, until in self._until.items() if round <= until}

    def refuses(self, name: str, detail: str) -> None:
        """Record a client's refusal of the present round."""
        self._refused[name] = detail

    def forgive(self, name: str) -> None:
        """Admit a client to the next round, regardless of former delays or refusals."""
        for kept in (self._strikes, self._until, self._reasons, self._refused):
            kept.pop(name, None)

    def note(self, done: RoundDone) -> None:
        """Update the counts from a finished round."""
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
