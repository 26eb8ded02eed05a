"""Measures arms: for each seed a federation of real parties in its own directory.

All arms of a seed have the same clients with the same images, the same initial weights and the same order of batches:
the seed of the experiment fixes them, and protection draws its own random numbers. Runs follow each other in one
program, so that the fork server loads torch once for all of them.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from tacit.models.configuration import DataConfiguration, ModelConfiguration, TrainingConfiguration
from tacit.parties.runs.directory import RunDirectory, RunDirectoryError, RunInUseError
from tacit.parties.runs.experiment import Experiment
from tacit.parties.runs.state import parse_event
from tacit.parties.runs.summary import Summary
from tacit.protocol.core.events import Event
from tacit.simulate.experiments.data import CIFAR10_SAMPLES, StudyImages, check_sample, find, halve, sample, stored
from tacit.simulate.experiments.measures import Prepared, Request, Row, StudyError, Values
from tacit.simulate.experiments.results import FederatedRun, Quantity, Run, RunCost
from tacit.simulate.federation.child import Control
from tacit.simulate.federation.party_files import tell
from tacit.simulate.federation.processes import Exit, InputError, Processes, Show, SimulationError
from tacit.simulate.federation.roles import Plan
from tacit.simulate.federation.run import GRACE_SECONDS, new_plan, resumed_plan, simulate

TEST_ACCURACY: Final = Quantity(name="test accuracy", unit="%")


class ModelPretrained(Event, frozen=True, kw_only=True):
    """The training of the rows' initial model."""

    seed: int
    accuracy: float

    @property
    def text(self) -> str:
        return f"trained before, seed {self.seed}: test accuracy {self.accuracy:.3f}"


class AbortedError(SimulationError):
    """A round of a run has no accuracy, so that the run cannot be compared with others."""


@dataclass(frozen=True, kw_only=True)
class Arm(Row):
    experiment: Experiment
    pretrained: bool = False
    """Starts from trained weights: in a small twin from those of `Federations.pretraining`."""


def accuracy_of(arm: Arm, run: FederatedRun) -> Values:
    """Return the accuracy after the last round, in percent."""
    return {TEST_ACCURACY.name: 100 * run.accuracy}


@dataclass(frozen=True, kw_only=True)
class Federations:
    """Run the experiment of every arm by real parties. All arms of a seed have the same clients with the same images,
    the same initial weights and the same order of batches."""

    values: Callable[[Arm, FederatedRun], Values] = accuracy_of
    pretraining: TrainingConfiguration | None = None
    """With it, half of the training images is withheld from the federation, and a model is trained on it centrally."""
    classes: tuple[int, ...] = ()
    """Required numbers of classes, for images of CIFAR-10's size: 10 of CIFAR-10, 43 of GTSRB; (): any images, and
    digits without --data."""
    images_per_client: Mapping[int, int] = field(default_factory=dict)
    """Training and test images of a client by the number of classes; {}: the clients share all."""
    checkpoint: bool = False
    mean: tuple[float, ...] = ()
    """Subtracted from images, per channel as a fraction of 255; empty: mean of all training images."""
    std: tuple[float, ...] = ()
    alpha: float = 0.0
    """Dirichlet concentration of the clients' images; 0: equal shares."""
    record_moves: bool = False

    def summary(self, rows: Sequence[Row]) -> str:
        arms = [row for row in rows if isinstance(row, Arm)]
        models = ", ".join(dict.fromkeys(arm.experiment.model.name for arm in arms))
        data = {(): "digits or --data", (10,): "CIFAR-10"}.get(self.classes, "CIFAR-10 or GTSRB")
        return f"{models}, {arms[0].experiment.federation.rounds} rounds, {data}"

    def prepare(self, name: str, rows: Sequence[Row], request: Request) -> Prepared:
        arms = [row for row in rows if isinstance(row, Arm)]
        if len(arms) < len(rows):
            raise StudyError(f"{name}: rows that Federations measures are each an Arm, with an experiment")
        if self.pretraining is not None:
            self.pretrained_model(arms)
        images = find(
            request.data,
            clients=max(arm.experiment.clients for arm in arms),
            halved=self.pretraining is not None,
            classes=self.classes,
        )
        found = PreparedFederations(settings=self, study=name, arms=arms, images=images, request=request)
        if found.per_client:
            check_sample(images, found.per_client * found.clients)
        for arm in arms:
            for seed in request.seeds:
                # Detect experiments that contradict themselves now.
                found.experiment(arm, seed)
        return found

    def pretrained_model(self, arms: Sequence[Arm]) -> ModelConfiguration:
        models = {arm.experiment.model for arm in arms if arm.pretrained}
        if len(models) != 1:
            raise StudyError("a model is trained before, so that arms start from it: all of these have the same model")
        return models.pop()


@dataclass(frozen=True, kw_only=True)
class PreparedFederations(Prepared):
    settings: Federations
    study: str
    arms: Sequence[Arm] = field(repr=False)
    images: StudyImages

    @property
    def data(self) -> str:
        return self.images.description

    @property
    def differences(self) -> list[str]:
        found, settings = [], self.settings
        if settings.classes and not self.per_client and self.images.samples != CIFAR10_SAMPLES:
            train, test = self.images.samples
            found.append(f"{train:,} training and {test:,} test images instead of 50,000 and 10,000")
        if self.test_images < self.per_client * self.clients:
            wanted = self.per_client * self.clients
            found.append(f"{self.test_images:,} test images, all that there are, instead of {wanted:,}")
        return found

    @property
    def clients(self) -> int:
        return max(arm.experiment.clients for arm in self.arms)

    @property
    def per_client(self) -> int:
        return self.settings.images_per_client.get(len(self.images.source.class_names), 0)

    @property
    def test_images(self) -> int:
        found = self.images.samples[1]
        return min(found, self.per_client * self.clients) if self.per_client else found

    @property
    def folder(self) -> Path:
        return self.request.out / "data"

    @property
    def federated(self) -> DataConfiguration:
        if self.settings.pretraining is not None:
            return stored(self.images, self.folder / "federated.npz")
        return stored(self.images, self.folder / "sample.npz") if self.per_client else self.images.configuration

    def checkpoint(self, seed: int) -> Path:
        return self.folder / f"pretrained-{seed}.safetensors"

    def run_directory(self, arm: Row, seed: int) -> Path:
        return self.request.out / "runs" / arm.directory / str(seed)

    def experiment(self, arm: Arm, seed: int) -> Experiment:
        replace = msgspec.structs.replace
        experiment = arm.experiment
        model = experiment.model
        if arm.pretrained and self.settings.pretraining is not None:
            model = replace(model, checkpoint=str(self.checkpoint(seed).resolve()))
        if self.settings.checkpoint and self.request.checkpoint is not None:
            model = replace(model, checkpoint=str(self.request.checkpoint.resolve()))
        data = self.federated
        if self.settings.alpha:
            data = replace(data, partition="dirichlet", alpha=self.settings.alpha)
        if self.settings.mean:
            data = data.given(self.settings.mean, self.settings.std)
        images = len(self.images.source.train.labels)
        return replace(
            experiment,
            name=f"{self.study}: {arm.name}"[:64],
            federation=replace(experiment.federation, seed=seed),
            data=data,
            model=model,
            # Equal shares; otherwise one client may have nearly all.
            aggregation=replace(
                experiment.aggregation,
                max_weight=images if self.settings.alpha else -(-images // experiment.clients),
            ),
        )

    def start(self, begin: Callable[[str], Show]) -> None:
        if wanted := self.per_client * self.clients:
            sample(self.images, self.folder / "sample.npz", train=wanted, test=wanted)
        if self.settings.pretraining is None:
            return
        halve(self.images, self.folder)
        missing = {seed: self.checkpoint(seed) for seed in self.request.seeds if not self.checkpoint(seed).exists()}
        if missing:
            show = begin("training the models that some arms start from")
            self.request.run(self._pretrain(missing, show))

    def measure(self, row: Row, seed: int, show: Show) -> Run:
        """Measure as Prepared does. A resumed run of a seed equals an uninterrupted one bit for bit."""
        assert isinstance(row, Arm), "checked before"
        experiment, directory = self.experiment(row, seed), self.run_directory(row, seed)
        found = self._finished(experiment, directory)
        if found is None:
            self.request.run(simulate(self._plan(experiment, directory), show))
            found = self._finished(experiment, directory)
        if found is None:
            raise AbortedError(
                f"{row.name}, seed {seed}: a round was aborted, or its model not judged; see {directory}, and give the "
                "command again"
            )
        run, seconds = found
        return Run(seed=seed, values=dict(self.settings.values(row, run)), seconds=seconds, federation=run)

    def _finished(self, experiment: Experiment, directory: Path) -> tuple[FederatedRun, float] | None:
        """Return a completed run with all rounds evaluated, and its duration; None without one."""
        run = RunDirectory(directory)
        try:
            summary = msgspec.json.decode(run.summary.read_bytes(), type=Summary)
        except (OSError, msgspec.MsgspecError):
            return None
        rounds = [one for one in summary.rounds if one.accuracy is not None]
        if len(rounds) < experiment.federation.rounds:
            return None
        moves = None
        if self.settings.record_moves:
            moves = [int(count) for count in np.bincount(run.count_moves(), minlength=len(rounds) + 1)]
        found = FederatedRun(
            directory=str(directory.relative_to(self.request.out)),
            test_images=self.test_images,
            accuracies=[one.accuracy for one in rounds if one.accuracy is not None],
            clipped=sum(one.clipped or 0 for one in rounds),
            cost=_cost(summary),
            parameters=summary.aggregation.parameters if summary.aggregation else 0,
            epsilon_update=summary.privacy.epsilon_update if summary.privacy else None,
            epsilon_sum=summary.privacy.epsilon_sum if summary.privacy else None,
            moves=moves,
        )
        return found, summary.wall_seconds

    def _plan(self, experiment: Experiment, directory: Path) -> Plan:
        options = {"device": self.request.device, "record_moves": self.settings.record_moves, "report": False}
        try:
            return resumed_plan(experiment, RunDirectory.open(directory), **options)
        except RunInUseError:
            raise
        except RunDirectoryError:
            shutil.rmtree(directory, ignore_errors=True)
            return new_plan(experiment, directory, **options)

    async def _pretrain(self, checkpoints: dict[int, Path], show: Show) -> None:
        async with Processes(self.folder, grace_seconds=GRACE_SECONDS) as processes:
            await processes.start(
                "pretraining",
                pretrain,
                data=stored(self.images, self.folder / "pretraining.npz"),
                model=self.settings.pretrained_model(self.arms),
                training=self.settings.pretraining,
                checkpoints=checkpoints,
                device=self.request.device,
            )
            async for name, message in processes.messages():
                if isinstance(message, Exit):
                    raise SimulationError(f"{name}: its process ended unexpectedly: {message}")
                if "failed" in message:
                    raise InputError(f"{name}: {message['failed']} (details in {message['log']})")
                if "finished" in message:
                    return
                show(parse_event(message["event"]))


def _cost(summary: Summary) -> RunCost:
    clients = [name for name, party in summary.parties.items() if party.role == "client"]
    local = [done for one in summary.rounds for done in one.local.values()]
    width = -(-summary.aggregation.ring_bits // 8) if summary.aggregation else 0
    return RunCost(
        kept=width * sum(done.kept for done in local),
        sent=sum(one.bytes_sent[name] for one in summary.rounds for name in clients),
        seconds=sum(one.seconds for one in summary.rounds),
        training_seconds=sum(done.training_seconds for done in local),
        choosing_seconds=sum(done.choosing_seconds for done in local),
    )


async def pretrain(
    control: Control,
    *,
    data: DataConfiguration,
    model: ModelConfiguration,
    training: TrainingConfiguration,
    checkpoints: dict[int, Path],
    device: str,
) -> dict[str, Any]:
    """Train a model for every seed into `checkpoints`, in its own process; return the accuracies."""
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
        # The federation's own initial weights come from the bare seed: the two starts must be independent.
        network = build(model, classes=loaded.classes, channels=loaded.channels, seed=seed + 1_000_000)
        train(network, loaded.x_train, loaded.y_train, training, seed=seed, device=chosen)
        judged = evaluate(network, loaded.x_test, loaded.y_test, batch_size=256, device=chosen)
        layout = Layout.of(network)
        metadata = {"accuracy": f"{judged.accuracy:.4f}"}
        checkpoint.save(path, layout=layout, flat=layout.flatten(network), metadata=metadata)
        show(ModelPretrained(time=time.time(), seed=seed, accuracy=judged.accuracy))
    return {"status": 0}
