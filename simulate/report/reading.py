"""Reads the history of a run from the event logs of its parties, which may be of one host or of several."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from tacit.parties.runs.incidents import Events, incidents
from tacit.parties.session.event_log import EventLogError, read
from tacit.simulate.report.clocks import align
from tacit.simulate.report.fold import Fold
from tacit.simulate.report.history import Clock, History, PartyHistory


def read_history(*places: Path) -> History:
    """The history in event logs: places are logs, and directories of logs or of runs.

    The logs of several places are of several hosts, whose clocks are aligned. EventLogError if a place has no log, one
    cannot be read or is given twice, or holds a wrong event.
    """
    logs = _read(places)
    try:
        return _history(logs, one_machine=len(places) == 1)
    except (msgspec.ValidationError, KeyError, TypeError) as error:
        problem = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise EventLogError(
            f"{', '.join(map(str, places))}: holds events that this version of tacit does not write: {problem}"
        ) from error


def recorded(directory: Path) -> Events:
    """All events in a directory of logs, in the order in which a Fold takes them. EventLogError as of read_history."""
    logs = _read([directory])
    server = _server_of(logs)
    return _in_order(logs[name] for name in sorted(logs, key=lambda name: (name != server, _natural(name))))


def _read(places: Sequence[Path]) -> dict[str, Events]:
    """All events by party, in the order of the files."""
    logs: dict[str, Events] = {}
    for path in (path for place in places for path in _logs_in(place, alone=len(places) == 1)):
        events = list(read(path))
        name = str(events[0]["party"]) if events else path.stem
        if events and events[0] in logs.get(name, ()):
            raise EventLogError(f"{path}: this log of {name} is given twice; give each once")
        logs.setdefault(name, []).extend(events)
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
    names = sorted(logs, key=lambda name: (name != server, _natural(name)))
    clocks: tuple[Clock, ...] = ()
    if server is not None and not one_machine:
        logs, clocks = align({name: logs[name] for name in names}, server)
    fold = Fold(History(server, {name: PartyHistory(name) for name in names}, clocks=clocks, one_machine=one_machine))
    for event in _in_order(logs[name] for name in names):
        fold.take(event)
    history = fold.close()
    history.incidents = incidents(logs)
    return history


def _server_of(logs: dict[str, Events]) -> str | None:
    names = sorted(logs, key=_natural)
    return next((name for name in names if any(e["event"] in ("configuration", "listening") for e in logs[name])), None)


def _in_order(logs: Iterable[Events]) -> Events:
    # The sort is stable: of one time, the log that is given first comes first.
    return sorted((event for log in logs for event in log), key=lambda event: event["time"])


def _natural(name: str) -> list[tuple[str, int]]:
    """client-2 before client-10."""
    return [(text, int(part or 0)) for text, part in re.findall(r"(\D*)(\d*)", name)]
