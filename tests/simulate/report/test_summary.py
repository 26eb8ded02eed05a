"""The summary, from event logs written by hand: of one session, and of two of which the second repeats a round."""

import json
from pathlib import Path
from typing import Any

import pytest

from tacit.parties.protections.gaussian_noise import GaussianNoise
from tacit.parties.runs.directory import RunDirectory, write_json
from tacit.parties.runs.experiment import Aggregation, Experiment
from tacit.parties.runs.summary import ROUND_KEYS, summarise
from tacit.parties.session.event_log import EventLog


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "run")


def log(run: RunDirectory, party: str, *events: tuple[str, dict[str, Any]]) -> None:
    with EventLog(run.events(party), party) as opened:
        for event, fields in events:
            opened.write(event, **fields)


def done(round: int, accuracy: float, status: str = "completed") -> tuple[str, dict[str, Any]]:
    fields: dict[str, Any] = dict.fromkeys(ROUND_KEYS)
    return "round-done", {**fields, "round": round, "status": status, "accuracy": accuracy, "loss": 2 * accuracy}


def traffic(round: int, phase: str, sent: int, received: int) -> tuple[str, dict[str, Any]]:
    return "traffic", {"round": round, "phase": phase, "sent": sent, "received": received}


def phase(round: int, name: str, seconds: float) -> tuple[str, dict[str, Any]]:
    return "phase", {"round": round, "phase": name, "seconds": seconds, "next": "SESSION"}


SESSION = [("configuration", {"ring_bits": 24, "threshold": 4}), ("listening", {"address": "tcp://127.0.0.1:1"})]


def test_figures_of_one_session(run: RunDirectory) -> None:
    log(
        run,
        "hub",
        *SESSION,
        traffic(0, "SESSION", 10, 20),
        phase(1, "SESSION", 9.0),
        phase(1, "TRAIN", 1.5),
        phase(1, "MASKED_INPUT", 0.25),
        traffic(1, "TRAIN", 100, 0),
        done(1, 0.5),
        phase(2, "TRAIN", 0.5),
        traffic(2, "TRAIN", 50, 5),
        phase(2, "UNMASK", 0.25),
        traffic(2, "UNMASK", 7, 3),
        done(2, 0.75),
    )
    log(run, "alice", traffic(2, "UNMASK", 3, 7))
    summary = summarise(run, Experiment(name="cats"), wall_seconds=9.0)
    assert (summary["name"], summary["wall_seconds"]) == ("cats", 9.0)
    assert (summary["final_accuracy"], summary["final_loss"]) == (0.75, 1.5)
    assert summary["protocol_share"] == 0.2
    assert summary["aggregation"] == {"ring_bits": 24, "threshold": 4}
    assert [entry["bytes_sent"] for entry in summary["rounds"]] == [{"alice": 0, "hub": 100}, {"alice": 3, "hub": 57}]
    assert set(summary["rounds"][0]) == {*ROUND_KEYS, "bytes_sent", "local"}
    assert summary["parties"]["hub"] == {
        "role": "server",
        "phases": {
            "SESSION": {"seconds": 9.0, "bytes_sent": 10, "bytes_received": 20},
            "TRAIN": {"seconds": 2.0, "bytes_sent": 150, "bytes_received": 5},
            "MASKED_INPUT": {"seconds": 0.25, "bytes_sent": 0, "bytes_received": 0},
            "UNMASK": {"seconds": 0.25, "bytes_sent": 7, "bytes_received": 3},
        },
    }
    assert summary["parties"]["alice"]["role"] == "client"
    assert summary["configuration"]["federation"]["clients"] == "all"


def test_a_resumed_run_counts_the_last_attempt_of_a_round_and_all_its_bytes(run: RunDirectory) -> None:
    log(run, "server", *SESSION, traffic(1, "TRAIN", 1, 0), done(1, 0.1), done(2, 0.2, "aborted"))
    log(run, "server", *SESSION, traffic(2, "TRAIN", 4, 0), traffic(2, "TRAIN", 8, 0), done(2, 0.3))
    summary = summarise(run, Experiment(), wall_seconds=1.0)
    assert [(entry["round"], entry["status"], entry["accuracy"]) for entry in summary["rounds"]] == [
        (1, "completed", 0.1),
        (2, "completed", 0.3),
    ]
    assert summary["rounds"][1]["bytes_sent"] == {"server": 12}
    assert summary["final_accuracy"] == 0.3


def test_a_run_without_a_round_has_no_figures(run: RunDirectory) -> None:
    log(run, "server", *SESSION)
    summary = summarise(run, Experiment(), wall_seconds=1.0)
    figures = [summary[key] for key in ("rounds", "final_accuracy", "final_loss", "protocol_share")]
    assert figures == [[], None, None, None]


def test_what_is_written_is_json(run: RunDirectory) -> None:
    write_json({"name": "cats", "rounds": []}, run.summary)
    assert json.loads(run.summary.read_text()) == {"name": "cats", "rounds": []}
    assert run.summary.read_text().endswith("}\n")


def test_what_clients_did_and_what_noise_guarantees_stand_in_the_summary(run: RunDirectory) -> None:
    work = {"kept": 7, "layers": ["fc"], "training_seconds": 2.0, "choosing_seconds": 0.5}
    ended = done(1, 0.5)
    log(run, "hub", *SESSION, ("round-done", {**ended[1], "survivors": ["alice"], "cohort": ["alice"]}))
    log(run, "alice", ("update", {"round": 1, **work}))
    noise = GaussianNoise(dp_noise=2.0)
    summary = summarise(run, Experiment(protection=noise, aggregation=Aggregation(clip=1.0)), wall_seconds=1.0)
    assert [entry["local"] for entry in summary["rounds"]] == [{"alice": work}]
    # A multiplier of one: 4.377178 for a delta of 1e-5 (Balle and Wang 2018).
    assert summary["privacy"]["epsilon_update"] == pytest.approx(4.377178, rel=1e-6)
    assert summarise(run, Experiment(), wall_seconds=1.0)["privacy"] is None


def test_parties_stand_in_the_order_of_their_numbers(run: RunDirectory) -> None:
    names = [f"client-{number}" for number in (10, 2, 1)]
    for name in names:
        log(run, name, ("ended", {"code": None, "detail": ""}))
    assert list(summarise(run, Experiment(), wall_seconds=1.0)["parties"]) == ["client-1", "client-2", "client-10"]
