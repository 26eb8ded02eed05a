"""Incidents of a run, in sentences: cheating clients, failed or incomplete rounds, changed members, lost servers.

All of it is read from the event logs. A run has sessions, the first and one for every --resume; each begins with the
server's `configuration`, and all processes of a run share one clock. A killed server logs nothing of its end: that it
was lost is known from its clients, and in which round from the last lines that it, or the session that goes on, wrote.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec


def without(absent: Mapping[str, str], most: int | None = None) -> str:
    """ "client-2 and client-3 (why), client-4 (why)"; most: how many are named of those with one reason."""
    reasons: dict[str, list[str]] = {}
    for name, reason in absent.items():
        reasons.setdefault(reason, []).append(name)
    return ", ".join(f"{_named(names, most or len(names))} ({reason})" for reason, names in reasons.items())


def _named(names: list[str], most: int) -> str:
    if len(names) > most:
        return f"{', '.join(names[:most])} and {len(names) - most} others"
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


Events = list[dict[str, Any]]
CHANGED: Final = ("added", "removed", "rotated", "regrouped")
"""What may be different in a later version of a roster."""
SERVER_LOST: Final = ("LEFT", "TIMEOUT")
"""Codes with which a client ends that has lost its server."""


class Incident(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that happened. session and round count from 1; what: `cheat`, `aborted`, `absent`, `members`,
    `server-lost`, `stopped`."""

    session: int
    round: int
    what: str
    text: str


def by_session(events: Events, starts: Sequence[float]) -> list[Events]:
    """The events of each session; starts: when the server wrote its configurations."""
    parts: list[Events] = [[] for _ in range(max(len(starts), 1))]
    for event in events:
        parts[max(bisect_right(starts, event["time"]) - 1, 0)].append(event)
    return parts


def incidents(logs: Mapping[str, Events]) -> list[Incident]:
    """The incidents of a run, in their order; none without the server's log."""
    server = next((log for log in logs.values() if any(event["event"] == "configuration" for event in log)), None)
    if server is None:
        return []
    starts = [event["time"] for event in server if event["event"] == "configuration"]
    sessions = by_session(server, starts)
    clients = {name: by_session(log, starts) for name, log in logs.items() if log is not server}
    found: list[Incident] = []
    for number, said in enumerate(sessions, start=1):
        heard = {name: parts[number - 1] for name, parts in clients.items()}
        timed = [
            *_cheats(number, heard),
            *_aborted(number, said),
            *_absent(number, said),
            *_members(number, sessions),
        ]
        found += [incident for _, incident in sorted(timed, key=lambda entry: entry[0])]
        # A first sum of statistics, before the session, may have ended on its own.
        if not any(event["event"] == "ended" and event["time"] >= starts[number - 1] for event in said):
            found += _cut_short(number, sessions, heard)
    return found


def _cheats(session: int, clients: Mapping[str, Events]) -> Iterator[tuple[float, Incident]]:
    for name, events in clients.items():
        for event in events:
            if event["event"] == "cheat":
                text = f"{name} cheated in round {event['round']}: {event['detail']}."
                yield event["time"], Incident(session=session, round=event["round"], what="cheat", text=text)


def _aborted(session: int, said: Events) -> Iterator[tuple[float, Incident]]:
    for event in said:
        if event["event"] == "round-done" and event["status"] == "aborted":
            text = (
                f"Round {event['round']} was aborted ({event['code']}): {event['detail']}. The model stayed as it was."
            )
            if event["culprit"]:
                text += f" At fault was {event['culprit']}, which is out for the session."
            yield event["time"], Incident(session=session, round=event["round"], what="aborted", text=text)


def _absent(session: int, said: Events) -> Iterator[tuple[float, Incident]]:
    """Whose absence is new, or has another reason."""
    before: dict[str, str] = {}
    for event in said:
        if event["event"] == "round":
            absent: dict[str, str] = event.get("absent", {})
            if absent and absent != before:
                text = f"Round {event['round']} began without {without(absent)}."
                yield event["time"], Incident(session=session, round=event["round"], what="absent", text=text)
            before = absent


def _members(session: int, sessions: Sequence[Events]) -> Iterator[tuple[float, Incident]]:
    """Later versions of the roster, each of which ended a session."""
    before = (event for events in sessions[: session - 1] for event in events)
    finished = max((event["round"] for event in before if event["event"] == "round-done"), default=0)
    for event in sessions[session - 1]:
        if event["event"] == "round-done":
            finished = event["round"]
        elif event["event"] == "roster":
            parts = (f"{part} {', '.join(event[part])}" for part in CHANGED if event[part])
            when = f"after round {finished}" if finished else "before the first round"
            text = (
                f"Members changed {when}: from version {event['former']} to {event['version']} of the roster "
                f"({'; '.join(parts) or 'the same members'})."
            )
            yield event["time"], Incident(session=session, round=finished, what="members", text=text)


def _cut_short(session: int, sessions: Sequence[Events], clients: Mapping[str, Events]) -> Iterator[Incident]:
    """A session whose server did not say how it ended."""
    before = [event for events in sessions[:session] for event in events]
    finished = max((event["round"] for event in before if event["event"] == "round-done"), default=0)
    here = sessions[session - 1]
    begun = [event["round"] for event in here if event["event"] == "round"]
    done = {event["round"] for event in here if event["event"] == "round-done"}
    later = {
        number: {event["round"] for event in events if event["event"] == "round"}
        for number, events in enumerate(sessions[session:], start=session + 1)
    }
    # A server that is lost before it wrote that the round begins is lost in the one that is held next.
    following = next((min(rounds) for rounds in later.values() if rounds), None)
    round = begun[-1] if begun and begun[-1] not in done else following
    lost = any(
        event["event"] == "ended" and event["code"] in SERVER_LOST for events in clients.values() for event in events
    )
    who = "The server was lost" if lost else f"Session {session} stopped"
    if round is None:
        text = f"{who} after round {finished}." if finished else f"{who} before the first round."
    else:
        again = next((number for number, rounds in later.items() if round in rounds), None)
        outcome = "The round was not repeated" if again is None else f"Session {again} repeated the round"
        text = f"{who} in round {round}. {outcome}."
    number = finished + 1 if round is None else round
    yield Incident(session=session, round=number, what="server-lost" if lost else "stopped", text=text)
