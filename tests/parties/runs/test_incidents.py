"""What happened in a run, told from event logs: whatever ends a session, and wherever its last round was."""

from typing import Any

import pytest

from tacit.parties.runs.incidents import Incident, incidents

Events = list[dict[str, Any]]
LOST = {"event": "ended", "code": "LEFT", "detail": "the link to server is lost"}
OVER = {"event": "ended", "code": None, "detail": "all rounds are done"}
CONFIGURED = {"event": "configuration"}


def begun(number: int) -> dict[str, Any]:
    return {"event": "round", "round": number, "cohort": ["client-1"]}


def done(number: int, **fields: Any) -> dict[str, Any]:
    return {"event": "round-done", "round": number, "status": "completed", "code": None, "culprit": "", **fields}


def told(*entries: tuple[str, dict[str, Any]]) -> list[Incident]:
    """The incidents of logs in which these parties wrote these events, one a second."""
    logs: dict[str, Events] = {"server": [], "client-1": []}
    for time, (party, event) in enumerate(entries):
        logs[party].append({"time": float(time), **event})
    return incidents(logs)


def server(*events: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [("server", event) for event in events]


FIRST = server(CONFIGURED, begun(1), done(1))
SECOND = server(CONFIGURED, begun(2), done(2), OVER)


@pytest.mark.parametrize(
    ("entries", "round", "what", "text"),
    [
        ([*FIRST, *server(begun(2)), ("client-1", LOST)], 2, "server-lost",
         "The server was lost in round 2. The round was not repeated."),
        ([*FIRST, *server(begun(2)), ("client-1", LOST), *SECOND], 2, "server-lost",
         "The server was lost in round 2. Session 2 repeated the round."),
        ([*FIRST, ("client-1", LOST)], 2, "server-lost", "The server was lost after round 1."),
        ([*FIRST, ("client-1", LOST), *SECOND], 2, "server-lost",
         "The server was lost in round 2. Session 2 repeated the round."),
        ([*server(CONFIGURED), ("client-1", LOST | {"code": "TIMEOUT"})], 1, "server-lost",
         "The server was lost before the first round."),
        ([*FIRST, *server(begun(2))], 2, "stopped", "Session 1 stopped in round 2. The round was not repeated."),
        ([*FIRST, *SECOND], 2, "stopped", "Session 1 stopped in round 2. Session 2 repeated the round."),
        (FIRST, 2, "stopped", "Session 1 stopped after round 1."),
    ],
)  # fmt: skip
def test_a_session_that_ended_before_its_time(
    entries: list[tuple[str, dict[str, Any]]], round: int, what: str, text: str
) -> None:
    assert told(*entries) == [Incident(session=1, round=round, what=what, text=text)]


def test_a_session_that_ends_before_a_round_is_named_with_the_session_that_held_it() -> None:
    found = told(*FIRST, ("client-1", LOST), *server(CONFIGURED), ("client-1", LOST), *SECOND)
    text = "The server was lost in round 2. Session 3 repeated the round."
    assert [(incident.session, incident.text) for incident in found] == [(1, text), (2, text)]


def test_aborted_rounds_and_cheats_stand_in_their_order() -> None:
    cheat = {"event": "cheat", "round": 1, "how": "words", "detail": "it sent noise"}
    spoiled = {"status": "aborted", "code": "VECTOR", "detail": "no sum"}
    secret = {"status": "aborted", "code": "SECRET", "detail": "another seed", "culprit": "client-1"}
    entries = [*server(CONFIGURED, begun(1)), ("client-1", cheat), *server(done(1, **spoiled), done(2, **secret), OVER)]
    assert told(*entries) == [
        Incident(session=1, round=1, what="cheat", text="client-1 cheated in round 1: it sent noise."),
        Incident(
            session=1, round=1, what="aborted",
            text="Round 1 was aborted (VECTOR): no sum. The model stayed as it was.",
        ),
        Incident(
            session=1, round=2, what="aborted",
            text="Round 2 was aborted (SECRET): another seed. The model stayed as it was. At fault was client-1, which "
            "is out for the session.",
        ),
    ]  # fmt: skip


def test_where_nothing_happened_nothing_is_told() -> None:
    assert told(*FIRST, *server(begun(2), done(2), OVER)) == []
    assert told(("client-1", LOST)) == []


def test_whose_absence_is_new_is_told_once() -> None:
    killed, lost = "its process ended: killed", "its link was lost"
    absences: list[dict[str, str]] = [
        {},
        {"b": killed},
        {"b": killed},
        {"b": killed, "c": killed, "a": lost, "d": killed},
        {},
        {"b": killed},
    ]
    rounds = [begun(number) | {"absent": absent} for number, absent in enumerate(absences, start=1)]
    assert [(one.round, one.what, one.text) for one in told(*server(CONFIGURED, *rounds, OVER))] == [
        (2, "absent", f"Round 2 began without b ({killed})."),
        (4, "absent", f"Round 4 began without b, c and d ({killed}), a ({lost})."),
        (6, "absent", f"Round 6 began without b ({killed})."),
    ]
