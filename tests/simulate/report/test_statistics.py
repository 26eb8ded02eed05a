"""A first sum of statistics in the logs is none of the run's sessions or rounds."""

from __future__ import annotations

from typing import Any

from tacit.parties.runs.experiment import load
from tacit.parties.runs.incidents import incidents
from tacit.simulate.dashboard.view import Live, page
from tacit.simulate.report.page import make_report
from tacit.simulate.report.reading import read_history, recorded


def first_sum(run: Any, **outcome: Any) -> None:
    """As a Diary writes it that is outside of the run."""
    run.log("server", "listening", address="tcp://127.0.0.1:5555")
    for name in ("server", *run.clients):
        run.log(name, "phase", at=0.5, round=0, phase="SESSION", seconds=0.5, next="TRAIN")
        run.log(name, "traffic", at=0.75, round=0, phase="TRAIN", sent=7, received=7)
        run.log(name, "phase", at=1.0, round=0, phase="TRAIN", seconds=0.5, next="SESSION")
    run.log("server", "statistics", at=1.0, cohort=run.clients, **outcome)
    run.now += 2.0


def test_it_comes_before_the_first_session(script: Any) -> None:
    run = script()
    first_sum(run, status="completed", code=None, detail="", survivors=run.clients, pixels=9, mean=[0.5], std=[0.1])
    run.session()
    run.round(1)
    run.log("server", "link-lost", peer="client-1")
    run.end()
    history = read_history(run.run.path)
    assert len(history.sessions) == 1
    assert [(round.number, round.session, round.moved) for round in history.rounds] == [(1, 1, 8 * 1100)]
    assert [trouble.what for trouble in history.troubles] == ["lost the link to"]
    assert history.incidents == []


def test_one_that_failed_is_over_when_the_server_is_started_again(script: Any) -> None:
    run = script()
    first_sum(run, status="aborted", code="VECTOR", detail="these pixels do not exist", survivors=[])
    run.log("server", "ended", code="THRESHOLD", detail="only 2 clients are there")
    alone = read_history(run.run.path)
    assert (alone.server, alone.ended) == ("server", "only 2 clients are there")
    assert "only 2 clients are there" in make_report(run.run)
    run.now += 10.0
    first_sum(run, status="completed", code=None, detail="", survivors=run.clients, pixels=9, mean=[0.5], std=[0.1])
    run.session()
    run.round(1)
    history = Live(load(run.run.experiment), recorded(run.run.path / "events")).history
    assert history.ended is None
    assert history.parties["server"].ended is None
    assert "ended:" not in page(Live(load(run.run.experiment), recorded(run.run.path / "events")))
    assert incidents({"server": recorded(run.run.path / "events")})[0].what == "stopped"  # The log has no end yet.
