"""Makes the runs of a study: every arm with every seed, each a federation of real parties in a directory of its own.

All arms of a seed have the same clients with the same images, the same initial weights and the same order of batches:
the seed of the experiment fixes them, and protection draws its own random numbers. Runs follow each other in one
program, so that the fork server loads torch once for all of them.

The directory of a study:

study.json          the settings of its runs: finished results are kept only as long as these stay the same
data/               in studies that train a model before: the two halves of the images, and the models
runs/ARM/SEED/      run directories, as `tacit simulate` makes them, without report.html (`tacit report` draws it)
table.md, table.json, plot.svg      the results (page.py)
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np

from tacit.models.configuration import DataConfiguration, ModelConfiguration, TrainingConfiguration
from tacit.parties.runs.directory import (
    RunDirectory,
    RunDirectoryError,
    RunInUseError,
    check_release,
    claim,
    mark_release,
    writing,
)
from tacit.parties.runs.experiment import Experiment
from tacit.parties.runs.state import parse_event
from tacit.protocol.core.events import Event
from tacit.simulate.experiments.data import StudyImages, find, halve, sample
from tacit.simulate.experiments.study import Arm, ArmResult, RunCost, RunResult, Size, Study
from tacit.simulate.federation.child import Control
from tacit.simulate.federation.processes import Exit, InputError, Processes, Show, SimulationError
from tacit.simulate.federation.roles import Plan, tell
from tacit.simulate.federation.run import GRACE_SECONDS, new_plan, resumed_plan, simulate


class Watcher(Protocol):
    """Whoever shows what is going on."""

    def began(self, title: str) -> Show:
        """A run, or the training before all runs, begins; returns what is called for the events of its parties."""
        ...

    def ended(self, title: str, result: RunResult) -> None:
        """A run is over."""
        ...


class ModelPretrained(Event, frozen=True, kw_only=True):
    """A model that arms start from is trained."""

    seed: int
    accuracy: float
    """On the test images of the pretraining."""

    @property
    def text(self) -> str:
        return f"trained before, seed {self.seed}: test accuracy {self.accuracy:.3f}"


class ArmsError(ValueError):
    """A pattern fits no arm; the message names the arms that there are."""


class AbortedError(SimulationError):
    """A round of a run gave no accuracy, so that the run cannot be compared with others."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run: an arm with a seed."""

    arm: Arm
    seed: int
    experiment: Experiment
    directory: Path

    @property
    def title(self) -> str:
        """For whoever watches."""
        return f"{self.arm.name}, seed {self.seed}"


@dataclass(frozen=True, kw_only=True)
class PreparedStudy:
    """A study that can start: everything about it is checked."""

    study: Study
    small: bool
    seeds: tuple[int, ...]
    arms: tuple[Arm, ...]
    """Those that run."""
    images: StudyImages
    device: str
    out: Path
    federated: DataConfiguration = field(repr=False)
    """What the clients train on."""
    test_images: int
    """With which all of them are judged."""
    pretraining: DataConfiguration | None = field(repr=False)
    """What a model is trained on before, if this study does so."""

    @property
    def size(self) -> Size:
        """The settings."""
        return self.study.size(small=self.small)

    def jobs(self) -> Iterator[Job]:
        """Every run, seed by seed, so that the first seeds of all arms are there first."""
        for seed in self.seeds:
            for arm in self.arms:
                yield self._job(arm, seed)

    def results(self) -> list[ArmResult]:
        """Of every arm, among `arms` or not, whose runs with these seeds are all over."""
        found = []
        for arm in self.size.arms:
            runs = tuple(run for seed in self.seeds if (run := self.finished(self._job(arm, seed))) is not None)
            if len(runs) == len(self.seeds):
                found.append(ArmResult(arm=arm, runs=runs))
        return found

    def checkpoint(self, seed: int) -> Path:
        """The model that is trained before."""
        return self.out / "data" / f"pretrained-{seed}.safetensors"

    def finished(self, job: Job) -> RunResult | None:
        """The result of a run that is over, with all rounds completed and judged; None if there is none."""
        run = RunDirectory(job.directory)
        try:
            summary: dict[str, Any] = msgspec.json.decode(run.summary.read_bytes())
        except (OSError, msgspec.DecodeError):
            return None
        rounds = [entry for entry in summary["rounds"] if entry["accuracy"] is not None]
        if len(rounds) < job.experiment.federation.rounds:
            return None
        moves = None
        if self.study.record_moves:
            moves = [int(count) for count in np.bincount(run.count_moves(), minlength=len(rounds) + 1)]
        return RunResult(
            arm=job.arm.name,
            seed=job.seed,
            directory=str(job.directory.relative_to(self.out)),
            test_images=self.test_images,
            accuracies=[entry["accuracy"] for entry in rounds],
            clipped=sum(entry["clipped"] for entry in rounds),
            seconds=summary["wall_seconds"],
            cost=_cost(summary),
            moves=moves,
        )

    def _job(self, arm: Arm, seed: int) -> Job:
        directory = self.out / "runs" / arm.name / str(seed)
        return Job(arm=arm, seed=seed, experiment=self._experiment(arm, seed), directory=directory)

    def _experiment(self, arm: Arm, seed: int) -> Experiment:
        replace = msgspec.structs.replace
        experiment = arm.experiment
        model = experiment.model
        if arm.pretrained and self.pretraining is not None:
            model = replace(model, checkpoint=str(self.checkpoint(seed).resolve()))
        images = len(self.images.source.train.labels)
        return replace(
            experiment,
            name=f"{self.study.name}: {arm.name}"[:64],
            federation=replace(experiment.federation, seed=seed),
            data=self.federated,
            model=model,
            aggregation=replace(experiment.aggregation, max_weight=-(-images // experiment.clients)),
        )


def prepare(
    study: Study,
    *,
    small: bool,
    seeds: Sequence[int],
    data: Path | None,
    device: str,
    out: Path,
    patterns: Sequence[str] = ("*",),
) -> PreparedStudy:
    """Check everything that can be checked before a run, and write what all runs share.

    patterns: the arms that run, as the shell matches names. Raises ArmsError for these, DataError for the images and
    RunDirectoryError for the directory; OSError if the disk is full.
    """
    size = study.size(small=small)
    for pattern in patterns:
        if not any(fnmatchcase(arm.name, pattern) for arm in size.arms):
            raise ArmsError(f"{study.name} has no arm {pattern!r}; it has {', '.join(arm.name for arm in size.arms)}")
    clients = max(arm.experiment.clients for arm in size.arms)
    images = find(
        data,
        small=small,
        clients=clients,
        halved=size.pretraining is not None,
        classes=tuple(study.images_per_client) or (10,),
    )
    _claim(out, study, size, images, small=small, device=device)
    federated, pretraining = images.configuration, None
    _, test_images = images.samples
    if size.pretraining is not None:
        pretraining, federated = halve(images, out / "data")
    elif study.images_per_client and not small:
        per_client = study.images_per_client[len(images.source.class_names)]
        federated = sample(images, out / "data", per_client=per_client, clients=clients)
        test_images = min(test_images, per_client * clients)
    work = PreparedStudy(
        study=study,
        small=small,
        seeds=tuple(seeds),
        arms=tuple(arm for arm in size.arms if any(fnmatchcase(arm.name, pattern) for pattern in patterns)),
        images=images,
        device=device,
        out=out,
        federated=federated,
        test_images=test_images,
        pretraining=pretraining,
    )
    list(work.jobs())  # An experiment that contradicts itself says so now.
    return work


async def run_study(work: PreparedStudy, watcher: Watcher) -> list[ArmResult]:
    """Make every run of the chosen arms that has no result yet; returns the results of all that are over.

    Raises as `tacit.simulate.federation.run.simulate` does, and AbortedError.
    """
    await _pretrain(work, watcher)
    for job in work.jobs():
        if work.finished(job) is not None:
            continue
        await simulate(_plan(work, job), watcher.began(job.title))
        found = work.finished(job)
        if found is None:
            raise AbortedError(
                f"{job.title}: a round was aborted, or its model not judged; see {job.directory}, and give the "
                "command again"
            )
        watcher.ended(job.title, found)
    return work.results()


def _cost(summary: dict[str, Any]) -> RunCost:
    """Read off the summary of a run."""
    clients = {name for name, party in summary["parties"].items() if party["role"] == "client"}
    rounds = summary["rounds"]
    local = [done for entry in rounds for done in entry["local"].values()]
    width = -(-summary["aggregation"]["ring_bits"] // 8)
    return RunCost(
        kept=width * sum(done["kept"] for done in local),
        sent=sum(entry["bytes_sent"][name] for entry in rounds for name in clients),
        seconds=sum(entry["seconds"] for entry in rounds),
        training_seconds=sum(done["training_seconds"] for done in local),
        choosing_seconds=sum(done["choosing_seconds"] for done in local),
    )


def _plan(work: PreparedStudy, job: Job) -> Plan:
    options = {"device": work.device, "record_moves": work.study.record_moves, "report": False}
    try:
        # A run with a seed that was interrupted goes on bit for bit as if it had not been.
        return resumed_plan(job.experiment, RunDirectory.open(job.directory), **options)
    except RunInUseError:
        raise
    except RunDirectoryError:
        shutil.rmtree(job.directory, ignore_errors=True)
        return new_plan(job.experiment, job.directory, **options)


async def _pretrain(work: PreparedStudy, watcher: Watcher) -> None:
    missing = {seed: work.checkpoint(seed) for seed in work.seeds if not work.checkpoint(seed).exists()}
    if work.pretraining is None or not missing:
        return
    show = watcher.began("training the models that some arms start from")
    async with Processes(work.out / "data", grace_seconds=GRACE_SECONDS) as processes:
        await processes.start(
            "pretraining",
            pretrain,
            data=work.pretraining,
            model=work.size.pretrained_model,
            training=work.size.pretraining,
            checkpoints=missing,
            device=work.device,
        )
        async for name, message in processes.messages():
            if isinstance(message, Exit):
                raise SimulationError(f"{name}: its process ended unexpectedly: {message}")
            if "failed" in message:
                raise InputError(f"{name}: {message['failed']} (details in {message['log']})")
            if "finished" in message:
                return
            show(parse_event(message["event"]))


async def pretrain(
    control: Control,
    *,
    data: DataConfiguration,
    model: ModelConfiguration,
    training: TrainingConfiguration,
    checkpoints: dict[int, Path],
    device: str,
) -> dict[str, Any]:
    """Runs in a process of its own: writes a model for every seed in `checkpoints`, and reports how accurate it is."""
    import torch

    from tacit.models import checkpoint
    from tacit.models import data as images
    from tacit.models.layout import Layout
    from tacit.models.networks import build
    from tacit.models.training import evaluate, resolve_device, train

    torch.set_num_threads(1)
    show = tell(control)
    chosen = resolve_device(device)
    loaded = images.load(data, image_size=model.image_size)
    for seed, path in checkpoints.items():
        # The federation's own initial weights come from the bare seed: the two starts are to be independent.
        network = build(model, classes=loaded.classes, channels=loaded.channels, seed=seed + 1_000_000)
        train(network, loaded.x_train, loaded.y_train, training, seed=seed, device=chosen)
        judged = evaluate(network, loaded.x_test, loaded.y_test, batch_size=256, device=chosen)
        layout = Layout.of(network)
        metadata = {"accuracy": f"{judged.accuracy:.4f}"}
        checkpoint.save(path, layout=layout, flat=layout.flatten(network), metadata=metadata)
        show(ModelPretrained(time=time.time(), seed=seed, accuracy=judged.accuracy))
    return {"status": 0}


def _claim(out: Path, study: Study, size: Size, images: StudyImages, *, small: bool, device: str) -> None:
    """Make the directory that of these settings, or see that it is."""
    stamp = msgspec.json.encode(
        {
            "study": study.name,
            "small": small,
            "device": device,
            "data": [msgspec.to_builtins(images.configuration), images.description],
            "pretraining": size.pretraining,
            "arms": {arm.name: [arm.pretrained, arm.experiment] for arm in size.arms},
        }
    )
    path = out / "study.json"
    if os.path.exists(path):
        check_release(out)
    if not os.path.exists(path):
        claim(out, taken="exists already and is not that of a study: choose another one with --out")
        mark_release(out)
    elif path.read_bytes() != stamp:
        raise RunDirectoryError(
            f"{out} holds results of another study, or of other settings, data or device: choose another directory "
            "with --out"
        )
    with writing(path):
        path.write_bytes(stamp)
