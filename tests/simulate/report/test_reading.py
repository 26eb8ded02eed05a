"""The state of a run, read from logs whose times and bytes are known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from tacit.parties.adaptation.events import LearningRoundLost, LearningSessionLost
from tacit.parties.inference.events import InferenceSessionEnded
from tacit.parties.runs.reading import read_state, set_aside
from tacit.parties.runs.state import RunState
from tacit.parties.session.events import (
    ClientRoundEnded,
    ConfigurationAccepted,
    HandshakeRefused,
    LinkLost,
    SendFailed,
    SessionEnded,
)
from tacit.protocol.core.events import Event, MessageRefused
from tacit.protocol.session.events import ClientLeft
from tacit.protocol.sum.events import ComplaintReceived, ComplaintSent
from tacit.protocol.sum.states import Phase
from tests.simulate.conftest import ended


def state(run: Any) -> RunState:
    return read_state(run.run.path / "events")


@pytest.fixture
def held(script: Any) -> Any:
    run = script()
    run.session()
    run.round(1)
    run.round(2)
    run.end()
    return run


def test_a_run_without_warnings(held: Any) -> None:
    found = state(held)
    assert found.server == "server"
    assert list(found.parties) == ["server", *held.clients]
    assert [client.name for client in found.clients] == held.clients
    assert [(round.number, round.status, round.seconds) for round in found.rounds] == [
        (1, "completed", 3.0),
        (2, "completed", 3.0),
    ]
    assert found.wall_seconds == 0.5 + 2 * 3.0
    assert found.ended == "all rounds are done"
    assert found.configured is not None
    assert found.configured.threshold == 3
    assert (found.warnings, found.strangers) == ([], {})


def test_time_and_bytes_are_added_up_by_phase(held: Any) -> None:
    found = state(held)
    for party in found.parties.values():
        assert party.seconds[Phase.TRAIN] == 2 * 1.0
        assert party.seconds[Phase.SHARE_KEYS] == 2 * 0.5
        assert dict(party.sent) == dict.fromkeys(Phase, 2 * 100)
        assert dict(party.received) == dict.fromkeys(Phase, 2 * 1000)
    assert [round.moved for round in found.rounds] == [len(Phase) * 1100] * 2


def test_spans_follow_each_other_through_the_round(held: Any) -> None:
    for round in state(held).rounds:
        for spans in round.spans.values():
            assert spans[0].start == round.began
            assert [span.end for span in spans[:-1]] == [span.start for span in spans[1:]]
            assert spans[-1].end == round.ended
            assert not any(span.open for span in spans)


def test_a_killed_client_is_in_its_phase_until_it_is_dropped(script: Any) -> None:
    run = script()
    run.session()
    run.round(1, dropped={"client-2": False}, killed=["client-2"])
    run.end()
    found = state(run)
    (round,) = found.rounds
    (drop,) = round.drops.values()
    assert (drop.member, drop.phase, drop.code) == ("client-2", "MASKED_INPUT", "TIMEOUT")
    assert round.result is not None
    assert [(one.party, one.included_in_sum) for one in round.result.dropped] == [("client-2", False)]
    last = round.spans["client-2"][-1]
    assert (last.phase, last.start - round.began, last.end - round.began) == (Phase.MASKED_INPUT, 2.0, 2.4375)
    assert last.open
    assert [(line.party, line.text) for line in found.warnings] == [
        ("client-2", "stopped: its log ends here (killed, or still running)")
    ]


def test_a_round_of_a_killed_server_is_unfinished_and_is_repeated_by_the_next_session(script: Any) -> None:
    run = script()
    run.session()
    run.round(1)
    run.round(2, status=None, dropped={"client-3": False})
    run.now += 1000.0
    run.session()
    run.round(2)
    run.end()
    found = state(run)
    assert [(r.session, r.number, r.status) for r in found.rounds] == [
        (1, 1, "completed"),
        (1, 2, "unfinished"),
        (2, 2, "completed"),
    ]
    assert [round.session for round in found.completed] == [1, 2]
    assert list(found.rounds[1].drops) == ["client-3"]
    assert found.wall_seconds == 2 * (0.5 + 3.0) + 3.0
    assert {line.session for line in found.warnings} == {1}
    assert {line.party for line in found.warnings} == {"server", *run.clients}


def test_a_round_without_result_ends_where_the_next_begins(script: Any) -> None:
    run = script()
    run.session()
    run.round(1, status=None)
    run.now += 1.0
    run.round(2)
    assert state(run).rounds[0].seconds == 4.0


def test_an_incomplete_last_line_is_left_out(held: Any) -> None:
    before = state(held)
    with held.run.events("client-1").open("a") as file:
        file.write('{"time": 1800000')
    assert state(held) == before


REFUSED = MessageRefused(member="client-1", code="VECTOR", detail="too long")
WARNINGS = [
    ("server", REFUSED, "refused a message of client-1: too long (VECTOR)"),
    ("client-1", MessageRefused(member="server", code="KEYS", detail="own key missing"), "server: own key missing"),
    ("server", ClientLeft(member="client-2", detail="its link was lost for 5 s"), "client-2 left: its link was lost"),
    ("server", ComplaintReceived(by="client-1", against="client-2"), "client-1 complained about the share of client-2"),
    ("client-1", ComplaintSent(against=["client-2", "client-3"]), "complained about the shares of client-2, client-3"),
    ("server", SendFailed(to="client-1", reason="not connected"), "could not send to client-1: not connected"),
    ("client-1", LinkLost(peer="server"), "lost the link to server"),
    ("client-1", ClientRoundEnded(round=1, code="THRESHOLD", detail="too few"), "over: too few (THRESHOLD)"),
    ("client-1", LearningSessionLost(code="LEFT", detail="the owner left"), "model owner is lost: the owner left"),
    ("client-1", LearningRoundLost(round=1, detail="a data owner was silent"), "round 1 is lost: a data owner was"),
    ("client-1", InferenceSessionEnded(peers=["client-2"], code="LEFT", detail="it left"), "client-2 over: it left"),
]


@pytest.mark.parametrize(("party", "event", "text"), WARNINGS)
def test_a_warning_is_kept(held: Any, party: str, event: Event, text: str) -> None:
    held.now -= 2.0
    held.log(party, event)
    (line,) = state(held).warnings
    assert (line.level, line.party, line.session, line.seconds) == ("warning", party, 1, 4.5 + 1.0)
    assert text in line.text


@pytest.mark.parametrize(
    "event",
    [
        ClientRoundEnded(round=2, code=None, detail=""),
        InferenceSessionEnded(peers=["client-2"], code=None, detail="the session is closed"),
        ConfigurationAccepted(scheme="fedavg", mode="active", session="", fixed_part=""),
    ],
)
def test_what_is_no_warning_is_not_kept(held: Any, event: Event) -> None:
    held.now -= 2.0
    held.log("client-1", event)
    assert state(held).warnings == []


def test_a_link_that_is_lost_after_the_end_is_no_warning(held: Any) -> None:
    held.log("client-1", LinkLost(peer="server"))
    assert state(held).warnings == []


def test_strangers_are_counted(held: Any) -> None:
    for _ in range(3):
        held.log("server", HandshakeRefused(reason="key is not in the roster", public_key="Z" * 40, address="10.0.0.7"))
    held.log("server", HandshakeRefused(reason="no handshake", public_key=None, address=None))
    known, unknown = state(held).strangers.values()
    assert (known.public_key, known.address, known.count) == ("Z" * 40, "10.0.0.7", 3)
    assert (unknown.public_key, unknown.address, unknown.count) == ("none shown", "unknown", 1)


def test_without_the_log_of_the_server_nothing_is_known_of_rounds(held: Any) -> None:
    held.run.events("server").unlink()
    found = state(held)
    assert (found.server, found.rounds, found.configured) == (None, [], None)
    assert found.parties["client-1"].seconds[Phase.TRAIN] == 2.0


def test_no_logs_at_all(script: Any) -> None:
    found = state(script())
    assert (found.parties, found.sessions, found.wall_seconds) == ({}, [], 0)


@pytest.mark.parametrize(
    ("event", "fields", "problem"),
    [
        ("phase-ended", {"round": 1, "phase": "LUNCH", "seconds": 1.0, "next": "TRAIN"}, "Invalid enum value 'LUNCH'"),
        ("phase-ended", {"round": 1, "phase": "TRAIN", "next": "SESSION"}, "missing required field `seconds`"),
        ("traffic-counted", {"round": 1, "phase": "TRAIN", "sent": "much", "received": 0}, "Expected `int`, got `str`"),
        ("handshake-refused", {}, "missing required field `reason`"),
        ("an-event-of-another-version", {}, "Invalid value 'an-event-of-another-version'"),
    ],
)
def test_a_log_is_read_up_to_a_line_that_is_no_event(held: Any, event: str, fields: Any, problem: str) -> None:
    expect_unread(held, partial(held.log_line, "server", event, **fields), problem)


def test_a_log_is_read_up_to_an_event_that_cannot_follow(held: Any) -> None:
    expect_unread(held, partial(held.log, "server", ended(9, held.clients)), "round 9 is over, and did not begin")


def expect_unread(held: Any, write: Callable[[], None], problem: str) -> None:
    """What stands behind a foreign line of the server's log changes nothing."""
    before = state(held)
    number = len(held.run.events("server").read_bytes().splitlines()) + 1
    write()
    held.log("server", SessionEnded(code="LEFT", detail="never read"))
    found = state(held)
    (unread,) = found.unread
    assert (unread.path, unread.line) == (held.run.events("server"), number)
    assert str(unread).startswith(f"{unread.path} is read up to line {number - 1}: line {number} is not of this run (")
    assert problem in unread.fault
    assert replace(found, unread=[]) == before


FOREIGN = {
    "a torn line": '{"time": 1800000{"time": 1800001.0, "party": "client-1", "event": "round-started"}',
    "no event": "[]",
    "no time": '{"time": "noon", "party": "client-1", "event": "session-ended", "code": null, "detail": ""}',
    "another party": '{"time": 1800000.0, "party": "client-2", "event": "session-ended", "code": null, "detail": ""}',
}


@pytest.mark.parametrize("line", FOREIGN.values(), ids=FOREIGN.keys())
def test_a_log_is_read_up_to_a_foreign_line(held: Any, line: str) -> None:
    before, path = state(held), held.run.events("client-1")
    number = len(path.read_bytes().splitlines()) + 1
    with path.open("a") as file:
        file.write(line + "\n")
    held.log("client-1", SessionEnded(code="LEFT", detail="never read"))
    found = state(held)
    assert [(unread.path, unread.line) for unread in found.unread] == [(path, number)]
    assert replace(found, unread=[]) == before


def test_what_cannot_be_read_is_set_aside(held: Any) -> None:
    """The lines that two processes wrote at once; a second time there is nothing to do."""
    path, before = held.run.events("server"), state(held)
    whole = path.read_bytes()
    held.log("server", ended(9, held.clients))
    held.log("server", SessionEnded(code=None, detail="of another session"))
    rest = path.read_bytes()[len(whole) :]
    (line,) = set_aside(held.run)
    assert line.endswith(f"the rest was moved to {path}.unread")
    assert (path.read_bytes(), path.with_name("server.jsonl.unread").read_bytes()) == (whole, rest)
    assert state(held) == before
    assert set_aside(held.run) == []
