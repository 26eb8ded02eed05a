"""When single messages left and came: what aligns the clocks of two hosts afterwards.

Of messages of one type and round that follow each other, the first is noted, at either end the same, by what its
envelope says. A time of sending is taken before the message leaves, one of receipt after it came: the time between them
is never shorter than the way that the message took.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Literal

from tacit.protocol.core.codec import ENVELOPE_LIMIT, Envelope, Frame, decode_structure
from tacit.protocol.core.errors import RemoteProtocolError

MOST_NOTES = 16
"""Notes of one peer and direction between two times that they are taken; a member's chatter fills no log."""
SESSION_DIGITS = 8
"""Of the session in hexadecimal: enough to tell those of one log apart."""

Direction = Literal["sent", "received"]


class MessageTimes:
    """Notes of one party, until they are taken."""

    def __init__(self) -> None:
        self._last: dict[tuple[Direction, str], tuple[bytes, int, str]] = {}
        self._notes: dict[tuple[Direction, str], list[list[Any]]] = {}

    def note(self, direction: Direction, peer: str, frames: Sequence[Frame]) -> None:
        """A message leaves now, or has come. Of one that cannot be read nothing is noted, and of what bears no session:
        a Hello, of which there may be several alike."""
        try:
            envelope = decode_structure(frames[0], Envelope, limit=ENVELOPE_LIMIT)
        except (RemoteProtocolError, IndexError):
            return
        kind = (envelope.session, envelope.round, envelope.type)
        if not any(envelope.session) or self._last.get((direction, peer)) == kind:
            return
        self._last[direction, peer] = kind
        notes = self._notes.setdefault((direction, peer), [])
        if len(notes) < MOST_NOTES:
            session = envelope.session.hex()[:SESSION_DIGITS]
            notes.append([peer, session, envelope.round, envelope.sequence, time.time()])

    def take(self) -> dict[Direction, list[list[Any]]]:
        """All notes by direction, each as peer, session, round, sequence number, time; they are forgotten here."""
        notes, self._notes = self._notes, {}
        taken: dict[Direction, list[list[Any]]] = {}
        for (direction, _), listed in notes.items():
            taken.setdefault(direction, []).extend(listed)
        return taken
