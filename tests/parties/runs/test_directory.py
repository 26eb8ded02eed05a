"""The directory of a run: made once, never over another, with its provenance and its tables."""

from __future__ import annotations

import csv
import os
import re
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from tacit.parties.runs.directory import (
    Progress,
    RunDirectory,
    RunDirectoryError,
    RunInUseError,
    Seed,
    command_line,
    mark_release,
    write_arrays,
)
from tacit.parties.runs.events import InvocationRecorded
from tacit.parties.runs.experiment import parse
from tacit.parties.runs.results import NOTHING, duration
from tacit.parties.runs.summary import LocalMetrics, summarise
from tacit.parties.session.event_log import EventFile
from tacit.parties.session.events import Dropout, HeldOut, ListeningStarted
from tacit.protocol.sum.states import Phase
from tacit.simulate.federation.roles import Plan
from tests.cases import cases
from tests.simulate.conftest import ended, metrics_of, summed_up


def test_a_new_directory_has_its_folders(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "runs" / "one")
    for path in (run.events("server"), run.journal("client-1"), run.logs / "server.log"):
        assert path.parent.is_dir()


def test_what_exists_is_left_alone(tmp_path: Path) -> None:
    RunDirectory.create(tmp_path / "run")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "todo.txt").touch()
    for name in ("run", "notes", "notes/todo.txt"):
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(RunDirectoryError, match="exists already: choose another directory with --out"):
            RunDirectory.create(tmp_path / name)
        assert sorted(tmp_path.rglob("*")) == before


def test_what_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunDirectoryError, match="run cannot be made: Not a directory; choose another"):
        RunDirectory.create(tmp_path / "file" / "run")


def test_a_discarded_directory_is_gone(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run")
    run.experiment.touch()
    run.discard()
    assert list(tmp_path.iterdir()) == []


def test_only_a_run_with_a_model_is_opened(tmp_path: Path) -> None:
    for missing in ("experiment.toml", "model.safetensors"):
        with pytest.raises(RunDirectoryError, match=f"can be resumed: {missing} is missing"):
            RunDirectory.open(tmp_path)
        (tmp_path / missing).touch()
    mark_release(tmp_path)
    assert RunDirectory.open(tmp_path).path == tmp_path


def test_progress_is_read_from_the_model_file(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    progress = Progress(round=3, split_seed=2**63 - 1)
    save_file({"weight": np.zeros(2, np.float32)}, run.model, metadata=progress.metadata())
    assert run.progress() == progress


@pytest.mark.parametrize(
    "metadata",
    [None, {"round": "3"}, {"progress": "3"}, {"progress": '{"round": 3}'}, {"progress": "{"}],
    ids=["nothing", "other", "no object", "incomplete", "no JSON"],
)
def test_a_model_without_progress_is_refused(tmp_path: Path, metadata: dict[str, str] | None) -> None:
    run = RunDirectory(tmp_path)
    save_file({"weight": np.zeros(2, np.float32)}, run.model, metadata=metadata)
    with pytest.raises(RunDirectoryError, match=r"is no model of a run \(.*\): restore it, or start anew"):
        run.progress()


def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    with pytest.raises(RunDirectoryError, match="is no model of a run"):
        run.progress()
    run.model.write_bytes(b"not safetensors")
    with pytest.raises(RunDirectoryError, match="is no model of a run"):
        run.progress()


def test_rounds_are_listed_by_number(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    for round in (10, 9, 1):
        write_arrays(run.verification(round, "client-1"), words=np.zeros(1, np.uint32))
    assert [path.name for path in run.verified_rounds()] == ["1", "9", "10"]


def test_a_directory_has_one_writer_which_the_other_is_told(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run")
    with run.alone():
        with pytest.raises(RunInUseError, match=f"run is being written by process {os.getpid()}: wait for it, or stop"):
            run.alone().__enter__()
        # Its lock is new, and nothing stands in it yet.
        (run.path / "run.lock").write_text("")
        with pytest.raises(RunInUseError, match="by process that has just begun"):
            run.alone().__enter__()
    with run.alone():
        pass


def test_a_directory_that_nobody_can_lock(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run")
    (run.path / "run.lock").mkdir()
    with pytest.raises(OSError, match=r"run\.lock cannot be written: Is a directory"):
        run.alone().__enter__()


HIDING = {
    "noise": '[protection]\nscheme = "dp-gaussian"\n',
    "binary weights": '[protection]\nscheme = "locked-binary-weights"\n[policy]\nuncoordinated_weights = true\n',
    "encryption": "[encryption]\n",
}


def plan(tmp_path: Path, toml: str) -> Plan:
    return Plan(parse(toml, "test"), RunDirectory(tmp_path), 1, 0, 41)


def test_it_names_command_versions_and_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/somewhere/bin/tacit", "simulate", "my file.toml"])
    found = InvocationRecorded.now(command_line(), started=1.0, device="cpu")
    assert found.command == "tacit simulate 'my file.toml'"
    assert found.versions["tacit"] == version("tacit")
    assert found.versions["torch"] == version("torch")
    assert "pytest" not in found.versions
    assert found.machine.cores >= 1
    assert found.machine.memory_bytes > 2**20
    assert found.seed is None


def test_an_unseeded_run_seeds_itself_with_what_it_records(tmp_path: Path) -> None:
    drawn = plan(tmp_path, "")
    assert drawn.seed == 41
    assert drawn.recorded_seed == Seed(value=41, drawn=True, repeats="everything")
    chosen = plan(tmp_path, "[federation]\nseed = 41\n")
    assert chosen.seed == drawn.seed
    assert chosen.recorded_seed == Seed(value=41, drawn=False, repeats="everything")


@pytest.mark.parametrize("toml", HIDING.values(), ids=HIDING.keys())
def test_what_must_stay_unknown_is_drawn_from_no_recorded_seed(tmp_path: Path, toml: str) -> None:
    drawn = plan(tmp_path, toml)
    assert drawn.seed is None
    assert drawn.recorded_seed == Seed(value=41, drawn=True, repeats="split and initial weights")
    assert plan(tmp_path, f"[federation]\nseed = 41\n{toml}").seed == 41


def test_keys_are_never_said_to_be_repeated(tmp_path: Path) -> None:
    assert plan(tmp_path, f"[federation]\nseed = 41\n{HIDING['encryption']}").recorded_seed.repeats == (
        "everything but keys"
    )


def test_every_session_stands_in_the_summary(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run")
    with EventFile(run.events("server"), "server") as log:
        log.write(ListeningStarted(address="tcp://127.0.0.1:1"))
        for command in ("tacit simulate", "tacit simulate --resume run"):
            seed = Seed(value=41, drawn=True, repeats="everything")
            log.write(InvocationRecorded.now(command, started=1.0, device="cpu", seed=seed))
    summary = summarise(run, parse("", "test"), ended="")
    assert [session.command for session in summary.sessions] == ["tacit simulate", "tacit simulate --resume run"]
    for session in summary.sessions:
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", session.began)
    assert summary.seed == Seed(value=41, drawn=True, repeats="everything")


DROP = Dropout(party="b", phase=Phase.TRAIN, code="LEFT", detail='its link, "gone"', included_in_sum=False)
COMPLETED = metrics_of(
    ended(
        1, ["a", "b"], survivors=["a"], dropped=[DROP], seconds=2.5, accuracy=0.5, balanced_accuracy=0.75, loss=1.25,
        train_accuracy=0.25, train_loss=2.0, samples=60, clipped=0,
        held_out=HeldOut(round=0, images=9, accuracy=0.125, loss=3.0),
    ),
    bytes_sent={"server": 100, "a": 20, "b": 3},
    local={"a": LocalMetrics(kept=4, layers=["fc"], training_seconds=1.5, choosing_seconds=0.0)},
)  # fmt: skip
ABORTED = metrics_of(ended(2, [], status="aborted", code="THRESHOLD"), bytes_sent={"server": 7}, local={})
ROUND_COLUMNS = (
    "round,status,code,culprit,accuracy,balanced_accuracy,loss,train_accuracy,train_loss,held_out_round,"
    "held_out_images,held_out_accuracy,held_out_loss,samples,clipped,cohort,survivors,dropped,seconds,bytes_sent"
)
CLIENT_COLUMNS = (
    "round,client,in_sum,dropped_phase,dropped_code,dropped_detail,bytes_sent,training_seconds,choosing_seconds,kept"
)
SUMMARY = summed_up(rounds=[COMPLETED, ABORTED])


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    made = RunDirectory.create(tmp_path / "run")
    SUMMARY.keep(made)
    return made


def rows(run: RunDirectory, name: str) -> list[dict[str, Any]]:
    with (run.path / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_a_row_is_a_round(run: RunDirectory) -> None:
    first, second = rows(run, "rounds.csv")
    assert ",".join(first) == ROUND_COLUMNS
    assert [first[key] for key in ("round", "accuracy", "train_loss", "cohort", "survivors", "dropped")] == [
        "1", "0.5", "2.0", "2", "1", "1",
    ]  # fmt: skip
    assert first["balanced_accuracy"] == "0.75"
    assert (first["held_out_round"], first["held_out_accuracy"], first["bytes_sent"]) == ("0", "0.125", "123")
    assert (second["status"], second["code"], second["accuracy"], second["cohort"]) == ("aborted", "THRESHOLD", "", "0")


def test_a_row_is_a_client_in_a_round(run: RunDirectory) -> None:
    there, lost = rows(run, "clients.csv")
    assert ",".join(there) == CLIENT_COLUMNS
    assert (there["client"], there["in_sum"], there["training_seconds"], there["dropped_code"]) == (
        "a", "True", "1.5", "",
    )  # fmt: skip
    assert (lost["client"], lost["in_sum"], lost["dropped_phase"], lost["bytes_sent"]) == ("b", "False", "TRAIN", "3")
    assert lost["dropped_detail"] == 'its link, "gone"'
    assert lost["training_seconds"] == ""


def test_a_table_that_cannot_be_written_is_named(run: RunDirectory) -> None:
    (run.path / "clients.csv").unlink()
    (run.path / "clients.csv").symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"clients\.csv cannot be written: No space left on device"):
        SUMMARY.keep(run)


@cases(
    ("value", "shown"),
    [
        (None, NOTHING),
        (0.0, "0 s"),
        (0.00834, "8.34 ms"),
        (0.9996, "1 s"),
        (2.414, "2.41 s"),
        (99.7, "1 min 40 s"),
        (3599.6, "1 h 0 min"),
        (18_200, "5 h 3 min"),
    ],
)
def test_durations(value: float | None, shown: str) -> None:
    assert duration(value) == shown
