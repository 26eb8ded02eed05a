"""Reads the history of a run from the event logs of its parties.

A session begins with the server's `configuration` event, and all processes of a run share one clock, so that an event
belongs to the session that began last before it. Rounds are known from the server's log; spans of phases and bytes are
added to them from everybody's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from tacit.parties.runs import evaluations
from tacit.parties.runs.incidents import Events, by_session, incidents
from tacit.parties.session.event_log import EventLogError, read
from tacit.protocol.core.messages import Phase
from tacit.simulate.report.history import (
    Configured,
    Drop,
    History,
    PartyHistory,
    RoundHistory,
    RoundResult,
    Span,
    Stranger,
    Trouble,
)

TROUBLE = {
    "cheat": "cheated",
    "refused": "refused a message of",
    "left": "saw leave:",
    "complaint": "heard a complaint against",
    "not-sent": "could not send to",
    "link-lost": "lost the link to",
    "cannot-train": "could not train",
    "round-over": "ended its round early",
    "ended": "ended the session early",
}
"""Events that tell of trouble, as a verb of the party that logged them. The last two only if they carry a code."""


class _PhaseEnded(msgspec.Struct, frozen=True):
    time: float
    round: int
    phase: Phase
    seconds: float
    next: Phase


class _Moved(msgspec.Struct, frozen=True):
    round: int
    phase: Phase
    sent: int
    received: int


def read_history(directory: Path) -> History:
    """The history in a directory of event logs. EventLogError if one cannot be read or holds a wrong event."""
    paths = sorted(directory.glob("*.jsonl"), key=lambda path: _natural(path.stem))
    logs = {path.stem: list(read(path)) for path in paths}
    try:
        evaluations.complete(logs)
        return _history(logs)
    except (msgspec.ValidationError, KeyError, TypeError) as error:
        problem = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise EventLogError(
            f"{directory}: holds events that this version of tacit does not write: {problem}"
        ) from error


def _history(logs: Mapping[str, Events]) -> History:
    server = next((name for name, log in logs.items() if any(e["event"] == "configuration" for e in log)), None)
    starts = [event["time"] for event in logs.get(server or "", ()) if event["event"] == "configuration"]
    parts = {name: by_session(events, starts) for name, events in logs.items()}
    names = sorted(logs, key=lambda name: name != server)
    history = History(server, {name: PartyHistory(name) for name in names})
    for session in range(max(len(starts), 1)):
        here = {name: parts[name][session] for name in names if parts[name][session]}
        times = [event["time"] for events in here.values() for event in events]
        if times:
            history.sessions.append((min(times), max(times)))
            _Session(history).tell(here)
    history.troubles.sort(key=lambda trouble: (trouble.session, trouble.seconds))
    history.incidents = incidents(logs)
    return history


def _natural(name: str) -> list[tuple[str, int]]:
    """client-2 before client-10."""
    return [(text, int(part or 0)) for text, part in re.findall(r"(\D*)(\d*)", name)]


class _Session:
    """Adds the events of the session that was opened last to a history."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._number = len(history.sessions)
        self._began, self._ended = history.sessions[-1]
        self._rounds: dict[int, RoundHistory] = {}
        self._over = math.inf
        """When the server said that it ends: links that are lost after that are no trouble."""

    def tell(self, logs: Mapping[str, Events]) -> None:
        self._history.ended = None
        for event in logs.get(self._history.server or "", ()):
            self._server_event(event)
        for name, events in logs.items():
            for event in events:
                self._event(name, event)
            if not any(event["event"] == "ended" for event in events):
                self._open_end(name, events)

    def _server_event(self, event: dict[str, Any]) -> None:
        """What only the server says, and what makes the rounds."""
        kind, time = event["event"], event["time"]
        current = self._history.rounds[-1] if self._rounds else None
        if kind == "configuration":
            self._history.configured = msgspec.convert(event, Configured)
        elif kind == "round":
            number, cohort = msgspec.convert((event["round"], event["cohort"]), tuple[int, tuple[str, ...]])
            if current is not None and current.result is None:
                current.ended = time
            self._rounds[number] = RoundHistory(self._number, number, time, self._ended, cohort)
            self._history.rounds.append(self._rounds[number])
        elif kind == "round-done":
            round = self._rounds[event["round"]]
            round.result, round.ended = msgspec.convert(event, RoundResult), time
            round.drops = round.result.dropped
        elif kind == "dropped" and current is not None:
            drop = msgspec.convert({**event, "party": event["member"]}, Drop)
            current.drop_times[drop.party] = time
            current.drops = (*current.drops, drop)
        elif kind == "stranger":
            who = (str(event["public_key"] or "none shown"), str(event["address"] or "unknown"), str(event["reason"]))
            self._history.strangers.setdefault(who, Stranger(*who)).count += 1
        elif kind == "ended":
            self._history.ended, self._over = str(event["detail"]), time

    def _event(self, name: str, event: dict[str, Any]) -> None:
        kind, party = event["event"], self._history.parties[name]
        if kind == "phase":
            ended = msgspec.convert(event, _PhaseEnded)
            party.seconds[ended.phase] += ended.seconds
            if round := self._rounds.get(ended.round):
                span = Span(ended.phase, ended.time - ended.seconds, ended.time)
                round.spans.setdefault(name, []).append(span)
        elif kind == "traffic":
            moved = msgspec.convert(event, _Moved)
            party.sent[moved.phase] += moved.sent
            party.received[moved.phase] += moved.received
            if name == self._history.server and (round := self._rounds.get(moved.round)):
                round.moved += moved.sent + moved.received
        elif kind == "work":
            for work, seconds in msgspec.convert(event["seconds"], dict[str, float]).items():
                party.work[work] += seconds
        elif self._is_trouble(event):
            about = next((event[key] for key in ("member", "from", "against", "to", "peer") if key in event), "")
            detail = event.get("detail") or event.get("reason") or (f"by {event['by']}" if "by" in event else "")
            self._trouble(
                event["time"],
                name,
                TROUBLE[kind],
                about=", ".join(about) if isinstance(about, list) else str(about),
                code=str(event.get("code") or ""),
                detail=str(detail),
            )

    def _is_trouble(self, event: Mapping[str, Any]) -> bool:
        match event["event"]:
            case "round-over" | "ended":
                return event["code"] is not None
            case "link-lost":
                return bool(event["time"] < self._over)
        return event["event"] in TROUBLE

    def _open_end(self, name: str, events: Events) -> None:
        """A log without a farewell: its party was in some phase until it was dropped, or the round ended."""
        self._trouble(events[-1]["time"], name, "stopped: its log ends here", detail="killed, or still running")
        last = next(
            (msgspec.convert(event, _PhaseEnded) for event in reversed(events) if event["event"] == "phase"), None
        )
        if last is None:
            return
        rounds = [round for round in self._rounds.values() if round.began <= last.time < round.ended]
        for round in rounds[-1:]:
            end = round.drop_times.get(name, round.ended)
            if end > last.time:
                round.spans.setdefault(name, []).append(Span(last.next, last.time, end, open=True))

    def _trouble(
        self, time: float, party: str, what: str, *, about: str = "", code: str = "", detail: str = ""
    ) -> None:
        self._history.troubles.append(
            Trouble(self._number, time - self._began, party, what, about=about, code=code, detail=detail)
        )
