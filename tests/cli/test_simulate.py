"""`tacit simulate` with real party processes: figures, determinism, resumption, and the ways in which a run can end."""

import contextlib
import json
import multiprocessing
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import Result

from tacit.parties.runs.experiment import load
from tacit.protocol.core.events import Event
from tacit.protocol.session.events import RoundStarted
from tests.cli.command import Invoke, Run, WriteExperiment
from tests.cli.outputs import check_output

pytestmark = pytest.mark.end_to_end

Show = Callable[[Event], None]

PATIENCE = 120  # Seconds until a wait counts as lost; no test takes them.
CLIENTS = [f"client-{number}" for number in range(1, 5)]


@pytest.fixture(scope="session")
def finished(held_run: tuple[Result, Path]) -> Run:
    return Run(*held_run)


def kill(name: str) -> None:
    (process,) = (process for process in multiprocessing.active_children() if process.name == name)
    process.kill()


def test_a_run_that_is_held_in_full(finished: Run) -> None:
    result = finished.result
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[0] == f"starting the processes; run directory {finished.directory}"
    rounds = [line for line in lines if " of 3 completed " in line]
    assert [line.split(", ")[0] for line in rounds] == [
        f"round {number} of 3 completed by 4 of 4 clients" for number in (1, 2, 3)
    ]
    assert sum("ring sum exact over 4 clients" in line for line in lines) == 3
    assert lines[-1].endswith(f"everything is in {finished.directory}")
    assert not set(result.stdout) & {"\x1b", "\r", "\b"}


def test_the_summary_has_what_it_promises(finished: Run) -> None:
    summary = finished.summary
    assert summary == json.loads((finished.directory.parent / "copy.json").read_bytes())
    check_output(finished.directory / "summary.json", "summary")
    assert summary["statistics"] is None
    classes = summary["test_classes"]
    assert classes["round"] == 3
    assert sum(one["images"] for one in classes["classes"]) == sum(map(sum, classes["confusion"]))
    right = sum(classes["confusion"][number][number] for number in range(len(classes["classes"])))
    images = sum(one["images"] for one in classes["classes"])
    assert right / images == summary["final_accuracy"]
    recalls = [one["accuracy"] for one in classes["classes"] if one["images"]]
    assert summary["final_balanced_accuracy"] == pytest.approx(sum(recalls) / len(recalls), rel=1e-12)
    assert summary["incidents"] == []
    assert summary["name"] == "small"
    assert summary["ended"] == "all rounds are done"
    assert summary["configuration"]["federation"] == {
        "clients": 4,
        "fraction": 1.0,
        "rounds": 3,
        "group_size": 0,
        "seed": 7,
    }
    assert summary["aggregation"]["threshold"] == 3
    assert [entry["round"] for entry in summary["rounds"]] == [1, 2, 3]
    for entry in summary["rounds"]:
        assert (entry["status"], entry["code"], entry["dropped"], entry["samples"]) == ("completed", None, [], 60)
        assert entry["survivors"] == entry["cohort"] == CLIENTS
        assert set(entry["bytes_sent"]) == {"server", *CLIENTS}
        assert all(sent > summary["aggregation"]["vector_bytes"] for sent in entry["bytes_sent"].values())
    assert summary["final_accuracy"] == summary["rounds"][-1]["accuracy"]
    assert summary["final_loss"] == summary["rounds"][-1]["loss"]
    parties = summary["parties"]

    def moved(name: str, direction: str) -> int:
        return int(sum(phase[direction] for phase in parties[name]["phases"].values()))

    # What the clients sent is what the server received, and the other way round.
    assert moved("server", "bytes_received") == sum(moved(name, "bytes_sent") for name in CLIENTS)
    assert moved("server", "bytes_sent") == sum(moved(name, "bytes_received") for name in CLIENTS)
    assert [entry["round"] for entry in summary["verified"]] == [1, 2, 3]
    for entry in summary["verified"]:
        assert entry["clients"] == 4
        assert 0.0 < entry["largest_error"] <= entry["bound"]


def test_no_party_left_a_traceback_or_a_secret(finished: Run) -> None:
    assert {path.name: path.read_text() for path in (finished.directory / "logs").iterdir()} == {
        f"{name}.log": "" for name in ("server", *CLIENTS)
    }


@pytest.mark.smoke
def test_the_same_seed_gives_the_same_model_whether_resumed_or_not(
    tacit: Invoke, tmp_path: Path, small: Path, finished: Run
) -> None:
    first = Run(tacit("simulate", small, "--seed", 7, "--out", tmp_path / "run"), tmp_path / "run")
    assert first.result.exit_code == 0
    assert first.model != finished.model, "one round is missing yet"
    again = tacit("simulate", "--resume", first.directory)
    assert again.exit_code == 2
    assert again.stderr == f"tacit: {first.directory} has 2 rounds already: ask for more with --rounds 3 or above\n"
    result = tacit("simulate", "--resume", first.directory, "--rounds", 3)
    assert (result.exit_code, result.stderr) == (0, "")
    assert first.model == finished.model
    assert [entry["round"] for entry in first.summary["rounds"]] == [1, 2, 3]
    figures = ("round", "accuracy", "loss", "train_accuracy", "train_loss", "samples", "clipped", "survivors")
    for ours, theirs in zip(first.summary["rounds"], finished.summary["rounds"], strict=True):
        assert [ours[key] for key in figures] == [theirs[key] for key in figures]
    assert load(first.directory / "experiment.toml").federation.rounds == 3


def test_a_run_without_a_seed_is_repeated_by_the_one_that_it_records(
    tacit: Invoke, tmp_path: Path, write_experiment: WriteExperiment
) -> None:
    file = write_experiment(tmp_path / "small.toml", rounds=1)
    drawn = Run(tacit("simulate", file, "--out", tmp_path / "drawn"), tmp_path / "drawn")
    seed = drawn.summary["seed"]
    assert seed == {"value": seed["value"], "drawn": True, "repeats": "everything"}
    again = Run(tacit("simulate", file, "--seed", seed["value"], "--out", tmp_path / "again"), tmp_path / "again")
    assert again.summary["seed"] == {"value": seed["value"], "drawn": False, "repeats": "everything"}
    assert again.model == drawn.model
    assert again.summary["sessions"][0]["versions"] == drawn.summary["sessions"][0]["versions"]


@pytest.mark.smoke
def test_a_killed_client_is_dropped_and_the_round_is_completed(
    tacit: Invoke, tmp_path: Path, small: Path, watch: Callable[[Show], None]
) -> None:
    def look(event: Event) -> None:
        if isinstance(event, RoundStarted) and event.round == 1:
            kill("client-3")

    watch(look)
    # It holds the round up until the kill has come.
    options = ("--stall", "client-3@MASKED_INPUT", "--verify", "--out", tmp_path / "run")
    run = Run(tacit("simulate", small, *options), tmp_path / "run")
    assert (run.result.exit_code, run.result.stderr) == (0, "")
    assert "client-3: its process ended unexpectedly: killed by SIGKILL" in run.result.stdout
    assert "client-3 left: its link was lost for 0.5 s" in run.result.stdout
    first, second = run.summary["rounds"]
    assert first["status"] == second["status"] == "completed"
    assert [gone["party"] for gone in first["dropped"]] == ["client-3"]
    assert "client-3" in first["cohort"]
    assert second["cohort"] == second["survivors"] == ["client-1", "client-2", "client-4"]
    assert [entry["clients"] for entry in run.summary["verified"]] == [len(first["survivors"]), 3]


def test_a_killed_server_ends_the_run(
    tacit: Invoke, tmp_path: Path, small: Path, watch: Callable[[Show], None]
) -> None:
    killed: list[str] = []

    def look(event: Event) -> None:
        if isinstance(event, RoundStarted) and not killed:
            killed.append(event.party)
            kill("server")

    watch(look)
    file = tmp_path / "figures.json"
    result = tacit("simulate", small, "--rounds", 1000, "--out", tmp_path / "run", "--json", file)
    assert result.exit_code == 4
    assert check_output(file, "summary")["ended"] == "server: its process ended unexpectedly: killed by SIGKILL"
    assert result.stderr == (
        "tacit: server: its process ended unexpectedly: killed by SIGKILL; finished rounds are kept: "
        f"tacit simulate --resume {tmp_path / 'run'}\n"
    )
    assert multiprocessing.active_children() == []


@contextlib.contextmanager
def command(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    """`tacit` as a program in a session of its own, as a terminal starts it; nothing of it is left behind."""
    process = subprocess.Popen(
        [sys.executable, "-c", "from tacit.cli.main import main; main()", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=PATIENCE)


def members_of_session(session: int) -> list[int]:
    members = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(ProcessLookupError):
                if os.getsid(int(entry.name)) == session:
                    members.append(int(entry.name))
    return members


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_leaves_no_process_and_the_run_goes_on_as_if_it_had_not_been(
    tacit: Invoke, tmp_path: Path, small: Path
) -> None:
    """Interrupted while round 2 trains, which takes long here: who has opened a sum never contributes to it again."""
    run, slow = tmp_path / "interrupted", tmp_path / "slow.toml"
    slow.write_text(small.read_text().replace("epochs = 1", "epochs = 100"))
    with command("simulate", slow, "--rounds", 1000, "--seed", 7, "--out", run) as process:
        assert process.stdout is not None
        while not (line := process.stdout.readline()).startswith("round 1 of 1000 completed"):
            assert line, process.communicate()
        members = members_of_session(process.pid)
        assert len(members) == 1 + 1 + 1 + 5  # supervisor, resource tracker, fork server, parties
        descriptors = [os.pidfd_open(member) for member in members]
        os.killpg(process.pid, signal.SIGINT)
        _, complaint = process.communicate(timeout=PATIENCE)
        assert process.returncode == 130
        assert complaint == f"tacit: interrupted; finished rounds are kept: tacit simulate --resume {run}\n"
        for descriptor in descriptors:
            assert select.select([descriptor], [], [], PATIENCE)[0], "a process outlived the command"
            os.close(descriptor)
    assert [path.read_text() for path in (run / "logs").iterdir()] == [""] * 5
    asked = int(tacit("simulate", "--resume", run, "--rounds", 1).stderr.split("--rounds ")[1].split()[0])
    resumed = tacit("simulate", "--resume", run, "--rounds", asked + 1)
    assert resumed.exit_code == 0, resumed.output
    whole = tmp_path / "whole"
    assert tacit("simulate", slow, "--rounds", asked + 1, "--seed", 7, "--out", whole).exit_code == 0
    assert Run(resumed, run).model == Run(resumed, whole).model


def test_every_seed_is_a_run_and_the_end_has_mean_and_spread(
    tacit: Invoke, write_experiment: WriteExperiment, tmp_path: Path
) -> None:
    experiment, out, file = (
        write_experiment(tmp_path / "small.toml", rounds=1),
        tmp_path / "runs",
        tmp_path / "found.json",
    )
    result = tacit("simulate", experiment, "--seeds", "3,5", "--out", out, "--json", file)
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    found = json.loads(file.read_bytes())
    assert [run["seed"] for run in found["runs"]] == [3, 5]
    assert [group["runs"] for group in found["groups"]] == [["seed-3", "seed-5"]]
    assert f" \N{PLUS-MINUS SIGN} {found['groups'][0]['final_accuracy']['deviation']:.3f}" in result.stdout
    assert sorted(path.name for path in out.iterdir()) == ["seed-3", "seed-5"]
