"""Trackers by their real libraries: what they are told is read back, and none of them harms a run."""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tacit.parties.runs.directory import RunDirectory
from tacit.simulate.report.reading import recorded
from tacit.simulate.report.trackers import MissingExtraError, chosen_trackers
from tacit.simulate.report.tracking import Tracker, Tracking
from tests.simulate.conftest import Script, ScriptedRun

with_tensorboard = pytest.mark.skipif(
    importlib.util.find_spec("tensorboard") is None, reason="tensorboard is not installed (extra tensorboard)"
)
with_mlflow = pytest.mark.skipif(
    importlib.util.find_spec("mlflow") is None, reason="mlflow is not installed (extra mlflow)"
)
Figures = dict[str, dict[int, float]]
Told = Callable[[Path], Figures]
MOVED = 8 * 1100
"""What the script's server sends and receives in a round."""


def board(folder: Path) -> Figures:
    """What TensorBoard's own reader finds, by name and round."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    read = EventAccumulator(str(folder))
    read.Reload()
    return {
        tag: {event.step: float(make_ndarray(event.tensor_proto)) for event in read.Tensors(tag)}
        for tag in read.Tags()["tensors"]
    }


def play(run: RunDirectory, trackers: list[Tracker], said: list[str], *, rounds: int = 3) -> None:
    """Tell everything that the logs of a run have."""
    with Tracking(trackers, rounds=rounds, report=run.path / "report.html", say=said.append) as tracking:
        for event in recorded(run.path / "events"):
            tracking.take(event["party"], event["event"], event)


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


@with_tensorboard
def test_tensorboard_shows_the_figures_of_every_round(scripted: ScriptedRun, tmp_path: Path) -> None:
    said: list[str] = []
    run = scripted.run
    play(run, chosen_trackers(run.path, tensorboard=tmp_path / "board", mlflow=None, resumed=False), said)
    assert said == []
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


@with_tensorboard
def test_what_clients_find_is_told_once_all_of_them_have(script: Script, tmp_path: Path) -> None:
    written = script(clients=3)
    written.session()
    for number in (1, 2):
        written.round(number, judged=False)
        for client, accuracy in (("client-1", 0.25), ("client-2", 0.5 * number), ("client-3", 0.0)):
            written.log(client, "evaluated", at=0.25, round=number, accuracy=accuracy, loss=1.0)
    written.end()
    play(written.run, chosen_trackers(written.run.path, tensorboard=tmp_path, mlflow=None, resumed=False), [])
    found = board(tmp_path / written.run.path.name)
    assert found["accuracy"] == {1: 0.25, 2: pytest.approx(1.25 / 3)}
    assert found["loss"] == {1: 1.0, 2: 1.0}
    assert "balanced_accuracy" not in found


@with_mlflow
def test_mlflow_has_the_figures_the_report_and_how_the_run_ended(
    scripted: ScriptedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow.tracking import MlflowClient

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    said: list[str] = []
    run, store = scripted.run, tmp_path / "store"

    def held(*, resumed: bool, rounds: int) -> None:
        trackers = chosen_trackers(run.path, tensorboard=None, mlflow=str(store), resumed=resumed)
        play(run, trackers, said, rounds=rounds)

    held(resumed=False, rounds=3)
    client = MlflowClient(str(store))
    experiment = client.get_experiment_by_name("tacit").experiment_id
    (kept,) = client.search_runs([experiment])
    assert (kept.info.run_name, kept.info.status) == (run.path.name, "FAILED")

    def told(name: str) -> dict[int, float]:
        return {metric.step: metric.value for metric in client.get_metric_history(kept.info.run_id, name)}

    assert told("accuracy") == {1: 0.125, 2: 0.25, 3: 0.375}
    assert told("survivors") == {1: 3.0, 2: 4.0, 3: 0.0}
    assert told("bytes") == {1: MOVED, 2: MOVED, 3: MOVED}
    assert Path(client.download_artifacts(kept.info.run_id, "report.html")).read_text() == "<p>the report"
    held(resumed=True, rounds=2)
    (kept,) = client.search_runs([experiment])
    assert kept.info.status == "FINISHED"
    held(resumed=False, rounds=2)
    assert len(client.search_runs([experiment])) == 2
    assert said == []


@with_tensorboard
def test_a_tracker_that_fails_says_so_once_and_the_others_go_on(scripted: ScriptedRun, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    said: list[str] = []
    bad = chosen_trackers(scripted.run.path, tensorboard=tmp_path / "file", mlflow=None, resumed=False)
    good = chosen_trackers(scripted.run.path, tensorboard=tmp_path / "good", mlflow=None, resumed=False)
    play(scripted.run, bad + good, said)
    (line,) = said
    assert line.startswith("--tensorboard: ")
    assert str(tmp_path / "file") in line
    assert line.endswith("; the run is not tracked there any further")
    assert set(board(tmp_path / "good" / scripted.run.path.name)["accuracy"]) == {1, 2, 3}


@with_tensorboard
def test_a_run_without_a_round_is_told_to_nobody(script: Script, tmp_path: Path) -> None:
    written = script()
    written.session()
    play(written.run, chosen_trackers(written.run.path, tensorboard=tmp_path / "board", mlflow=None, resumed=False), [])
    assert not (tmp_path / "board").exists()


@pytest.mark.parametrize("package", ["tensorboard", "mlflow"])
def test_without_its_package_an_option_says_what_to_install(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    options = {"tensorboard": Path("board"), "mlflow": "store"}
    given = {name: options[name] if name == package else None for name in options}
    with pytest.raises(MissingExtraError) as raised:
        chosen_trackers(Path("run"), resumed=False, **given)  # type: ignore[arg-type]
    told = f"--{package} needs {package}, which is not installed: pip install 'tacit[{package}]'"
    assert str(raised.value) == told
