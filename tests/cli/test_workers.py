"""Clients that share processes: the same model, bit for bit, and what becomes of them when a process dies. And clients
that never come, wherever they are."""

import json
import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tacit.parties.session.events import ListeningStarted, RoundEnded
from tacit.protocol.core.events import Event
from tacit.protocol.session.events import RoundStarted
from tests.cli.command import Invoke, WriteExperiment

pytestmark = pytest.mark.end_to_end

Show = Callable[[Event], None]

CLIENTS = 6


def summary(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory / "summary.json").read_bytes())
    return found


def test_the_model_is_the_same_bit_for_bit_however_many_workers_host_the_clients(
    tacit: Invoke, tmp_path: Path, write_experiment: WriteExperiment
) -> None:
    experiment = write_experiment(tmp_path / "small.toml", clients=CLIENTS)
    models, updates = {}, {}
    for workers in (0, 1, 2):
        directory = tmp_path / f"run-{workers}"
        result = tacit("simulate", experiment, "--seed", 7, "--verify", "--workers", workers, "--out", directory)
        assert (result.exit_code, result.stderr) == (0, "")
        assert result.stdout.count(f"{CLIENTS} of {CLIENTS} clients") == 2
        assert result.stdout.count(f"ring sum exact over {CLIENTS} clients") == 2
        models[workers] = (directory / "model.safetensors").read_bytes()
        updates[workers] = [path.read_bytes() for path in sorted((directory / "verify").glob("*/client-*.npz"))]
        hosts = [f"worker-{number + 1}" for number in range(workers)]
        clients = [f"client-{number + 1}" for number in range(CLIENTS)]
        # Every client has its own journal and log of events, and like every process one of what went wrong: nothing.
        logs = {path.stem: path.read_text() for path in (directory / "logs").iterdir()}
        assert logs == dict.fromkeys(["server", *hosts, *clients], "")
        assert len(list((directory / "events").iterdir())) == 1 + CLIENTS
        assert len(list((directory / "journal").glob("*.jsonl"))) == CLIENTS
        turns = CLIENTS // max(workers, 1)
        shared = f"share {workers} process{'es' * (workers > 1)} and train in turns, up to {turns} in each"
        given = f"they get {600 * turns:,} s to train, and {60 + turns - 1} s for a phase"
        said = f"{CLIENTS} clients {shared} (simulate.workers = {workers}): {given}"
        assert (said in result.stdout.splitlines()) == bool(workers)
    assert models[0] == models[1] == models[2]
    assert updates[0] == updates[1] == updates[2]
    assert len(updates[0]) == 2 * CLIENTS


def test_a_worker_that_dies_takes_its_clients_with_it_and_says_who_they_were(
    tacit: Invoke, tmp_path: Path, write_experiment: WriteExperiment, watch: Callable[[Show], None]
) -> None:
    experiment = write_experiment(
        tmp_path / "small.toml",
        clients=8,
        rounds=40,
        more="[aggregation]\nmode = 'semi-honest'\n[policy]\nmodes = ['semi-honest']\n",
    )

    def kill(event: Event) -> None:
        if isinstance(event, RoundEnded) and event.round == 1:
            (worker,) = (child for child in multiprocessing.active_children() if child.name == "worker-3")
            worker.kill()

    watch(kill)
    directory = tmp_path / "run"
    result = tacit("simulate", experiment, "--workers", 3, "--out", directory)
    assert (result.exit_code, result.stderr) == (0, "")
    line = "client-3: its process ended unexpectedly: killed by SIGKILL (worker-3, with 2 clients: client-3, client-6)"
    assert result.stdout.count(line) == 1
    survivors = [len(entry["survivors"]) for entry in summary(directory)["rounds"]]
    # The kill comes after round 1; in which round it arrives is a matter of how busy the machine is.
    assert (survivors[0], survivors[-1]) == (8, 6)
    assert survivors == sorted(survivors, reverse=True)


@pytest.mark.parametrize("workers", [0, 1])
def test_who_cannot_begin_is_not_waited_for_and_named_wherever_the_round_is_told_of(
    tacit: Invoke, tmp_path: Path, write_experiment: WriteExperiment, watch: Callable[[Show], None], workers: int
) -> None:
    experiment = write_experiment(tmp_path / "small.toml", clients=5)
    directory = tmp_path / "run"
    begun: list[int] = []

    def break_journal(event: Event) -> None:
        if isinstance(event, ListeningStarted):
            (directory / "journal" / "client-3.jsonl").mkdir()
        if isinstance(event, RoundStarted):
            begun.append(event.round)

    watch(break_journal)
    result = tacit("simulate", experiment, "--workers", workers, "--out", directory)
    assert (result.exit_code, result.stderr, begun) == (0, "", [1, 2])
    why = f"{directory / 'journal' / 'client-3.jsonl'} cannot be opened (Is a directory): make it accessible"
    lines = result.stdout.splitlines()
    # Once, for as long as nothing changes.
    assert [line for line in lines if "without" in line] == [f"round 1 starts without client-3 ({why})"]
    assert sum("4 of 5 clients" in line for line in lines) == 2
    figures = summary(directory)
    assert [entry["absent"] for entry in figures["rounds"]] == [{"client-3": why}] * 2
    (incident,) = figures["incidents"]
    assert (incident["what"], incident["round"]) == ("absent", 1)
    assert incident["text"] == f"Round 1 began without client-3 ({why})."
    report = (directory / "report.html").read_text()
    assert f"Round 1 began without client-3 ({why})." in report
    assert report.count("4 of 5</td>") == 2
