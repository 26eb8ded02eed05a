"""A first sum of statistics in the logs is none of the run's sessions or rounds."""

from __future__ import annotations

from typing import Any

from tacit.parties.runs.experiment import load
from tacit.parties.runs.incidents import incidents
from tacit.parties.runs.reading import read_state, recorded
from tacit.parties.session.events import (
    LinkLost,
    ListeningStarted,
    PhaseEnded,
    SessionEnded,
    StatisticsSummed,
    TrafficCounted,
)
from tacit.protocol.session.events import ClientJoined
from tacit.protocol.sum.states import Phase
from tacit.simulate.dashboard.view import Live, page
from tacit.simulate.report.page import make_report


def first_sum(run: Any, *, code: str | None = None, detail: str = "") -> None:
    """As a EventLog writes it that is outside of the run; code: why there is no sum."""
    run.log("server", ListeningStarted(address="tcp://127.0.0.1:5555"))
    for name in ("server", *run.clients):
        run.log(name, PhaseEnded(round=0, phase=Phase.SESSION, seconds=0.5, next=Phase.TRAIN), after=0.5)
        run.log(name, TrafficCounted(round=0, phase=Phase.TRAIN, sent=7, received=7), after=0.75)
        run.log(name, PhaseEnded(round=0, phase=Phase.TRAIN, seconds=0.5, next=Phase.SESSION), after=1.0)
    common = {"code": code, "detail": detail, "culprit": None, "cohort": run.clients}
    if code is None:
        found = StatisticsSummed(status="completed", survivors=run.clients, pixels=9, mean=[0.5], std=[0.1], **common)
    else:
        found = StatisticsSummed(status="aborted", survivors=[], **common)
    run.log("server", found, after=1.0)
    run.now += 2.0


def test_it_comes_before_the_first_session(script: Any) -> None:
    run = script()
    first_sum(run)
    run.session()
    run.log("server", ClientJoined(member="client-1"))
    run.round(1)
    run.log("server", LinkLost(peer="client-1"))
    run.end()
    state = read_state(run.run.path)
    assert len(state.sessions) == 1
    assert [(round.number, round.session, round.moved) for round in state.rounds] == [(1, 1, 8 * 1100)]
    assert [line.text for line in state.warnings] == ["lost the link to client-1"]
    assert state.statistics is not None
    assert state.statistics.pixels == 9
    assert incidents(state) == []


def test_one_that_failed_is_over_when_the_server_is_started_again(script: Any) -> None:
    run = script()
    first_sum(run, code="VECTOR", detail="these pixels do not exist")
    run.log("server", SessionEnded(code="THRESHOLD", detail="only 2 clients are there"))
    alone = read_state(run.run.path)
    assert (alone.server, alone.ended) == ("server", "only 2 clients are there")
    assert "only 2 clients are there" in make_report(run.run)
    run.now += 10.0
    first_sum(run)
    run.session()
    run.round(1)
    live = Live(load(run.run.experiment), recorded(run.run.path / "events"))
    assert live.state.ended is None
    assert live.state.parties["server"].ended is None
    assert "ended:" not in page(live)
    assert incidents(live.state)[0].what == "stopped"  # The log has no end yet.
