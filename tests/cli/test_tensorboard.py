"""`tacit simulate --tensorboard` in full: figures of the run, and of the run that goes on, are those of its summary."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

Invoke = Callable[..., Result]
WriteExperiment = Callable[..., Path]


@pytest.mark.end_to_end
def test_the_figures_are_those_of_the_summary_also_of_a_resumed_run(
    tacit: Invoke, tmp_path: Path, write_experiment: WriteExperiment
) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    experiment = write_experiment(tmp_path / "small.toml")
    run, board = tmp_path / "run", tmp_path / "board"
    for options in ((experiment, "--out", run), ("--resume", run, "--rounds", 3)):
        held = tacit("simulate", *options, "--tensorboard", board)
        assert (held.exit_code, held.stderr) == (0, "")
    summary = json.loads((run / "summary.json").read_bytes())
    read = accumulator.EventAccumulator(str(board / "run"))
    read.Reload()
    for name in ("accuracy", "loss", "survivors"):
        found = {event.step: event.tensor_proto.float_val[0] for event in read.Tensors(name)}
        wanted = {
            entry["round"]: pytest.approx(len(entry[name]) if name == "survivors" else entry[name])
            for entry in summary["rounds"]
        }
        assert found == wanted
    moved = {event.step: event.tensor_proto.float_val[0] for event in read.Tensors("bytes")}
    assert moved.keys() == {1, 2, 3}
    assert all(count > 0 for count in moved.values())
    assert (board / "run" / "report.html").read_bytes() == (run / "report.html").read_bytes()


def test_what_is_not_installed_is_said_before_anything_starts(
    tacit: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    monkeypatch.setitem(sys.modules, "tensorboard.summary", None)
    refused = tacit("simulate", "--tensorboard", tmp_path / "board", "--out", tmp_path / "run")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert refused.stderr.startswith("tacit: --tensorboard needs tensorboard, which cannot be imported (")
    assert refused.stderr.endswith("): pip install tensorboard\n")
    assert list(tmp_path.iterdir()) == []
