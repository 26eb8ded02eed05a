"""Reads the history of a run from the event logs of its parties, which may be of one host or of several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from tacit.models.file_system import FILES
from tacit.parties.runs.directory import RunDirectory, writing
from tacit.parties.runs.incidents import Events, incidents
from tacit.parties.runs.summary import natural
from tacit.parties.session.event_log import EventLogError, read
from tacit.simulate.report.clocks import align
from tacit.simulate.report.fold import Fold
from tacit.simulate.report.history import Clock, History, PartyHistory, Unread


def read_history(*places: Path) -> History:
    """The history in event logs: places are logs, and directories of logs or of runs.

    The logs of several places are of several hosts, whose clocks are aligned. A log with a line that is not of this run
    is read up to there, which `unread` of the history says. EventLogError if a place has no log, one cannot be read or
    is given twice, or hosts noted messages in a way that is not ours.
    """
    unread: list[Unread] = []
    logs = _read(places, unread)
    while True:
        try:
            history = _history({name: log.events for name, log in logs.items()}, one_machine=len(places) == 1)
        except _ForeignEventError as error:
            log = logs[error.party]
            unread.append(Unread(*log.places[error.index], error.fault))
            del log.events[error.index :], log.places[error.index :]
        except (msgspec.ValidationError, KeyError, TypeError) as error:
            raise EventLogError(
                f"{', '.join(map(str, places))}: holds events that this version of tacit does not write: {error}"
            ) from error
        else:
            history.unread = unread
            return history


def recorded(directory: Path) -> Events:
    """All events in a directory of logs, in the order in which a Fold takes them. EventLogError as of `read`."""
    logs = {name: log.events for name, log in _read([directory]).items()}
    server = _server_of(logs)
    names = sorted(logs, key=lambda name: (name != server, natural(name)))
    return [event for _, _, event in _in_order({name: logs[name] for name in names})]


def set_aside(run: RunDirectory) -> list[str]:
    """Cut every log of a run off where it cannot be read on; what stood behind is kept in PARTY.jsonl.unread.

    Returns what was done, in words. EventLogError and OSError if it cannot be.
    """
    done = []
    for found in read_history(run.path / "events").unread:
        lines = found.path.read_bytes().splitlines(keepends=True)
        kept, rest = b"".join(lines[: found.line - 1]), b"".join(lines[found.line - 1 :])
        aside = found.path.with_name(f"{found.path.name}.unread")
        with writing(aside):
            FILES.append(aside, rest)
            FILES.truncate(found.path, len(kept))
        done.append(f"{found}; the rest was moved to {aside}")
    return done


class _ForeignEventError(Exception):
    """An event that this version of tacit does not write, or not there."""

    def __init__(self, party: str, index: int, error: Exception) -> None:
        self.party = party
        self.index = index
        self.fault = f"no {error}" if isinstance(error, KeyError) else str(error)


@dataclass(frozen=True)
class _Log:
    """The events of one party, and in which file and line each stands."""

    events: Events = field(default_factory=list)
    places: list[tuple[Path, int]] = field(default_factory=list)


def _read(places: Sequence[Path], unread: list[Unread] | None = None) -> dict[str, _Log]:
    """All events by party, in the order of the files; unread: takes what would raise EventLogError otherwise."""
    logs: dict[str, _Log] = {}
    for path in (path for place in places for path in _logs_in(place, alone=len(places) == 1)):

        def keep(line: int, fault: str, path: Path = path) -> None:
            assert unread is not None
            unread.append(Unread(path, line, fault))

        events = list(read(path, None if unread is None else keep))
        name = str(events[0]["party"]) if events else path.stem
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


def _history(logs: dict[str, Events], *, one_machine: bool) -> History:
    server = _server_of(logs)
    names = sorted(logs, key=lambda name: (name != server, natural(name)))
    logs, clocks = {name: logs[name] for name in names}, tuple[Clock, ...]()
    if server is not None and not one_machine:
        logs, clocks = align(logs, server)
    fold = Fold(History(server, {name: PartyHistory(name) for name in names}, clocks=clocks, one_machine=one_machine))
    for name, index, event in _in_order(logs):
        try:
            fold.take(event)
        except (msgspec.ValidationError, KeyError, TypeError) as error:
            raise _ForeignEventError(name, index, error) from error
    history = fold.close()
    history.incidents = incidents(logs)
    return history


def _server_of(logs: dict[str, Events]) -> str | None:
    names = sorted(logs, key=natural)
    return next((name for name in names if any(e["event"] in ("configuration", "listening") for e in logs[name])), None)


def _in_order(logs: Mapping[str, Events]) -> list[tuple[str, int, dict[str, Any]]]:
    """Whose, which of its log, and the event."""
    events = [(name, index, event) for name, log in logs.items() for index, event in enumerate(log)]
    # The sort is stable: of one time, the log that is given first comes first.
    return sorted(events, key=lambda entry: entry[2]["time"])
