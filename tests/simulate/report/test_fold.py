"""The fold over events: what is known in the middle of a run, when only the events up to there have come."""

from __future__ import annotations

from dataclasses import replace
from operator import itemgetter
from typing import Any

import pytest

from tacit.parties.session.event_log import read
from tacit.protocol.core.messages import Phase
from tacit.simulate.report.history import Contact, Fold
from tacit.simulate.report.reading import read_history


def events_of(run: Any) -> list[dict[str, Any]]:
    logs = [read(run.run.events(name)) for name in ("server", *run.clients)]
    return sorted((event for log in logs for event in log), key=itemgetter("time"))


def event(party: str, kind: str, time: float, **fields: Any) -> dict[str, Any]:
    return {"time": time, "party": party, "event": kind, **fields}


def test_events_one_by_one_make_the_history_of_the_files(script: Any) -> None:
    run = script()
    run.session()
    run.round(1, dropped={"client-2": False}, killed=["client-2"])
    run.round(2, status=None)
    run.now += 100.0
    run.session()
    run.round(2, status="aborted")
    run.round(3)
    run.end()
    fold = Fold()
    for one in events_of(run):
        fold.take(one)
    # Incidents are told in words at the end, from the files.
    assert fold.close() == replace(read_history(run.run.path / "events"), incidents=[])


def test_a_round_is_open_until_its_result_comes(script: Any) -> None:
    run = script()
    run.session()
    began = run.now
    run.round(1)
    fold = Fold()
    for one in events_of(run):
        if one["event"] != "round-done":
            fold.take(one)
    (round,) = fold.history.rounds
    assert (round.status, round.began, round.ended) == ("unfinished", began, began + 3.0)
    assert fold.history.parties["client-1"].visits[Phase.TRAIN] == 1


def test_who_is_where_and_who_is_waited_for_is_known_in_the_middle() -> None:
    fold = Fold()
    fold.take(event("server", "link-up", 1.0, peer="client-1"))
    fold.take(event("client-1", "phase", 2.0, round=0, phase="SESSION", seconds=1.0, next="TRAIN"))
    assert fold.history.server is None
    figures = {"parameters": 9, "ring_bits": 24, "vector_bytes": 30, "step": 0.1, "threshold": 2, "neighbours": 2}
    fold.take(event("server", "configuration", 3.0, **figures, configuration_hash="ab"))
    fold.take(event("server", "link-up", 3.5, peer="client-1"))
    fold.take(event("server", "waiting", 4.0, on=["client-1"]))
    fold.take(event("client-1", "alive", 5.0))
    history = fold.history
    client = history.parties["client-1"]
    assert (client.phase, client.since, client.heard) == (Phase.TRAIN, 2.0, 5.0)
    assert (history.server, history.waiting, history.waiting_since) == ("server", ("client-1",), 4.0)
    assert history.links == {"client-1": Contact(True, 3.5)}
    assert (len(history.sessions), history.rounds, history.troubles) == (1, [], [])
    fold.take(event("server", "link-lost", 6.0, peer="client-1"))
    assert history.links == {"client-1": Contact(False, 6.0)}


def test_a_client_that_was_started_again_is_there(script: Any) -> None:
    run = script()
    run.session()
    fold = Fold()
    for one in events_of(run):
        fold.take(one)
    fold.take(event("client-1", "failed", run.now, reason="its process ended unexpectedly: killed by SIGKILL"))
    client = fold.history.parties["client-1"]
    assert client.ended == "its process ended unexpectedly: killed by SIGKILL"
    assert [trouble.what for trouble in fold.history.troubles] == ["failed"]
    fold.take(event("client-1", "alive", run.now + 1.0))
    assert client.ended is None
    fold.take(event("client-1", "ended", run.now + 2.0, code=None, detail="all rounds are done"))
    fold.take(event("client-1", "work", run.now + 3.0, seconds={"masking": 1.0}))
    assert client.ended == "all rounds are done"


def test_a_phase_may_be_told_before_the_round_began(script: Any) -> None:
    """By a clock that is a little behind the server's."""
    run = script()
    run.session()
    fold = Fold()
    for one in events_of(run):
        fold.take(one)
    fold.take(event("client-1", "phase", run.now, round=1, phase="TRAIN", seconds=1.0, next="SHARE_KEYS"))
    fold.take(event("server", "round", run.now + 0.5, round=1, cohort=run.clients))
    (round,) = fold.history.rounds
    assert [span.phase for span in round.spans["client-1"]] == [Phase.TRAIN]


@pytest.mark.parametrize("early", [True, False])
def test_a_model_that_clients_evaluate_has_the_mean_of_what_they_found(script: Any, early: bool) -> None:
    run = script()
    run.session()
    run.round(1)
    *events, done = sorted(events_of(run), key=lambda one: one["event"] == "round-done")
    done |= {"accuracy": None, "loss": None}
    found = [
        event(
            f"client-{number}", "evaluated", run.now, round=1, accuracy=0.25 * number, loss=1.0,
            balanced_accuracy=0.5 * number,
        )
        for number in (1, 2)
    ]  # fmt: skip
    fold = Fold()
    for one in (*events, *found, done) if early else (*events, done, *found):
        fold.take(one)
    (round,) = fold.history.rounds
    assert round.result is not None
    figures = round.result.accuracy, round.result.balanced_accuracy, round.result.loss
    assert figures == (0.375, 0.75, 1.0)
    assert fold.history.judged_on == "test images, as clients found it"


def test_a_session_that_goes_on_with_another_roster_ends_in_order_for_who_takes_it_up(script: Any) -> None:
    """The server says what follows before the slower of the clients has said that its session is over."""
    run = script()
    run.session()
    run.round(1)
    fold = Fold()
    for one in events_of(run):
        fold.take(one)
    for party in ("server", "client-1"):
        fold.take(event(party, "roster", run.now, former=1, version=2, added=[], removed=["client-2"]))
    fold.take(event("server", "ended", run.now, code="ROSTER", detail="it goes on with version 2 of the roster"))
    began = run.now
    run.session()
    for one in events_of(run):
        if one["time"] >= began:
            fold.take(one)
    for party in ("client-1", "client-2"):
        fold.take(event(party, "ended", run.now, code="ROSTER", detail="version 2"))
    troubles = fold.history.troubles
    assert not [one.what for one in troubles if one.party in ("server", "client-1")]
    assert [one.what for one in troubles if one.party == "client-2"][-1] == "ended the session early"
    fold.take(event("client-1", "ended", run.now, code="ROSTER", detail="the server holds another roster"))
    assert [one.what for one in troubles if one.party == "client-1"] == ["ended the session early"]


def configured(**more: str) -> dict[str, Any]:
    figures = {"parameters": 9, "ring_bits": 24, "vector_bytes": 30, "step": 0.1, "threshold": 2, "neighbours": 2}
    return event("server", "configuration", 3.0, **figures, configuration_hash="ab", **more)


@pytest.mark.parametrize(
    ("evaluates", "images", "judges"),
    [
        ({}, "the test images", True),
        ({"evaluates": "images"}, "the test images", True),
        ({"evaluates": "sums"}, "the images that clients train on, by their sum", False),
    ],
)
def test_it_is_known_what_accuracies_are_of(evaluates: dict[str, str], images: str, judges: bool) -> None:
    fold = Fold()
    fold.take(configured(**evaluates))
    assert (fold.history.judged_on, fold.history.judges) == (images, judges)


def test_refusals_are_counted_by_code(script: Any) -> None:
    run = script()
    run.session()
    fold = Fold()
    for one in events_of(run):
        fold.take(one)
    for code in ("VECTOR", "SHARES", "VECTOR"):
        fold.take(event("server", "refused", run.now, member="client-1", code=code, detail=""))
    assert fold.history.refusals == {"VECTOR": 2, "SHARES": 1}
