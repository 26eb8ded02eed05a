"""The metrics: what Prometheus would read, by its own parser."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tacit.parties.runs.experiment import load
from tacit.parties.runs.reading import recorded
from tacit.parties.runs.state import RunState
from tacit.protocol.core.errors import Code
from tacit.protocol.session.events import RoundStarted
from tacit.protocol.sum.states import Phase
from tacit.simulate.dashboard.metrics import Metrics
from tacit.simulate.dashboard.view import Live


def read(state: RunState) -> dict[tuple[str, ...], float]:
    text = Metrics(lambda: state).text().decode()
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.fixture
def state(eventful: Any) -> RunState:
    return Live(load(eventful.run.experiment), recorded(eventful.run.path / "events")).state


def test_the_figures_are_those_of_the_run(state: RunState) -> None:
    found = read(state)
    assert found["tacit_rounds_total", "completed"] == 2
    assert found["tacit_rounds_total", "aborted"] == 1
    assert found["tacit_rounds_total", "unfinished"] == 0
    assert found["tacit_round_number",] == 3
    assert found["tacit_last_round_seconds",] == 3.0
    assert found["tacit_accuracy",] == 0.25
    assert (found["tacit_phase_seconds_count", "TRAIN"], found["tacit_phase_seconds_sum", "TRAIN"]) == (3, 3.0)
    assert (found["tacit_bytes_total", "sent", "UNMASK"], found["tacit_bytes_total", "received", "UNMASK"]) == (
        300,
        3000,
    )
    assert found["tacit_connected_clients",] == 3
    assert found["tacit_waited_for_clients",] == 0
    assert found["tacit_dropouts_total", "MASKED_INPUT"] == 1
    assert found["tacit_refused_messages_total", "VECTOR"] == 1
    assert found["tacit_refused_handshakes_total",] == 1
    assert found["tacit_copies_detected_total",] == 1
    assert found["tacit_process_resident_memory_bytes",] > 1e6
    assert found["tacit_process_open_fds",] > 3


def test_labels_are_bounded_and_hold_no_names(state: RunState) -> None:
    known = {"completed", "aborted", "unfinished", "sent", "received", *Phase, *(code.name for code in Code)}
    labels = {label for _, *values in read(state) for label in values}
    assert labels <= known


def test_a_round_under_way_is_not_counted(script: Any) -> None:
    run = script()
    run.session()
    run.round(1)
    run.log("server", RoundStarted(round=2, cohort=run.clients))
    found = read(Live(load(run.run.experiment), recorded(run.run.path / "events")).state)
    assert found["tacit_rounds_total", "completed"] == 1
    assert found["tacit_rounds_total", "unfinished"] == 0
    assert (found["tacit_round_number",], found["tacit_last_round_seconds",]) == (2, 3.0)
