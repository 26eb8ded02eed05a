"""What a party tells about itself: its event log, and the same events to whoever started it.

Times come from here, so that machines and logs agree on the clock. Every change of the phase is an event that says how
long the phase before it took, with the bytes since the last report, by the phase that they belong to; the log alone
gets the times of single messages.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, Final

from tacit.parties.session.event_log import EventLog
from tacit.parties.session.message_times import Direction, MessageTimes
from tacit.protocol.core.codec import Frame
from tacit.protocol.core.link import Traffic
from tacit.protocol.core.messages import Phase
from tacit.protocol.core.roster import Difference, Roster

Tell = Callable[[str, dict[str, Any]], None]
"""Receives every event with its fields, for a live view; must return at once."""


_OF_RUNS: Final = ("round", "round-over", "ended")


def told_of(former: Roster, roster: Roster, difference: Difference) -> dict[str, Any]:
    """The fields of the event that a later version of the roster is taken up."""
    versions = {"former": former.version, "version": roster.version, "fingerprint": roster.fingerprint}
    return {**versions, **asdict(difference)}


class Diary:
    """The events of one party."""

    def __init__(self, log: EventLog, tell: Tell) -> None:
        self.outside = False
        """Whether this session is none of the run, but one before it that sums statistics: its phases and bytes are
        told as those of round 0, and of its rounds, and of how it ended, only what went wrong."""
        self._log = log
        self._tell = tell
        self._place = (0, Phase.SESSION)
        self._since = self.now()
        self._messages = MessageTimes()
        self._reported: dict[tuple[int, Phase], tuple[int, int]] = {}

    @staticmethod
    def now() -> float:
        """Seconds of a clock that never goes back."""
        return time.monotonic()

    def write(self, event: str, **fields: Any) -> None:
        """Log an event and pass it on."""
        if self.outside and event in _OF_RUNS and fields.get("code") is None:
            return
        self._log.write(event, **fields)
        self._tell(event, fields)

    def mention(self, event: str, **fields: Any) -> None:
        """Tell without logging: what matters only now."""
        self._tell(event, fields)

    def passed(self, direction: Direction, peer: str, frames: Sequence[Frame]) -> None:
        """Note that a message is about to leave, or has come."""
        self._messages.note(direction, peer, frames)

    def follow(self, round: int, phase: Phase, traffic: Traffic) -> None:
        """Note where the party is; on a change, report the phase that ended and what was moved meanwhile."""
        round = 0 if self.outside else round
        if (round, phase) == self._place:
            return
        now = self.now()
        self.write(
            "phase", round=self._place[0], phase=self._place[1].value, seconds=now - self._since, next=phase.value
        )
        self._place, self._since = (round, phase), now
        self._report(traffic)

    def close(self, traffic: Traffic) -> None:
        """Report what is left to report; the last thing a party says."""
        self.follow(0, Phase.SESSION, traffic)
        self._report(traffic)

    def _report(self, traffic: Traffic) -> None:
        if times := self._messages.take():
            self._log.write("messages", **times)
        for place in sorted({*traffic.sent, *traffic.received}, key=lambda place: (place[0], place[1].value)):
            sent, received = traffic.sent[place], traffic.received[place]
            before = self._reported.get(place, (0, 0))
            if (sent, received) != before:
                self.write(
                    "traffic",
                    round=0 if self.outside else place[0],
                    phase=place[1].value,
                    sent=sent - before[0],
                    received=received - before[1],
                )
                self._reported[place] = (sent, received)
