"""Read the state of a run from the event logs of its parties, clocks of several hosts aligned to the server's.

Clocks are aligned by the messages that both ends recorded, after D. L. Mills, "Internet Time Synchronization", IEEE
Trans. Commun. 39(10), 1991, section III. Every message takes time, so each bounds the offset of a client's clock from
one side; at another moment, the bound is wider by the possible drift. The estimate is the middle between the tightest
bounds. Contradicting bounds show that a clock was set: a new stretch begins there. If the bounds admit equal clocks,
times are left unchanged.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from msgspec import structs

from tacit.models.file_system import FILES
from tacit.parties.runs.directory import RunDirectory, writing
from tacit.parties.runs.state import Clock, PartyState, RunState, Unread
from tacit.parties.session.event_log import EventLogError, read
from tacit.parties.session.events import ConfigurationProposed, ListeningStarted, MessagesTimed
from tacit.protocol.core.events import Event

Events = list[Event]

DRIFT: Final = 200e-6
"""Largest drift of two clocks per second: each is a quartz with an error of 100 ppm or less."""


class _Note(NamedTuple):
    """One end's record of a message: peer, session, round, number, time."""

    peer: str
    session: str
    round: int
    sequence: int
    time: float


class _Bound(NamedTuple):
    time: float
    ahead: float
    upper: bool
    line: int
    """Line in the client's log."""


@dataclass
class _Stretch:
    """The bounds between two jumps of the clock, in the order of the client's log."""

    bounds: list[_Bound] = field(default_factory=list)
    low: float = -math.inf
    high: float = math.inf

    def take(self, bound: _Bound) -> bool:
        drifted = DRIFT * abs(bound.time - self.bounds[-1].time) if self.bounds else 0.0
        low, high = self.low - drifted, self.high + drifted
        low, high = (low, min(high, bound.ahead)) if bound.upper else (max(low, bound.ahead), high)
        if low > high:
            return False
        self.low, self.high = low, high
        self.bounds.append(bound)
        return True

    def finish(self) -> None:
        self.last_line = max(bound.line for bound in self.bounds)
        self.bounds.sort(key=lambda bound: bound.time)
        self.times = [bound.time for bound in self.bounds]
        lows = [-math.inf if bound.upper else bound.ahead for bound in self.bounds]
        highs = [bound.ahead if bound.upper else math.inf for bound in self.bounds]
        forth = range(len(lows))
        for places in (forth, reversed(forth)):
            for before, place in pairwise(places):
                drifted = DRIFT * abs(self.times[place] - self.times[before])
                lows[place] = max(lows[place], lows[before] - drifted)
                highs[place] = min(highs[place], highs[before] + drifted)
        self.lows, self.highs = lows, highs
        self.same = all(-math.inf < low <= 0.0 <= high < math.inf for low, high in zip(lows, highs, strict=True))

    def distance(self, time: float) -> float:
        return max(self.times[0] - time, time - self.times[-1], 0.0)

    def ahead(self, time: float) -> tuple[float, float]:
        """The estimate at a time of the client's clock, and its largest error; infinite if unknown."""
        place = bisect_left(self.times, time)
        near = [index for index in (place - 1, place) if 0 <= index < len(self.times)]
        low = max(self.lows[index] - DRIFT * abs(time - self.times[index]) for index in near)
        high = min(self.highs[index] + DRIFT * abs(time - self.times[index]) for index in near)
        if self.same:
            return 0.0, max(high, -low)
        if math.isinf(high - low):
            # Messages went one way only: as if they had taken no time.
            return (low if math.isinf(high) else high), math.inf
        return (low + high) / 2, (high - low) / 2


def align(logs: Mapping[str, Events], server: str) -> tuple[dict[str, Events], tuple[Clock, ...]]:
    """Return the logs with all times by the server's clock, and the offsets found."""
    aligned, clocks = {server: logs[server]}, []
    for name, events in logs.items():
        if name != server:
            aligned[name], clock = _align(name, events, logs[server])
            clocks.append(clock)
    return aligned, tuple(clocks)


def _align(name: str, events: Events, server: Events) -> tuple[Events, Clock]:
    bounds = _bounds(name, events, server)
    stretches = _stretches(bounds)
    if not stretches:
        return events, Clock(name, 0)
    aligned, worst, ahead = [], 0.0, 0.0
    for line, event in enumerate(events):
        stretch = _stretch_of(stretches, event.time, line)
        ahead, wrong = stretch.ahead(event.time)
        worst = max(worst, wrong)
        aligned.append(structs.replace(event, time=event.time - ahead))
    uncertainty = None if math.isinf(worst) else worst
    return aligned, Clock(name, len(bounds), ahead, uncertainty, len(stretches) - 1)


def _stretch_of(stretches: Sequence[_Stretch], time: float, line: int) -> _Stretch:
    """The stretch whose messages are nearest in time; of several that contain the time, the log's first."""
    return min(stretches, key=lambda stretch: (stretch.distance(time), stretch.last_line < line))


def _stretches(bounds: Sequence[_Bound]) -> list[_Stretch]:
    stretches: list[_Stretch] = []
    for bound in bounds:
        # An older one only for messages of one line of the log, whose order is not known.
        if not any(stretch.take(bound) for stretch in reversed(stretches)):
            stretches.append(_Stretch())
            stretches[-1].take(bound)
    for stretch in stretches:
        stretch.finish()
    return stretches


def _bounds(name: str, events: Events, server: Events) -> list[_Bound]:
    """Bounds from the messages that both ends recorded, in the order of the client's log."""
    found = []
    for ours, theirs in (("received", "sent"), ("sent", "received")):
        there = _by_message(_notes(server, theirs, peer=name))
        here = _by_message(_notes(events, ours))
        for message in here.keys() & there.keys():
            (line, note), (_, other) = here[message], there[message]
            found.append(_Bound(note.time, note.time - other.time, ours == "received", line))
    return sorted(found, key=lambda bound: (bound.line, bound.time))


def _notes(events: Events, direction: str, peer: str | None = None) -> Iterator[tuple[int, _Note]]:
    for line, event in enumerate(events):
        if isinstance(event, MessagesTimed):
            for fields in event.sent if direction == "sent" else event.received:
                if peer in (None, fields[0]):
                    yield line, _Note(*fields)


def _by_message(notes: Iterator[tuple[int, _Note]]) -> dict[tuple[str, int, int], tuple[int, _Note]]:
    """Index records by session, round and number, without duplicates, as after a conversation that began anew."""
    listed = list(notes)
    counts = Counter((note.session, note.round, note.sequence) for _, note in listed)
    keyed = {(note.session, note.round, note.sequence): (line, note) for line, note in listed}
    return {message: found for message, found in keyed.items() if counts[message] == 1}


def natural(name: str) -> list[tuple[str, int]]:
    """A sort key that puts client-2 before client-10."""
    return [(text, int(part or 0)) for text, part in re.findall(r"(\D*)(\d*)", name)]


def read_state(*places: Path) -> RunState:
    """Fold event logs into a state: places are logs, and directories of logs or of runs.

    Logs of several places belong to several hosts, whose clocks are aligned. A log with a foreign line is read up to
    there, which `unread` reports. EventLogError if a place has no log, or one cannot be read, is given twice, or is of
    another version."""
    unread: list[Unread] = []
    logs = _read(places, unread)
    while True:
        try:
            state = _state({name: log.events for name, log in logs.items()}, one_machine=len(places) == 1)
        except _ForeignEventError as error:
            log = logs[error.party]
            unread.append(Unread(*log.places[error.index], error.fault))
            del log.events[error.index :], log.places[error.index :]
        else:
            state.unread = unread
            return state


def recorded(directory: Path) -> Events:
    """All events in a directory of logs, in the order in which a RunState takes them. EventLogError as in `read`."""
    logs = {name: log.events for name, log in _read([directory]).items()}
    server = _server_of(logs)
    names = sorted(logs, key=lambda name: (name != server, natural(name)))
    return [event for _, _, event in _in_order({name: logs[name] for name in names})]


def set_aside(run: RunDirectory) -> list[str]:
    """Truncate every log of a run where it becomes unreadable; the rest is kept in PARTY.jsonl.unread.

    Returns descriptions of the changes. EventLogError, OSError."""
    done = []
    for found in read_state(run.path / "events").unread:
        lines = found.path.read_bytes().splitlines(keepends=True)
        kept, rest = b"".join(lines[: found.line - 1]), b"".join(lines[found.line - 1 :])
        aside = found.path.with_name(f"{found.path.name}.unread")
        with writing(aside):
            FILES.append(aside, rest)
            FILES.truncate(found.path, len(kept))
        done.append(f"{found}; the rest was moved to {aside}")
    return done


class _ForeignEventError(Exception):
    def __init__(self, party: str, index: int, fault: str) -> None:
        self.party = party
        self.index = index
        self.fault = fault


@dataclass(frozen=True)
class _Log:
    events: Events = field(default_factory=list)
    places: list[tuple[Path, int]] = field(default_factory=list)


def _read(places: Sequence[Path], unread: list[Unread] | None = None) -> dict[str, _Log]:
    """All events by party, in the order of the files; unread: collects errors that would raise EventLogError
    otherwise."""
    logs: dict[str, _Log] = {}
    for path in (path for place in places for path in _logs_in(place, alone=len(places) == 1)):

        def keep(line: int, fault: str, path: Path = path) -> None:
            assert unread is not None
            unread.append(Unread(path, line, fault))

        events = list(read(path, None if unread is None else keep))
        name = events[0].party if events else path.stem
        log = logs.setdefault(name, _Log())
        if events and events[0] in log.events:
            raise EventLogError(f"{path}: this log of {name} is given twice; give each once")
        log.events.extend(events)
        log.places.extend((path, line) for line in range(1, len(events) + 1))
    return logs


def _logs_in(place: Path, *, alone: bool) -> list[Path]:
    if place.is_file():
        return [place]
    folder = place / "events" if (place / "events").is_dir() else place
    found = sorted(folder.glob("*.jsonl"))
    if not found and not alone:
        raise EventLogError(
            f"{place}: no event logs are there; name a run directory, its events folder, or a .jsonl file"
        )
    return found


def _state(logs: dict[str, Events], *, one_machine: bool) -> RunState:
    server = _server_of(logs)
    names = sorted(logs, key=lambda name: (name != server, natural(name)))
    logs, clocks = {name: logs[name] for name in names}, tuple[Clock, ...]()
    if server is not None and not one_machine:
        logs, clocks = align(logs, server)
    parties = {name: PartyState(name) for name in names}
    state = RunState(server=server, parties=parties, clocks=clocks, one_machine=one_machine)
    for name, index, event in _in_order(logs):
        try:
            state.take(event)
        except ValueError as error:
            raise _ForeignEventError(name, index, str(error)) from error
    return state.close()


def _server_of(logs: dict[str, Events]) -> str | None:
    serving = (ConfigurationProposed, ListeningStarted)
    names = sorted(logs, key=natural)
    return next((name for name in names if any(isinstance(event, serving) for event in logs[name])), None)


def _in_order(logs: Mapping[str, Events]) -> list[tuple[str, int, Event]]:
    events = [(name, index, event) for name, log in logs.items() for index, event in enumerate(log)]
    # The sort is stable: of one time, the log that is given first comes first.
    return sorted(events, key=lambda entry: entry[2].time)
