"""The history of a run, read from logs whose times and bytes are known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tacit.protocol.core.messages import Phase
from tacit.simulate.report.history import History
from tacit.simulate.report.reading import read_history, set_aside


def history(run: Any) -> History:
    return read_history(run.run.path / "events")


@pytest.fixture
def held(script: Any) -> Any:
    """One session of two rounds, complete."""
    run = script()
    run.session()
    run.round(1)
    run.round(2)
    run.end()
    return run


def test_a_run_without_trouble(held: Any) -> None:
    found = history(held)
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
    assert (found.troubles, found.strangers) == ([], {})


def test_time_and_bytes_are_added_up_by_phase(held: Any) -> None:
    found = history(held)
    for party in found.parties.values():
        assert party.seconds[Phase.TRAIN] == 2 * 1.0
        assert party.seconds[Phase.SHARE_KEYS] == 2 * 0.5
        assert dict(party.sent) == dict.fromkeys(Phase, 2 * 100)
        assert dict(party.received) == dict.fromkeys(Phase, 2 * 1000)
    assert [round.moved for round in found.rounds] == [len(Phase) * 1100] * 2


def test_spans_follow_each_other_through_the_round(held: Any) -> None:
    for round in history(held).rounds:
        for spans in round.spans.values():
            assert spans[0].start == round.began
            assert [span.end for span in spans[:-1]] == [span.start for span in spans[1:]]
            assert spans[-1].end == round.ended
            assert not any(span.open for span in spans)


def test_clients_are_listed_in_the_order_of_their_numbers(script: Any) -> None:
    run = script(clients=11)
    run.session()
    assert [client.name for client in history(run).clients] == run.clients


def test_a_killed_client_is_in_its_phase_until_it_is_dropped(script: Any) -> None:
    run = script()
    run.session()
    run.round(1, dropped={"client-2": False}, killed=["client-2"])
    run.end()
    found = history(run)
    (round,) = found.rounds
    (drop,) = round.drops
    assert (drop.party, drop.phase, drop.code, drop.included_in_sum) == ("client-2", "MASKED_INPUT", "TIMEOUT", False)
    last = round.spans["client-2"][-1]
    assert (last.phase, last.start - round.began, last.end - round.began) == (Phase.MASKED_INPUT, 2.0, 2.4375)
    assert last.open
    assert [(trouble.party, trouble.what) for trouble in found.troubles] == [("client-2", "stopped: its log ends here")]


def test_a_round_of_a_killed_server_is_unfinished_and_is_repeated_by_the_next_session(script: Any) -> None:
    run = script()
    run.session()
    run.round(1)
    run.round(2, status=None, dropped={"client-3": False})
    run.now += 1000.0
    run.session()
    run.round(2)
    run.end()
    found = history(run)
    assert [(r.session, r.number, r.status) for r in found.rounds] == [
        (1, 1, "completed"),
        (1, 2, "unfinished"),
        (2, 2, "completed"),
    ]
    assert [round.session for round in found.completed] == [1, 2]
    assert [drop.included_in_sum for drop in found.rounds[1].drops] == [None]
    assert found.wall_seconds == 2 * (0.5 + 3.0) + 3.0
    assert {trouble.session for trouble in found.troubles} == {1}
    assert {trouble.party for trouble in found.troubles} == {"server", *run.clients}


def test_a_round_without_result_ends_where_the_next_begins(script: Any) -> None:
    run = script()
    run.session()
    run.round(1, status=None)
    run.now += 1.0
    run.round(2)
    assert history(run).rounds[0].seconds == 4.0


def test_an_incomplete_last_line_is_left_out(held: Any) -> None:
    before = history(held)
    with held.run.events("client-1").open("a") as file:
        file.write('{"time": 1800000')
    assert history(held) == before


TROUBLES = [
    ("server", "refused", {"member": "client-1", "code": "VECTOR", "detail": "too long"}, "client-1", "VECTOR"),
    ("client-1", "refused", {"from": "server", "code": "KEYS", "detail": "own key missing"}, "server", "KEYS"),
    ("server", "left", {"member": "client-2", "detail": "its link was lost for 5 s"}, "client-2", ""),
    ("server", "complaint", {"by": "client-1", "against": "client-2"}, "client-2", ""),
    ("client-1", "complaint", {"against": ["client-2", "client-3"]}, "client-2, client-3", ""),
    ("server", "not-sent", {"to": "client-1", "reason": "not connected"}, "client-1", ""),
    ("server", "link-lost", {"peer": "client-1"}, "client-1", ""),
    ("client-1", "round-over", {"round": 1, "code": "THRESHOLD", "detail": "too few"}, "", "THRESHOLD"),
    ("client-1", "session-lost", {"code": "LEFT", "detail": "the model owner left"}, "", "LEFT"),
    ("client-1", "round-lost", {"round": 1, "detail": "a data owner was silent"}, "", ""),
    ("client-1", "session-over", {"peer": "client-2", "code": "LEFT", "detail": "it left"}, "client-2", "LEFT"),
]


@pytest.mark.parametrize(("party", "event", "fields", "about", "code"), TROUBLES)
def test_trouble_is_told(held: Any, party: str, event: str, fields: Any, about: str, code: str) -> None:
    held.now -= 2.0
    held.log(party, event, **fields)
    (trouble,) = history(held).troubles
    assert (trouble.party, trouble.about, trouble.code) == (party, about, code)
    expected = fields.get("detail") or fields.get("reason") or ("by client-1" if "by" in fields else "")
    assert trouble.detail == expected


@pytest.mark.parametrize(
    ("party", "event", "fields"),
    [
        ("client-1", "link-lost", {"peer": "server"}),
        ("client-1", "round-over", {"round": 2, "code": None, "detail": ""}),
        ("client-1", "session-over", {"peer": "client-2", "code": None, "detail": "the session is closed"}),
        ("client-1", "accepted", {"scheme": "fedavg", "mode": "active"}),
        ("client-1", "an event of a later version", {}),
    ],
)
def test_what_is_no_trouble_is_not_told(held: Any, party: str, event: str, fields: Any) -> None:
    held.log(party, event, **fields)
    assert history(held).troubles == []


def test_strangers_are_counted(held: Any) -> None:
    for _ in range(3):
        held.log("server", "stranger", reason="key is not in the roster", public_key="Z" * 40, address="10.0.0.7")
    held.log("server", "stranger", reason="no handshake", public_key=None, address=None)
    known, unknown = history(held).strangers.values()
    assert (known.public_key, known.address, known.count) == ("Z" * 40, "10.0.0.7", 3)
    assert (unknown.public_key, unknown.address, unknown.count) == ("none shown", "unknown", 1)


def test_without_the_log_of_the_server_nothing_is_known_of_rounds(held: Any) -> None:
    held.run.events("server").unlink()
    found = history(held)
    assert (found.server, found.rounds, found.configured) == (None, [], None)
    assert found.parties["client-1"].seconds[Phase.TRAIN] == 2.0


def test_no_logs_at_all(script: Any) -> None:
    found = history(script())
    assert (found.parties, found.sessions, found.wall_seconds) == ({}, [], 0)


@pytest.mark.parametrize(
    ("event", "fields", "problem"),
    [
        ("phase", {"round": 1, "phase": "LUNCH", "seconds": 1.0, "next": "TRAIN"}, "Invalid enum value 'LUNCH'"),
        ("phase", {"round": 1, "phase": "TRAIN", "next": "SESSION"}, "missing required field `seconds`"),
        ("traffic", {"round": 1, "phase": "TRAIN", "sent": "much", "received": 0}, "Expected `int`, got `str`"),
        ("round-done", {"round": 9}, "no 9"),
        ("stranger", {}, "no 'public_key'"),
    ],
)
def test_a_log_is_read_up_to_an_event_that_is_not_ours(held: Any, event: str, fields: Any, problem: str) -> None:
    before = history(held)
    number = len(held.run.events("server").read_bytes().splitlines()) + 1
    held.log("server", event, **fields)
    held.log("server", "ended", code="LEFT", detail="never read")
    found = history(held)
    (unread,) = found.unread
    assert (unread.path, unread.line) == (held.run.events("server"), number)
    assert str(unread).startswith(f"{unread.path} is read up to line {number - 1}: line {number} is not of this run (")
    assert problem in unread.fault
    assert replace(found, unread=[]) == before


FOREIGN = {
    "a torn line": '{"time": 1800000{"time": 1800001.0, "party": "client-1", "event": "round"}',
    "no event": "[]",
    "no time": '{"time": "noon", "party": "client-1", "event": "ended"}',
    "another party": '{"time": 1800000.0, "party": "client-2", "event": "ended", "code": null, "detail": ""}',
}


@pytest.mark.parametrize("line", FOREIGN.values(), ids=FOREIGN.keys())
def test_a_log_is_read_up_to_a_foreign_line(held: Any, line: str) -> None:
    before, path = history(held), held.run.events("client-1")
    number = len(path.read_bytes().splitlines()) + 1
    with path.open("a") as file:
        file.write(line + "\n")
    held.log("client-1", "ended", code="LEFT", detail="never read")
    found = history(held)
    assert [(unread.path, unread.line) for unread in found.unread] == [(path, number)]
    assert replace(found, unread=[]) == before


def test_what_cannot_be_read_is_set_aside(held: Any) -> None:
    """The lines that two processes wrote at once; a second time there is nothing to do."""
    path, before = held.run.events("server"), history(held)
    whole = path.read_bytes()
    held.log("server", "round-done", round=9)
    held.log("server", "ended", code=None, detail="of another session")
    rest = path.read_bytes()[len(whole) :]
    (line,) = set_aside(held.run)
    assert line.endswith(f"the rest was moved to {path}.unread")
    assert (path.read_bytes(), path.with_name("server.jsonl.unread").read_bytes()) == (whole, rest)
    assert history(held) == before
    assert set_aside(held.run) == []
