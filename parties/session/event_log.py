"""The event log of a party: JSON lines, one object per event with time, party, event and the fields of that event.

Reports are made from these files. Every line is written at once and in whole, so that a killed party leaves at most one
incomplete line at the end; the reader skips it, and the next start of the party removes it. Only plain JSON values are
accepted: keys, shares and arrays are bytes or objects, so that none can slip in by mistake.

Machines and logs take their times from one clock. Every change of the phase is an event that says how long the phase
before it took, with the bytes since the last report, by the phase that they belong to. The log alone, and not the
process that started the party, receives the times of single messages.

Times of single messages align the clocks of two hosts afterwards. Of messages of one type and round that follow each
other, both ends note the first, which they identify by its envelope. A time of sending is taken before the message
leaves, one of receipt after it came: the time between them is never shorter than the time in transit.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Self

from tacit.models.file_system import FILES, FileSystem
from tacit.protocol.core.codec import ENVELOPE_LIMIT, Envelope, Frame, decode_structure
from tacit.protocol.core.errors import RemoteProtocolError, printable
from tacit.protocol.core.link import Traffic
from tacit.protocol.core.messages import Phase
from tacit.protocol.core.roster import Difference, Roster

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


class EventLogError(Exception):
    """The log cannot be written or read, or a field is not plain; the message names the file and the place."""


class EventLog:
    """An append-only log of one party. Raises EventLogError when the file cannot be opened."""

    def __init__(self, path: Path, party: str) -> None:
        self._path = path
        self._party = party
        try:
            # Unbuffered: what could not be written must not come out later, behind other lines.
            self._file = path.open("ab", buffering=0)
            if path.is_file():
                remove_incomplete_line(path)
        except OSError as error:
            raise EventLogError(f"{path}: cannot be opened: {error.strerror}; choose another place") from error

    def write(self, event: str, /, **fields: object) -> None:
        """Append one event, stamped with the time in seconds since 1970.

        Fields are None, bool, int, finite float, str, or lists, tuples and str-keyed dicts of these. Raises
        EventLogError when one is not, when it is called time, party or event, or when the file cannot take the line.
        """
        record: dict[str, object] = {"time": time.time(), "party": self._party, "event": event}
        for name, value in fields.items():
            if name in record:
                raise EventLogError(
                    f"{self._path}: event {event!r} has a field {name!r}, which every line has; rename it"
                )
            unsuitable = _unsuitable(value)
            if unsuitable is not None:
                raise EventLogError(
                    f"{self._path}: event {event!r}, field {name!r}: {unsuitable} is not a plain JSON value; "
                    "convert numbers with int() or float(), write None where there is none, and leave secrets out"
                )
            record[name] = shown(value)
        line = json.dumps(record).encode("ascii") + b"\n"
        try:
            while line:
                line = line[self._file.write(line) :]
        except OSError as error:
            raise EventLogError(
                f"{self._path}: event {event!r} cannot be written: {error.strerror}; make room on the disk"
            ) from error

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def read(path: Path, on_foreign: Callable[[int, str], object] | None = None) -> Iterator[dict[str, Any]]:
    """The events of a log, oldest first, without an incomplete last line.

    on_foreign: called with number and fault of a complete line that is no event of this party; the log ends before it.
    Without this, EventLogError names file and line; it is raised, too, when the file cannot be read.
    """
    party = None
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    return
                event, fault = _parse(line, party)
                if fault and on_foreign is not None:
                    on_foreign(number, fault)
                    return
                if fault:
                    raise EventLogError(f"{path}:{number}: {fault}")
                party = event["party"]
                yield event
    except OSError as error:
        raise EventLogError(f"{path}: cannot be read: {error.strerror}") from error


def _parse(line: bytes, party: str | None) -> tuple[dict[str, Any], str]:
    """A line of a log, and why it is none, or ""; party: whose log it is, once that is known."""
    try:
        event = json.loads(line)
    except ValueError as error:
        return {}, f"not a JSON line: {error}"
    if not isinstance(event, dict) or not {"time", "party", "event"} <= event.keys():
        return {}, "not an event with time, party and event"
    if not isinstance(event["time"], int | float) or not abs(event["time"]) < float("inf"):
        return {}, "its time is no number"
    if party not in (None, event["party"]):
        return {}, f"an event of {event['party']!r} in the log of {party!r}"
    return event, ""


def shown(value: Any) -> Any:
    """A field as files and screens have it: what others say in it has no control sequences of terminals."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, list | tuple):
        return type(value)(shown(item) for item in value)
    return {shown(key): shown(item) for key, item in value.items()} if isinstance(value, dict) else value


def _unsuitable(value: object) -> str | None:
    """What is not plain JSON in a value, by its type and never by its content; None when all of it is."""
    if isinstance(value, float):
        return None if abs(value) < float("inf") else "a float that is not finite"
    if value is None or isinstance(value, bool | int | str):
        return None
    if isinstance(value, list | tuple):
        return next((found for item in value if (found := _unsuitable(item))), None)
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            return "a dict with keys other than str"
        return _unsuitable(list(value.values()))
    return f"a value of type {type(value).__name__}"


def remove_incomplete_line(path: Path, files: FileSystem = FILES) -> bytes:
    """Cut off what a killed writer left behind its last complete line; returns what is left.

    FileNotFoundError if there is no such file.
    """
    content = files.read(path)
    complete = content[: content.rfind(b"\n") + 1]
    if complete != content:
        files.truncate(path, len(complete))
    return complete


Tell = Callable[[str, dict[str, Any]], None]
"""Receives every event with its fields, for a live view; must return at once."""

REPEATING: Final = frozenset({"link-up", "link-lost", "not-sent", "stranger"})
"""Events that a peer can bring about as often as it likes."""
REPEAT_SECONDS: Final = 10.0
"""How often each of them is written for one peer."""


@dataclass
class _Repeats:
    """Repeating events of one peer."""

    written: dict[str, float] = field(default_factory=dict)
    """When each was written last."""
    waiting: dict[str, tuple[int, dict[str, Any]]] = field(default_factory=dict)
    """How many were not, and the fields of the last one, in the order in which these happened."""

    def due(self, *events: str) -> float:
        """When all of these may be written."""
        return max((self.written[event] + REPEAT_SECONDS for event in events if event in self.written), default=0.0)


_OF_RUNS: Final = ("round", "round-over", "ended")


def told_of(former: Roster, roster: Roster, difference: Difference) -> dict[str, Any]:
    """The fields of the event that a later version of the roster is taken up."""
    versions = {"former": former.version, "version": roster.version, "fingerprint": roster.fingerprint}
    return {**versions, **asdict(difference)}


class Diary:
    """The events of one party.

    One that repeats itself for the same peer is written at most once in ten seconds, and passed on no more often. The
    last of those that were not follows when the time is over, with the number of the others (`omitted`): what is
    written last is how things are.
    """

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
        self._repeats: dict[str, _Repeats] = {}
        self._caught_up = self._since

    @staticmethod
    def now() -> float:
        """Seconds of a clock that never goes back."""
        return time.monotonic()

    def write(self, event: str, **fields: Any) -> None:
        """Log an event and pass it on."""
        if self.outside and event in _OF_RUNS and fields.get("code") is None:
            return
        self.catch_up()
        if event not in REPEATING or self._is_first(event, fields):
            self._write(event, fields)

    def _write(self, event: str, fields: dict[str, Any]) -> None:
        self._log.write(event, **fields)
        self._pass_on(event, fields)

    def _is_first(self, event: str, fields: dict[str, Any]) -> bool:
        """Whether a repeating event is to be written now; else it is kept."""
        peer = next(str(fields[name]) for name in ("peer", "to", "public_key") if name in fields)
        repeats, now = self._repeats.setdefault(peer, _Repeats()), self.now()
        if not repeats.waiting and now >= repeats.due(event):
            repeats.written[event] = now
            return True
        omitted, _ = repeats.waiting.pop(event, (-1, {}))
        repeats.waiting[event] = (omitted + 1, fields)
        return False

    def catch_up(self, *, at_once: bool = False) -> None:
        """Write the repeating events whose time has come. All of a peer are written together, in their order."""
        now = self.now()
        if now < self._caught_up + 1.0 and not at_once:
            return
        self._caught_up = now
        for peer, repeats in list(self._repeats.items()):
            if not at_once and now < repeats.due(*repeats.waiting or repeats.written):
                continue
            waiting, repeats.waiting = repeats.waiting, {}
            for event, (omitted, fields) in waiting.items():
                repeats.written[event] = now
                self._write(event, fields | ({"omitted": omitted} if omitted else {}))
            if not waiting:
                del self._repeats[peer]

    def mention(self, event: str, **fields: Any) -> None:
        """Tell without logging: what matters only now."""
        self.catch_up()
        self._pass_on(event, fields)

    def _pass_on(self, event: str, fields: dict[str, Any]) -> None:
        self._tell(event, {name: shown(value) for name, value in fields.items()})

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
        self.catch_up(at_once=True)
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
