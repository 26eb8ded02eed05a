"""rounds.csv and clients.csv: the same metrics as in summary.json, in rows; and durations as people read them."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from tacit.parties.runs.directory import RunDirectory
from tacit.parties.runs.results import NOTHING, duration
from tacit.parties.runs.summary import LocalMetrics
from tacit.parties.session.events import Dropout, HeldOut
from tacit.protocol.sum.states import Phase
from tests.cases import cases
from tests.simulate.conftest import ended, metrics_of, summed_up

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
