"""What happened in a run, told from its state: whatever ends a session, and wherever its last round was."""

from typing import Any

import msgspec
import pytest

from tacit.parties.runs.events import ClientCheated
from tacit.parties.runs.incidents import Incident, incidents
from tacit.parties.runs.state import RunState
from tacit.parties.session.events import (
    ConfigurationProposed,
    CopyDetected,
    ListeningStarted,
    RosterUpdated,
    RoundEnded,
    SessionEnded,
)
from tacit.protocol.core.events import Event
from tacit.protocol.session.events import RoundStarted

LOST = SessionEnded(code="LEFT", detail="the link to server is lost")
OVER = SessionEnded(code=None, detail="all rounds are done")
CONFIGURED = ConfigurationProposed(
    parameters=9, ring_bits=24, vector_bytes=30, step=0.1, max_weight=9, colluders=0, cohort=1, threshold=1,
    neighbours=0, configuration_hash="ab",
)  # fmt: skip


def begun(number: int, **absent: str) -> RoundStarted:
    return RoundStarted(round=number, cohort=["client-1"], absent=absent)


def done(number: int, **fields: Any) -> RoundEnded:
    well: dict[str, Any] = {"status": "completed", "code": None, "detail": "", "culprit": None, "seconds": 1.0}
    lists: dict[str, Any] = {"cohort": ["client-1"], "survivors": ["client-1"], "dropped": [], "absent": {}}
    return RoundEnded(round=number, repeated=False, **{**well, **lists, **fields})


def told(*entries: tuple[str, Event]) -> list[Incident]:
    """The incidents of a run in which these parties reported these events, one a second."""
    state = RunState()
    for time, (party, event) in enumerate(entries):
        state.take(msgspec.structs.replace(event, time=float(time), party=party))
    return incidents(state.close())


def server(*events: Event) -> list[tuple[str, Event]]:
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
        ([*server(CONFIGURED), ("client-1", msgspec.structs.replace(LOST, code="TIMEOUT"))], 1, "server-lost",
         "The server was lost before the first round."),
        ([*FIRST, *server(begun(2))], 2, "stopped", "Session 1 stopped in round 2. The round was not repeated."),
        ([*FIRST, *SECOND], 2, "stopped", "Session 1 stopped in round 2. Session 2 repeated the round."),
        (FIRST, 2, "stopped", "Session 1 stopped after round 1."),
    ],
)  # fmt: skip
def test_a_session_that_ended_before_its_time(
    entries: list[tuple[str, Event]], round: int, what: str, text: str
) -> None:
    assert told(*entries) == [Incident(session=1, round=round, what=what, text=text)]


def test_a_session_that_ends_before_a_round_is_named_with_the_session_that_held_it() -> None:
    found = told(*FIRST, ("client-1", LOST), *server(CONFIGURED), ("client-1", LOST), *SECOND)
    text = "The server was lost in round 2. Session 3 repeated the round."
    assert [(incident.session, incident.text) for incident in found] == [(1, text), (2, text)]


def test_aborted_rounds_and_cheats_stand_in_their_order() -> None:
    cheat = ClientCheated(round=1, how="words", detail="it sent noise")
    spoiled = done(1, status="aborted", code="VECTOR", detail="no sum")
    secret = done(2, status="aborted", code="SECRET", detail="another seed", culprit="client-1")
    entries = [*server(CONFIGURED, begun(1)), ("client-1", cheat), *server(spoiled, begun(2), secret, OVER)]
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


def test_a_server_that_proposed_nothing_held_no_session() -> None:
    """A first sum of statistics that failed, as the logs of the run have it."""
    state = RunState(server="server")
    for time, event in enumerate((ListeningStarted(address="tcp://127.0.0.1:1"), OVER)):
        state.take(msgspec.structs.replace(event, time=float(time), party="server"))
    assert incidents(state.close()) == []


def test_later_versions_of_the_roster_stand_after_the_round_that_was_over() -> None:
    changed = RosterUpdated(
        former=1, version=2, fingerprint="ab", added=["client-9"], removed=[], rotated=["client-1"], regrouped=[]
    )
    again = msgspec.structs.replace(changed, former=2, version=3, added=[], rotated=[])
    ends = SessionEnded(code="ROSTER", detail="it goes on with another version of the roster")
    found = told(*server(CONFIGURED, changed, ends), *FIRST, *server(again, ends), *SECOND)
    assert [(one.session, one.round, one.what, one.text) for one in found] == [
        (
            1, 0, "members",
            "Members changed before the first round: from version 1 to 2 of the roster (added client-9; rotated "
            "client-1).",
        ),
        (2, 1, "members", "Members changed after round 1: from version 2 to 3 of the roster (the same members)."),
    ]  # fmt: skip


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
    rounds: list[Event] = []
    for number, absent in enumerate(absences, start=1):
        rounds += [begun(number, **absent), done(number)]
    assert [(one.round, one.what, one.text) for one in told(*server(CONFIGURED, *rounds, OVER))] == [
        (2, "absent", f"Round 2 began without b ({killed})."),
        (4, "absent", f"Round 4 began without b, c and d ({killed}), a ({lost})."),
        (6, "absent", f"Round 6 began without b ({killed})."),
    ]


def test_a_copied_folder_is_an_incident() -> None:
    copy = CopyDetected(peer="client-1", detail="it presents an old token", address="10.0.0.8", other="10.0.0.9")
    (found,) = told(*server(CONFIGURED, begun(1), done(1), copy, OVER))
    assert (found.session, found.round, found.what) == (1, 1, "copy")
    assert found.text == "client-1 (it is at 10.0.0.8, the other at 10.0.0.9): it presents an old token."
