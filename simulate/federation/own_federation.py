"""`Federation`: a custom model, data and training in the processes of a simulation."""

from __future__ import annotations

import asyncio
import math
import os
from collections import defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import current_process
from pathlib import Path
from typing import Any

from tacit.models.file_system import replace_file
from tacit.parties.runs.directory import RunDirectory
from tacit.parties.runs.events import PartyFailed
from tacit.parties.runs.experiment import Experiment, load
from tacit.parties.runs.own_functions import FederationResult, Round, differences, experiment_of, named_functions
from tacit.parties.runs.summary import Summary, summarise
from tacit.parties.session.events import RoundEnded
from tacit.protocol.core.events import Event
from tacit.simulate.federation.processes import ProcessError, Show, SimulationError
from tacit.simulate.federation.roles import Plan
from tacit.simulate.federation.run import default_directory, new_plan, resumed_plan, simulate


class _StoppedError(Exception):
    """A callback stopped the run."""


class Federation:
    """A server and clients on this machine, each a process, that train a custom model under secure aggregation.

    model: () -> nn.Module, whose parameters are float32. data: (client, clients) -> the client's data; clients count
    from 0. train: (model, data) -> None if it trained the model in place, or a trained model or its state dictionary,
    or an update to be added: a vector, or a mapping of names to tensors; a third parameter `context` receives a
    tacit.models.workload.Context. None: the training of `training=`, on images and labels (x, y). A client's weight is
    the number of samples in its data.

    Other processes import functions and classes of modules, and of the running script, which must call `run` under `if
    __name__ == "__main__":`. Functions of a notebook, partials and lambdas are stored in the run directory. keys:
    further keys and sections of an experiment file (docs/configuration.md), such as aggregation={"clip": 1.0}.
    directory: a new one; by default runs/<time>-<name>. resume: continue the run in `directory`, if there is one, until
    it has all `rounds`. checkpoints: store every model after so many rounds, and the best, in checkpoints/. ValueError
    for an invalid configuration.
    """

    def __init__(
        self,
        *,
        model: Callable[[], Any],
        data: Callable[[int, int], Any],
        train: Callable[..., Any] | None = None,
        clients: int = 5,
        rounds: int = 10,
        seed: int | None = None,
        directory: str | os.PathLike[str] | None = None,
        resume: bool = False,
        checkpoints: int = 0,
        device: str = "cpu",
        **keys: Any,
    ) -> None:
        if "out" in keys:
            raise ValueError("Federation: out: the run directory is `directory`")
        if resume and directory is None:
            raise ValueError("Federation: resume = True: say which run, by directory = ...")
        named, self._kept = named_functions("Federation", {"model": model, "data": data, "training": train}, keep=True)
        self.experiment = experiment_of("Federation", named, clients=clients, rounds=rounds, seed=seed, keys=keys)
        self._directory = None if directory is None else Path(directory).expanduser()
        self._resume, self._checkpoints, self._device = resume, checkpoints, device

    def run(
        self,
        show: Show = lambda event: None,
        *,
        on_round: Callable[[Round], bool | None] = lambda round: None,
        evaluate: Callable[[Any], Mapping[str, float] | float] | None = None,
    ) -> FederationResult:
        """Run all rounds. show: receives every event of the parties. on_round: called after every round; True stops the
        run, with a result. evaluate: called with the model after every completed round, in this process; returns
        metrics by name, or the accuracy. Their exceptions end the run, which has a report and can be resumed.

        FederationError if not all rounds are completed; ValueError if the directory is taken; OSError if the disk is
        full; RuntimeError where the script lacks the `if __name__ == "__main__":`.
        """
        if getattr(current_process(), "_inheriting", False):
            # multiprocessing sets this while it imports the script of a process that it has started.
            raise RuntimeError(
                'Federation.run: every process imports this script; call it under `if __name__ == "__main__":`'
            )
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return self._run(show, on_round, evaluate)
        # As in a notebook, which waits for its cell anyway.
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(self._run, show, on_round, evaluate).result()

    def _run(
        self,
        show: Show,
        on_round: Callable[[Round], bool | None],
        evaluate: Callable[[Any], Mapping[str, float] | float] | None,
    ) -> FederationResult:
        directory = self._directory or default_directory(self.experiment.name)
        plan = self._plan(directory)
        if plan is None:
            done = summarise(RunDirectory(directory), self.experiment, ended="all rounds were done before")
            return FederationResult(directory, self.experiment, done)
        reasons: defaultdict[str, list[str]] = defaultdict(list)
        follow = _Following(directory, self.experiment, self._checkpoints, on_round, evaluate)

        def watch(event: Event) -> None:
            aborted = isinstance(event, RoundEnded) and event.status != "completed"
            if aborted or isinstance(event, PartyFailed):
                reasons[event.text].append(event.party)
            show(event)
            if isinstance(event, RoundEnded):
                follow.round_ended(event)

        summary: Summary | None = None
        try:
            summary = asyncio.run(simulate(plan, watch))
        except _StoppedError:
            ended = summarise(plan.run, self.experiment, ended="stopped by on_round")
            return FederationResult(directory, self.experiment, ended, follow.metrics)
        except (SimulationError, ProcessError) as error:
            reasons[str(error)] = []
        return FederationResult(directory, self.experiment, summary, follow.metrics).checked(reasons)

    def _plan(self, directory: Path) -> Plan | None:
        """Return the plan of the remaining rounds; None if all are done."""
        run = RunDirectory(directory)
        if self._resume and run.experiment.is_file():
            if changed := differences(load(run.experiment), self.experiment):
                raise ValueError(f"Federation: directory = {directory} is a run with other keys: {'; '.join(changed)}")
            done = RunDirectory.open(directory).progress()
            if done.round - done.repeated >= self.experiment.federation.rounds:
                return None
            plan = resumed_plan(self.experiment, run, device=self._device, step_by_step=True)
        elif directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise ValueError(
                f"Federation: directory = {directory}: there is something already; name another one"
                + ", or go on with that run by resume=True" * run.experiment.is_file()
            )
        else:
            plan = new_plan(self.experiment, directory, device=self._device, step_by_step=True)
        if self._kept is not None:
            self._kept.write(directory)
        return plan


class _Following:
    def __init__(
        self,
        directory: Path,
        experiment: Experiment,
        checkpoints: int,
        on_round: Callable[[Round], bool | None],
        evaluate: Callable[[Any], Mapping[str, float] | float] | None,
    ) -> None:
        self._directory, self._experiment, self._checkpoints = directory, experiment, checkpoints
        self._on_round, self._evaluate = on_round, evaluate
        self._best = -math.inf
        self.metrics: dict[int, Mapping[str, float]] = {}
        """Keyed by round."""

    def round_ended(self, event: RoundEnded) -> None:
        metrics: Mapping[str, float] = {}
        if event.status == "completed":
            metrics = self._judge(event)
            if self._checkpoints and event.round % self._checkpoints == 0:
                self._keep(f"round-{event.round}")
        if self._on_round(Round(event, metrics)):
            raise _StoppedError("on_round ended the run")

    def _judge(self, event: RoundEnded) -> Mapping[str, float]:
        found: Mapping[str, float] | float = {}
        if self._evaluate is not None:
            found = self._evaluate(FederationResult(self._directory, self._experiment, None).model)
        judged = {"accuracy": float(found)} if isinstance(found, int | float) else dict(found)
        metrics, accuracy = event.metrics | judged, judged.get("accuracy", event.accuracy)
        if accuracy is not None and accuracy > self._best and self._checkpoints:
            self._best = accuracy
            self._keep("best")
        if metrics:
            self.metrics[event.round] = metrics
        return metrics

    def _keep(self, name: str) -> None:
        run, folder = RunDirectory(self._directory), self._directory / "checkpoints"
        folder.mkdir(exist_ok=True)
        model = run.plain_model if self._experiment.encryption else run.model
        replace_file(folder / f"{name}.safetensors", model.read_bytes())
