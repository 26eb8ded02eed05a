"""The event log of a party: JSON lines, one object per event with time, party, event and the fields of that event.

Every line is written at once and in whole, so that a killed party leaves at most one incomplete line at the end; the
reader skips it, and the next start of the party removes it. Only plain JSON values are accepted: keys, shares and
arrays are bytes or objects, so that none can slip in by mistake. Control characters in text of peers are escaped here.

Only the log receives the times of single messages, which later align the clocks of two hosts. Of consecutive messages
of one type and round, both ends record the first. A time of sending is taken before the message leaves, one of receipt
after it arrived: the time between them is never shorter than the time in transit.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, Self, TypeVar, Union

import msgspec

from tacit.models.file_system import FILES, FileSystem
from tacit.parties.links import endpoint
from tacit.parties.links.client_endpoint import CopyError
from tacit.parties.session.events import (
    ClientRoundEnded,
    CopyDetected,
    HandshakeRefused,
    LinkLost,
    LinkOpened,
    MessagesTimed,
    PhaseEnded,
    Repeating,
    SessionEnded,
    TrafficCounted,
)
from tacit.protocol.core.codec import ENVELOPE_LIMIT, Envelope, Frame, decode_structure
from tacit.protocol.core.errors import RemoteProtocolError, printable
from tacit.protocol.core.events import Event
from tacit.protocol.core.link import Traffic
from tacit.protocol.session.events import RoundStarted
from tacit.protocol.sum.states import Phase

MOST_NOTES = 16
"""Recorded times per peer and direction between two reports; a peer's chatter cannot fill the log."""
SESSION_DIGITS = 8
"""Hexadecimal digits of the session: enough to distinguish those of one log."""

Direction = Literal["sent", "received"]


class MessageTimes:
    def __init__(self) -> None:
        self._last: dict[tuple[Direction, str], tuple[bytes, int, str]] = {}
        self._notes: dict[tuple[Direction, str], list[tuple[str, str, int, int, float]]] = {}

    def note(self, direction: Direction, peer: str, frames: Sequence[Frame]) -> None:
        """Record that a message leaves now, or has arrived. Unreadable messages are skipped, and so are those without a
        session: a Hello, of which there may be several alike."""
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
            notes.append((peer, session, envelope.round, envelope.sequence, time.time()))

    def take(self) -> dict[Direction, list[tuple[str, str, int, int, float]]]:
        """Return and clear all records by direction, each as peer, session, round, sequence number, time."""
        notes, self._notes = self._notes, {}
        taken: dict[Direction, list[tuple[str, str, int, int, float]]] = {}
        for (direction, _), listed in notes.items():
            taken.setdefault(direction, []).extend(listed)
        return taken


EventT = TypeVar("EventT", bound=Event)


class EventLogError(Exception):
    """The log cannot be written or read, or a field is not plain; the message names the file and the place."""


class EventFile:
    """Append-only file of one party's events. Raises EventLogError when it cannot be opened."""

    def __init__(self, path: Path, party: str) -> None:
        self._path = path
        self._party = party
        try:
            # Unbuffered: a failed write must not appear later, behind other lines.
            self._file = path.open("ab", buffering=0)
            if path.is_file():
                remove_incomplete_line(path)
        except OSError as error:
            raise EventLogError(f"{path}: cannot be opened: {error.strerror}; choose another place") from error

    def write(self, event: EventT) -> EventT:
        """Append an event, and return it as written: with time and party, and control characters escaped.

        EventLogError for a value that is not plain, which names its type and never its content, or if the write
        fails."""
        event = self.stamped(event)
        line = msgspec.json.encode(event) + b"\n"
        try:
            while line:
                line = line[self._file.write(line) :]
        except OSError as error:
            raise EventLogError(
                f"{self._path}: event {event.tag!r} cannot be written: {error.strerror}; make room on the disk"
            ) from error
        return event

    def stamped(self, event: EventT) -> EventT:
        """Return the event with time and party, and without control characters. EventLogError for a value that is not
        plain."""
        event = msgspec.structs.replace(event, time=time.time(), party=self._party)
        try:
            plain: EventT = _plain(event)
        except _NotPlainError as error:
            raise EventLogError(
                f"{self._path}: event {event.tag!r}, field {error.field!r}: {error.found} is not a plain JSON value; "
                "convert numbers with int() or float(), write None where there is none, and leave secrets out"
            ) from None
        return plain

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def read(path: Path, on_foreign: Callable[[int, str], object] | None = None) -> Iterator[Event]:
    """Yield the events of a log, oldest first, without an incomplete last line.

    on_foreign: called with number and fault of a complete line that is no event of this party; the log ends before it.
    Without it, EventLogError names file and line. EventLogError also if the file cannot be read, or another version
    wrote it."""
    party, decoder = None, event_decoder()
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    return
                try:
                    event = decoder.decode(line)
                    if party not in (None, event.party):
                        raise msgspec.ValidationError(f"an event of {event.party!r} in the log of {party!r}")
                except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                    if number == 1 and (version := _other_version(path)):
                        raise EventLogError(f"{path}: tacit {version} wrote it: read it with that version") from None
                    if on_foreign is not None:
                        on_foreign(number, str(error))
                        return
                    raise EventLogError(f"{path}:{number}: {error}") from None
                party = event.party
                yield event
    except OSError as error:
        raise EventLogError(f"{path}: cannot be read: {error.strerror}") from error


def event_decoder() -> msgspec.json.Decoder[Event]:
    return _decoder(frozenset(declared_events()))


@cache
def _decoder(kinds: frozenset[type[Event]]) -> msgspec.json.Decoder[Event]:
    return msgspec.json.Decoder(Union[tuple(kinds)])  # noqa: UP007


def declared_events(kind: type[Event] = Event) -> Iterator[type[Event]]:
    below = kind.__subclasses__()
    if not below:
        yield kind
    for part in below:
        yield from declared_events(part)


def _other_version(path: Path) -> str:
    """Return the version that wrote a log whose first line this one does not know; "" if it is no log. Until 0.2 the
    server's event "provenance" stated it."""
    version = ""
    for line in path.read_bytes().splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            break
        if not isinstance(event, dict) or not {"time", "party", "event"} <= event.keys():
            break
        version = version or "0.2 or earlier"
        if isinstance(versions := event.get("versions"), dict) and isinstance(versions.get("tacit"), str):
            return printable(versions["tacit"])
    return version


class _NotPlainError(Exception):
    def __init__(self, found: str) -> None:
        self.found = found
        self.field = ""


def _plain(value: Any) -> Any:
    """The value with control characters escaped. _NotPlainError for a value that is not plain JSON."""
    if isinstance(value, Enum) or value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, float):
        if abs(value) < float("inf"):
            return value
        raise _NotPlainError("a float that is not finite")
    if isinstance(value, list | tuple):
        return type(value)(_plain(item) for item in value)
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise _NotPlainError("a dict with keys other than str")
        return {printable(key): _plain(item) for key, item in value.items()}
    if isinstance(value, msgspec.Struct):
        changed = {}
        for name, item in msgspec.structs.asdict(value).items():
            try:
                changed[name] = _plain(item)
            except _NotPlainError as error:
                error.field = name
                raise
        return msgspec.structs.replace(value, **changed)
    raise _NotPlainError(f"a value of type {type(value).__name__}")


def remove_incomplete_line(path: Path, files: FileSystem = FILES) -> bytes:
    """Remove an incomplete line that a killed writer left at the end; returns it.

    FileNotFoundError if there is no such file."""
    content = files.read(path)
    complete = content[: content.rfind(b"\n") + 1]
    if complete != content:
        files.truncate(path, len(complete))
    return complete


Tell = Callable[[Event], None]
"""Receives every event of a party, for a live view; must return at once."""
REPEAT_SECONDS: Final = 10.0
"""Interval at which each kind of repeating event is written for one peer."""


@dataclass
class _Repeats:
    written: dict[type[Repeating], float] = field(default_factory=dict)
    waiting: dict[type[Repeating], tuple[int, Repeating]] = field(default_factory=dict)
    """Number of events held back, and the last one, in order."""

    def due(self, *kinds: type[Repeating]) -> float:
        return max((self.written[kind] + REPEAT_SECONDS for kind in kinds if kind in self.written), default=0.0)


class EventLog:
    """Events of one party: written to its file, and passed on to a live view.

    A repeating event of one peer is written and passed on at most once in ten seconds. After that time the last one
    held back follows, with the number of the others (`omitted`), so that the log ends with the present state."""

    def __init__(self, log: EventFile, tell: Tell) -> None:
        self.outside = False
        """Whether this session sums statistics before the run: its phases and bytes count as those of round 0, and only
        failures of its rounds and its end are logged."""
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
        """Seconds of a monotonic clock."""
        return time.monotonic()

    def write(self, event: Event) -> None:
        of_runs = isinstance(event, RoundStarted | ClientRoundEnded | SessionEnded)
        if self.outside and of_runs and getattr(event, "code", None) is None:
            return
        self.catch_up()
        if not isinstance(event, Repeating) or self._is_first(event):
            self._tell(self._log.write(event))

    def _is_first(self, event: Repeating) -> bool:
        """Return whether to write a repeating event now; else hold it back."""
        repeats, now, kind = self._repeats.setdefault(event.about, _Repeats()), self.now(), type(event)
        if not repeats.waiting and now >= repeats.due(kind):
            repeats.written[kind] = now
            return True
        omitted = repeats.waiting.pop(kind)[0] + 1 if kind in repeats.waiting else 0
        repeats.waiting[kind] = (omitted, event)
        return False

    def catch_up(self, *, at_once: bool = False) -> None:
        """Write the repeating events that are due. All of a peer are written together, in their order."""
        now = self.now()
        if now < self._caught_up + 1.0 and not at_once:
            return
        self._caught_up = now
        for peer, repeats in list(self._repeats.items()):
            if not at_once and now < repeats.due(*repeats.waiting or repeats.written):
                continue
            waiting, repeats.waiting = repeats.waiting, {}
            for kind, (omitted, event) in waiting.items():
                repeats.written[kind] = now
                self._tell(self._log.write(msgspec.structs.replace(event, omitted=omitted)))
            if not waiting:
                del self._repeats[peer]

    def mention(self, event: Event) -> None:
        """Pass an event on without logging it: it matters only now."""
        self.catch_up()
        self._tell(self._log.stamped(event))

    def link_changed(
        self, event: endpoint.LinkUp | endpoint.LinkLost | endpoint.HandshakeRefused | endpoint.CopyDetected
    ) -> None:
        if isinstance(event, endpoint.CopyDetected):
            self.write(CopyDetected(peer=event.peer, detail=event.detail, address=event.address, other=event.other))
        elif isinstance(event, endpoint.HandshakeRefused):
            self.write(HandshakeRefused(reason=event.reason, public_key=event.public_key, address=event.address))
        else:
            kind = LinkOpened if isinstance(event, endpoint.LinkUp) else LinkLost
            self.write(kind(peer=event.peer))

    def copy_found(self, error: CopyError, own: str) -> None:
        """Log that this party, of this name, was refused as a copy, or has detected its peer as one."""
        found = CopyDetected(peer=error.server or own, detail=str(error), address=error.address, other=error.other)
        self.write(found)

    def passed(self, direction: Direction, peer: str, frames: Sequence[Frame]) -> None:
        """Record that a message is about to leave, or has arrived."""
        self._messages.note(direction, peer, frames)

    def follow(self, round: int, phase: Phase, traffic: Traffic) -> None:
        """Record the party's phase; on a change, report the phase that ended and its traffic."""
        round = 0 if self.outside else round
        if (round, phase) == self._place:
            return
        now = self.now()
        ended, since = self._place, now - self._since
        self.write(PhaseEnded(round=ended[0], phase=ended[1], seconds=since, next=phase))
        self._place, self._since = (round, phase), now
        self._report(traffic)

    def close(self, traffic: Traffic) -> None:
        """Write all remaining reports, as the last output of a party."""
        self.catch_up(at_once=True)
        self.follow(0, Phase.SESSION, traffic)
        self._report(traffic)

    def _report(self, traffic: Traffic) -> None:
        if times := self._messages.take():
            self._log.write(MessagesTimed(sent=times.get("sent", []), received=times.get("received", [])))
        for round, name in sorted({*traffic.sent, *traffic.received}):
            place = (round, Phase(name))
            sent, received = traffic.sent[place], traffic.received[place]
            before = self._reported.get(place, (0, 0))
            if (sent, received) != before:
                self.write(
                    TrafficCounted(
                        round=0 if self.outside else place[0],
                        phase=place[1],
                        sent=sent - before[0],
                        received=received - before[1],
                    )
                )
                self._reported[place] = (sent, received)
