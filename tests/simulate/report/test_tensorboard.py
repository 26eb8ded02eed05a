"""TensorBoard by its real library: what is written is read back, and errors do not harm a run."""

from pathlib import Path

import pytest

from tacit.parties.runs.directory import RunDirectory
from tacit.parties.runs.reading import recorded
from tacit.parties.session.events import ModelEvaluated
from tacit.simulate.report.tensorboard import TensorBoard
from tests.simulate.conftest import Script, ScriptedRun

pytest.importorskip("tensorboard", reason="tensorboard is not installed (extra tensorboard)")
Metrics = dict[str, dict[int, float]]
MOVED = 8 * 1100
"""What the script's server sends and receives in a round."""


def board(folder: Path) -> Metrics:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    read = EventAccumulator(str(folder))
    read.Reload()
    return {
        tag: {event.step: float(make_ndarray(event.tensor_proto)) for event in read.Tensors(tag)}
        for tag in read.Tags()["tensors"]
    }


def play(run: RunDirectory, folder: Path) -> list[str]:
    """Write everything that the logs of a run have; the warnings."""
    warnings: list[str] = []
    with TensorBoard(folder, run.path, warnings.append) as writer:
        for event in recorded(run.path / "events"):
            writer.take(event)
    return warnings


@pytest.fixture
def scripted(script: Script) -> ScriptedRun:
    """Two rounds, in the first of which one of four clients is lost, and an aborted one; with a report."""
    written = script()
    written.session()
    written.round(1, dropped={"client-4": False}, clipped=7)
    written.round(2, held_out=0.25)
    written.round(3, status="aborted")
    written.end()
    (written.run.path / "report.html").write_text("<p>the report")
    return written


def test_tensorboard_shows_the_metrics_of_every_round(scripted: ScriptedRun, tmp_path: Path) -> None:
    run = scripted.run
    assert play(run, tmp_path / "board") == []
    found = board(tmp_path / "board" / run.path.name)
    seconds = found.pop("seconds")
    assert set(seconds) == {1, 2, 3}
    assert found == {
        "accuracy": {1: 0.125, 2: 0.25, 3: 0.375},
        "balanced_accuracy": {1: 0.0625, 2: 0.125, 3: 0.1875},
        "loss": {1: 2.0, 2: 1.0, 3: pytest.approx(2 / 3)},
        "train_accuracy": {1: 0.5, 2: 0.5},
        "train_loss": {1: 1.5, 2: 1.5},
        "held_out_accuracy": {2: 0.25},
        "held_out_loss": {2: 0.5},
        "clipped": {1: 7.0, 2: 0.0},
        "samples": {1: 300.0, 2: 300.0, 3: 0.0},
        "survivors": {1: 3.0, 2: 4.0, 3: 0.0},
        "bytes": {1: MOVED, 2: MOVED, 3: MOVED},
        "completed": {1: 1.0, 2: 1.0, 3: 0.0},
    }
    assert (tmp_path / "board" / run.path.name / "report.html").read_text() == "<p>the report"


def test_metrics_of_clients_are_written_once_all_of_them_have(script: Script, tmp_path: Path) -> None:
    written = script(clients=3)
    written.session()
    for number in (1, 2):
        written.round(number, judged=False)
        for client, accuracy in (("client-1", 0.25), ("client-2", 0.5 * number), ("client-3", 0.0)):
            found = ModelEvaluated(round=number, accuracy=accuracy, balanced_accuracy=accuracy / 2, loss=1.0)
            written.log(client, found, after=0.25)
    written.end()
    assert play(written.run, tmp_path) == []
    shown = board(tmp_path / written.run.path.name)
    assert shown["accuracy"] == {1: 0.25, 2: pytest.approx(1.25 / 3)}
    assert shown["balanced_accuracy"] == {1: 0.125, 2: pytest.approx(0.625 / 3)}
    assert shown["loss"] == {1: 1.0, 2: 1.0}


def test_an_error_is_warned_of_once(scripted: ScriptedRun, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (line,) = play(scripted.run, tmp_path / "file")
    assert line.startswith("--tensorboard: ")
    assert str(tmp_path / "file") in line
    assert line.endswith("; nothing more of this run is written there")
