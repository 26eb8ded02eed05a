"""Incidents of a run, in sentences: cheating clients, failed or incomplete rounds, changed members, lost servers.

All incidents follow from the state of the run. A killed server does not log its end: its loss is known from its
clients, and the round from its last events, or from those of the next session.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from tacit.parties.runs.state import RunState, without


class Incident(msgspec.Struct, frozen=True, kw_only=True):
    """One incident. session and round count from 1; what: `cheat`, `aborted`, `absent`, `members`, `copy`,
    `server-lost`, `stopped`."""

    session: int
    round: int
    what: str
    text: str


def incidents(state: RunState) -> list[Incident]:
    """The incidents of a run, in their order; none before the server proposed a configuration."""
    if state.configured is None:
        return []
    found: list[Incident] = []
    for number, session in enumerate(state.sessions, start=1):
        kinds = (_cheats, _aborted, _absent, _members, _copies)
        timed = [one for kind in kinds for one in kind(state, number)]
        found += [incident for _, incident in sorted(timed, key=lambda entry: entry[0])]
        if not session.ended:
            found.append(_cut_short(state, number))
    return found


def _cheats(state: RunState, session: int) -> Iterator[tuple[float, Incident]]:
    for where, event in state.cheats:
        if where == session:
            text = f"{event.party} cheated in round {event.round}: {event.detail}."
            yield event.time, Incident(session=session, round=event.round, what="cheat", text=text)


def _aborted(state: RunState, session: int) -> Iterator[tuple[float, Incident]]:
    for round in state.rounds:
        if round.session == session and (result := round.result) and result.status == "aborted":
            text = f"Round {round.number} was aborted ({result.code}): {result.detail}. The model stayed as it was."
            if result.culprit:
                text += f" At fault was {result.culprit}, which is out for the session."
            yield result.time, Incident(session=session, round=round.number, what="aborted", text=text)


def _absent(state: RunState, session: int) -> Iterator[tuple[float, Incident]]:
    """Rounds whose absent clients, or reasons, differ from those of the previous round."""
    before: Mapping[str, str] = {}
    for round in state.rounds:
        if round.session == session:
            if round.absent and round.absent != before:
                text = f"Round {round.number} began without {without(round.absent)}."
                yield round.began, Incident(session=session, round=round.number, what="absent", text=text)
            before = round.absent


def _members(state: RunState, session: int) -> Iterator[tuple[float, Incident]]:
    for where, finished, event in state.rosters:
        if where == session:
            when = f"after round {finished}" if finished else "before the first round"
            text = (
                f"Members changed {when}: from version {event.former} to {event.version} of the roster "
                f"({event.changes})."
            )
            yield event.time, Incident(session=session, round=finished, what="members", text=text)


def _copies(state: RunState, session: int) -> Iterator[tuple[float, Incident]]:
    for where, event in state.copies:
        if where == session:
            finished = max((one.number for one in state.rounds if one.result and one.ended <= event.time), default=0)
            yield event.time, Incident(session=session, round=finished, what="copy", text=f"{event.text}.")


def _cut_short(state: RunState, session: int) -> Incident:
    here = [round for round in state.rounds if round.session == session]
    later = [round for round in state.rounds if round.session > session]
    finished = max((round.number for round in state.rounds if round.session <= session and round.result), default=0)
    open_here = here[-1].number if here and here[-1].result is None else None
    # A server lost before it wrote that a round begins is counted as lost in the next round.
    following = min((round.number for round in later if round.session == later[0].session), default=None)
    number = following if open_here is None else open_here
    lost = state.sessions[session - 1].server_lost
    who = "The server was lost" if lost else f"Session {session} stopped"
    if number is None:
        text = f"{who} after round {finished}." if finished else f"{who} before the first round."
    else:
        again = next((round.session for round in later if round.number == number), None)
        outcome = "The round was not repeated" if again is None else f"Session {again} repeated the round"
        text = f"{who} in round {number}. {outcome}."
    what = "server-lost" if lost else "stopped"
    return Incident(session=session, round=finished + 1 if number is None else number, what=what, text=text)
