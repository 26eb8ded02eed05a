"""rounds.csv and clients.csv: the same figures as in summary.json, in rows."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from tacit.parties.runs.directory import RunDirectory
from tacit.parties.runs.outputs import CLIENT_COLUMNS, ROUND_COLUMNS, keep_summary

DROP = {"party": "b", "phase": "TRAIN", "code": "LEFT", "detail": 'its link, "gone"', "included_in_sum": False}
COMPLETED = {
    "round": 1, "status": "completed", "code": None, "detail": "", "culprit": "", "accuracy": 0.5, "loss": 1.25,
    "balanced_accuracy": 0.75, "train_accuracy": 0.25, "train_loss": 2.0, "samples": 60, "clipped": 0,
    "cohort": ["a", "b"], "survivors": ["a"], "dropped": [DROP], "seconds": 2.5,
    "held_out": {"round": 0, "images": 9, "accuracy": 0.125, "loss": 3.0},
    "bytes_sent": {"server": 100, "a": 20, "b": 3},
    "local": {"a": {"kept": 4, "layers": ["fc"], "training_seconds": 1.5, "choosing_seconds": 0.0}},
}  # fmt: skip
ABORTED = {
    **dict.fromkeys(COMPLETED),
    "round": 2,
    "status": "aborted",
    "code": "THRESHOLD",
    "seconds": 1.0,
    "bytes_sent": {"server": 7},
    "local": {},
}


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    made = RunDirectory.create(tmp_path / "run")
    keep_summary(made, {"name": "cats", "rounds": [COMPLETED, ABORTED]})
    return made


def rows(run: RunDirectory, name: str) -> list[dict[str, Any]]:
    with (run.path / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_a_row_is_a_round(run: RunDirectory) -> None:
    first, second = rows(run, "rounds.csv")
    assert tuple(first) == ROUND_COLUMNS
    assert [first[key] for key in ("round", "accuracy", "train_loss", "cohort", "survivors", "dropped")] == [
        "1", "0.5", "2.0", "2", "1", "1",
    ]  # fmt: skip
    assert first["balanced_accuracy"] == "0.75"
    assert (first["held_out_round"], first["held_out_accuracy"], first["bytes_sent"]) == ("0", "0.125", "123")
    assert (second["status"], second["code"], second["accuracy"], second["cohort"]) == ("aborted", "THRESHOLD", "", "0")


def test_a_row_is_a_client_in_a_round(run: RunDirectory) -> None:
    there, lost = rows(run, "clients.csv")
    assert tuple(there) == CLIENT_COLUMNS
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
        keep_summary(run, {"rounds": [COMPLETED]})
