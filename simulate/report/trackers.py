"""Where figures of runs are kept: event files of TensorBoard, and a server or folder of MLflow.

Each is an extra. Its package is looked for when the option is read, and imported, which takes seconds, by the thread of
its tracker when there is something to tell.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from tacit.simulate.report.tracking import Tracker

EXPERIMENT: Final = "tacit"
"""Of MLflow: where runs are that no variable MLFLOW_EXPERIMENT_NAME puts elsewhere."""
RUN_TAG: Final = "tacit.run"
"""Of a run in MLflow: its directory, by which a resumed run goes on in the same one."""


class MissingExtraError(Exception):
    """What an option needs is not installed; the message says how it is."""


def require(option: str, package: str, extra: str) -> None:
    """Raise MissingExtraError unless the package can be imported."""
    if find_spec(package) is None:
        raise MissingExtraError(f"{option} needs {package}, which is not installed: pip install 'tacit[{extra}]'")


def chosen_trackers(run: Path, *, tensorboard: Path | None, mlflow: str | None, resumed: bool) -> list[Tracker]:
    """Those that a run in this directory is to have. MissingExtraError without the package of one."""
    chosen: list[Tracker] = []
    if tensorboard is not None:
        chosen.append(TensorBoard(tensorboard, run))
    if mlflow is not None:
        chosen.append(MLflow(mlflow, run, resumed=resumed))
    return chosen


class TensorBoard:
    """Event files in a folder for this run, `<folder>/<name of the run directory>`, with the report beside them."""

    option = "--tensorboard"

    def __init__(self, folder: Path, run: Path) -> None:
        """MissingExtraError without the package."""
        require(self.option, "tensorboard", "tensorboard")
        self._folder = folder / run.resolve().name
        self._writer: Any = None

    def begin(self) -> None:
        """Make the folder. OSError if it cannot be."""
        from tensorboard.summary import Writer

        self._folder.mkdir(parents=True, exist_ok=True)
        self._writer = Writer(str(self._folder))

    def figures(self, round: int, seconds: float, values: Mapping[str, float]) -> None:
        """One scalar each, whose step is the round; on the disk when this returns."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, round, wall_time=seconds)
        self._writer.flush()

    def page(self, path: Path) -> None:
        """A copy: TensorBoard shows no pages."""
        shutil.copyfile(path, self._folder / path.name)

    def end(self, *, completed: bool) -> None:
        """Close the file."""
        self._writer.close()


class MLflow:
    """A run of MLflow, in the experiment `tacit`; its usage reports are off."""

    option = "--mlflow"

    def __init__(self, uri: str, run: Path, *, resumed: bool) -> None:
        """resumed: whether it goes on in what MLflow has of this directory. MissingExtraError without the package."""
        require(self.option, "mlflow", "mlflow")
        self._uri = uri
        self._run = run.resolve()
        self._resumed = resumed
        self._client: Any = None
        self._identifier = ""

    def begin(self) -> None:
        """Find the run, or make it. MlflowException if that fails, after as many attempts as MLflow makes."""
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        from mlflow.tracking import MlflowClient

        self._client = MlflowClient(self._uri)
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
        known = self._client.get_experiment_by_name(name)
        experiment = self._client.create_experiment(name) if known is None else known.experiment_id
        same = f'tags.`{RUN_TAG}` = "{self._run}"'
        # The latest comes first: an earlier run may have had the same directory.
        if self._resumed and (found := self._client.search_runs([experiment], same, max_results=1)):
            self._identifier = found[0].info.run_id
            self._client.update_run(self._identifier, status="RUNNING")
        else:
            made = self._client.create_run(experiment, run_name=self._run.name, tags={RUN_TAG: str(self._run)})
            self._identifier = made.info.run_id

    def figures(self, round: int, seconds: float, values: Mapping[str, float]) -> None:
        """One metric each, whose step is the round."""
        for name, value in values.items():
            self._client.log_metric(self._identifier, name, value, timestamp=int(1000 * seconds), step=round)

    def page(self, path: Path) -> None:
        """An artefact of the run."""
        self._client.log_artifact(self._identifier, str(path))

    def end(self, *, completed: bool) -> None:
        """FINISHED, or FAILED."""
        self._client.set_terminated(self._identifier, "FINISHED" if completed else "FAILED")
