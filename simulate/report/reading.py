"""Reads the history of a run from the event logs of its parties."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec

from tacit.parties.session.event_log import EventLogError, read
from tacit.simulate.report.fold import Fold
from tacit.simulate.report.history import History, PartyHistory

Events = list[dict[str, Any]]


def read_history(directory: Path) -> History:
    """The history in a directory of event logs. EventLogError if one cannot be read or holds a wrong event."""
    logs = {path.stem: list(read(path)) for path in sorted(directory.glob("*.jsonl"))}
    try:
        return _history(logs)
    except (msgspec.ValidationError, KeyError, TypeError) as error:
        problem = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise EventLogError(
            f"{directory}: holds events that this version of tacit does not write: {problem}"
        ) from error


def _history(logs: dict[str, Events]) -> History:
    names = sorted(logs, key=_natural)
    server = next((name for name in names if any(e["event"] == "configuration" for e in logs[name])), None)
    names.sort(key=lambda name: name != server)
    fold = Fold(History(server, {name: PartyHistory(name) for name in names}))
    # The sort is stable: of one time, the server comes first.
    for event in sorted((event for name in names for event in logs[name]), key=lambda event: event["time"]):
        fold.take(event)
    return fold.close()


def _natural(name: str) -> list[tuple[str, int]]:
    """client-2 before client-10."""
    return [(text, int(part or 0)) for text, part in re.findall(r"(\D*)(\d*)", name)]
