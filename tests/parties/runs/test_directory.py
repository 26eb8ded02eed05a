"""The directory of a run: made once, never over something else, and what is recorded there for --verify."""

import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from tacit.parties.runs.directory import (
    Progress,
    RunDirectory,
    RunDirectoryError,
    RunInUseError,
    mark_release,
    write_arrays,
)


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
