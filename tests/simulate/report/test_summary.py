"""The summary, from event logs written by hand: of one session, and of two of which the second repeats a round."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tacit.parties.protections.gaussian_noise import GaussianNoise
from tacit.parties.runs.directory import RunDirectory
from tacit.parties.runs.experiment import Aggregation, Experiment
from tacit.parties.runs.reading import read_state
from tacit.parties.runs.summary import LocalMetrics, Summary, summarise
from tacit.parties.session.event_log import EventFile
from tacit.parties.session.events import (
    ListeningStarted,
    PhaseEnded,
    TrafficCounted,
    UpdateComputed,
)
from tacit.protocol.core.events import Event
from tacit.protocol.session.events import RoundStarted
from tacit.protocol.sum.states import Phase
from tests.simulate.conftest import configured, ended


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "run")


def log(run: RunDirectory, party: str, *events: Event) -> None:
    with EventFile(run.events(party), party) as opened:
        for event in events:
            opened.write(event)


def held(round: int, *during: Event, cohort: Sequence[str] = (), **result: Any) -> list[Event]:
    return [RoundStarted(round=round, cohort=list(cohort)), *during, ended(round, cohort, **result)]


def judged(accuracy: float) -> dict[str, float]:
    return {"accuracy": accuracy, "balanced_accuracy": accuracy / 2, "loss": 2 * accuracy}


def traffic(round: int, phase: Phase, sent: int, received: int) -> Event:
    return TrafficCounted(round=round, phase=phase, sent=sent, received=received)


def phase(round: int, phase: Phase, seconds: float) -> Event:
    return PhaseEnded(round=round, phase=phase, seconds=seconds, next=Phase.SESSION)


SESSION = (configured(5), ListeningStarted(address="tcp://127.0.0.1:1"))


def test_figures_of_one_session(run: RunDirectory) -> None:
    log(
        run,
        "hub",
        *SESSION,
        traffic(0, Phase.SESSION, 10, 20),
        *held(
            1,
            phase(1, Phase.SESSION, 9.0),
            phase(1, Phase.TRAIN, 1.5),
            phase(1, Phase.MASKED_INPUT, 0.25),
            traffic(1, Phase.TRAIN, 100, 0),
            **judged(0.5),
        ),
        *held(
            2,
            phase(2, Phase.TRAIN, 0.5),
            traffic(2, Phase.TRAIN, 50, 5),
            phase(2, Phase.UNMASK, 0.25),
            traffic(2, Phase.UNMASK, 7, 3),
            **judged(0.75),
        ),
    )
    log(run, "alice", traffic(2, Phase.UNMASK, 3, 7))
    summary = summarise(run, Experiment(name="cats"), ended="")
    assert summary.name == "cats"
    assert summary.wall_seconds == read_state(run.path).wall_seconds
    assert (summary.final_accuracy, summary.final_loss) == (0.75, 1.5)
    assert summary.protocol_share == 0.2
    assert summary.aggregation is not None
    assert msgspec.structs.asdict(summary.aggregation).items() <= msgspec.structs.asdict(SESSION[0]).items()
    assert [one.bytes_sent for one in summary.rounds] == [{"alice": 0, "hub": 100}, {"alice": 3, "hub": 57}]
    assert msgspec.to_builtins(summary.parties["hub"]) == {
        "role": "server",
        "training_seconds": 0.0,
        "protocol_seconds": 0.0,
        "waiting_seconds": 2.5,
        "phases": {
            "SESSION": {"seconds": 9.0, "bytes_sent": 10, "bytes_received": 20},
            "TRAIN": {"seconds": 2.0, "bytes_sent": 150, "bytes_received": 5},
            "MASKED_INPUT": {"seconds": 0.25, "bytes_sent": 0, "bytes_received": 0},
            "UNMASK": {"seconds": 0.25, "bytes_sent": 7, "bytes_received": 3},
        },
    }
    assert summary.parties["alice"].role == "client"
    assert summary.configuration["federation"]["clients"] == "all"


def test_a_resumed_run_counts_the_last_attempt_of_a_round_and_all_its_bytes(run: RunDirectory) -> None:
    first = held(1, traffic(1, Phase.TRAIN, 1, 0), **judged(0.1))
    lost = held(2, traffic(2, Phase.TRAIN, 4, 0), status="aborted", **judged(0.2))
    log(run, "server", *SESSION, *first, *lost)
    log(run, "server", *SESSION, *held(2, traffic(2, Phase.TRAIN, 8, 0), **judged(0.3)))
    summary = summarise(run, Experiment(), ended="")
    assert [(one.round, one.status, one.accuracy) for one in summary.rounds] == [
        (1, "completed", 0.1),
        (2, "completed", 0.3),
    ]
    assert summary.rounds[1].bytes_sent == {"server": 12}
    assert summary.final_accuracy == 0.3


def test_a_run_without_a_round_has_no_figures(run: RunDirectory) -> None:
    log(run, "server", *SESSION)
    summary = summarise(run, Experiment(), ended="")
    metrics = (summary.rounds, summary.final_accuracy, summary.final_loss, summary.protocol_share)
    assert metrics == ([], None, None, None)
    assert list(summary.view())[-1].startswith("test accuracy unknown after ")


def test_the_file_is_read_back(run: RunDirectory) -> None:
    log(run, "server", *SESSION, *held(1, cohort=["alice"], **judged(0.5)))
    summary = summarise(run, Experiment(), ended="all rounds are done")
    summary.keep(run)
    read_back = msgspec.json.decode(run.summary.read_bytes(), type=Summary)
    assert json.loads(msgspec.json.encode(read_back)) == json.loads(msgspec.json.encode(summary))
    assert run.summary.read_text().endswith("}\n")


def test_what_clients_did_and_what_noise_guarantees_stand_in_the_summary(run: RunDirectory) -> None:
    work: dict[str, Any] = {"kept": 7, "layers": ["fc"], "training_seconds": 2.0, "choosing_seconds": 0.5}
    log(run, "hub", *SESSION, *held(1, cohort=["alice"], **judged(0.5)))
    log(run, "alice", UpdateComputed(round=1, uncounted=0, **work))
    noise = GaussianNoise(dp_noise=2.0)
    summary = summarise(run, Experiment(protection=noise, aggregation=Aggregation(clip=1.0)), ended="")
    assert [one.local for one in summary.rounds] == [{"alice": LocalMetrics(**work)}]
    # A multiplier of one: 4.377178 for a delta of 1e-5 (Balle and Wang 2018).
    assert summary.privacy is not None
    assert summary.privacy.epsilon_update == pytest.approx(4.377178, rel=1e-6)
    assert summarise(run, Experiment(), ended="").privacy is None
