"""Runs of adaptation.py: the owner's backbone, then every row in every column."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from tacit.models.adapters.federated import Features, LabelledOutputs, OneEpoch, Order, Schedule
from tacit.models.adapters.parallel import block_outputs
from tacit.models.configuration import DataConfiguration
from tacit.models.data import Dataset, load
from tacit.models.friendly.calibration import calibrate
from tacit.models.friendly.distillation import distill, judge
from tacit.models.friendly.transformer import Approximation, FriendlyTransformer, convert
from tacit.models.networks import build
from tacit.models.training import resolve_device, train
from tacit.simulate.experiments.adaptation import AdaptationRow, AdaptationSettings
from tacit.simulate.experiments.adaptation_images import AdaptationTask, DataBlock, DataPart, LabelledImages, task
from tacit.simulate.experiments.adaptation_methods import Setting
from tacit.simulate.experiments.data import DataError
from tacit.simulate.experiments.federations import ModelPretrained
from tacit.simulate.experiments.measures import Prepared, Request, Row
from tacit.simulate.experiments.results import Run
from tacit.simulate.federation.processes import Show


@dataclass(frozen=True, kw_only=True, eq=False)
class ComputedOutputs:
    """Labelled images whose blocks' outputs are computed on demand."""

    backbone: FriendlyTransformer
    images: LabelledImages
    device: torch.device

    @property
    def labels(self) -> torch.Tensor:
        return self.images.labels.to(self.device)

    def part(self, order: Order) -> Features:
        """See LabelledOutputs. ActivationError for an image out of the backbone's calibrated range."""
        part = self.images.part(order)
        outputs = block_outputs(self.backbone, part.tensors().to(self.device))
        return Features(outputs=outputs, labels=part.labels.to(self.device))


@dataclass(frozen=True, kw_only=True)
class PreparedAdaptation(Prepared):
    settings: AdaptationSettings
    rows: Sequence[AdaptationRow]
    tasks: dict[DataPart, AdaptationTask] = field(repr=False)
    """Tasks of the owner and of the clients whose files were found."""
    _of_seed: dict[int, _Seed] = field(default_factory=dict, repr=False)
    """State of the measured seed alone: several backbones would not fit into memory."""

    @property
    def data(self) -> str:
        names = [block.name for block in self._blocks() if block.name and block.adapted_to in self.tasks]
        return ", ".join(names) or super().data or "digits"

    @property
    def differences(self) -> list[str]:
        absent = ", ".join(block.name for block in self._blocks() if block.adapted_to not in self.tasks)
        return [f"without {absent}, whose files are not in the directory"] if absent else []

    def missing(self, row: Row) -> str:
        assert isinstance(row, AdaptationRow)
        if row.block.adapted_to not in self.tasks:
            return f"there are no files of {row.block.name}"
        return ""

    def measure(self, row: Row, seed: int, show: Show) -> Run:
        assert isinstance(row, AdaptationRow)
        values: dict[str, float | None] = {}
        seconds = 0.0
        for column in self.settings.divisions:
            setting = self.setting(row.block, column, seed, show)
            begin = time.perf_counter()
            work = OneEpoch(self.settings.batch_size)
            values[column] = row.method.learn(setting, self.schedule(row), work, seed=seed)
            seconds += time.perf_counter() - begin
        return Run(seed=seed, values=values, seconds=seconds)

    def schedule(self, row: AdaptationRow) -> Schedule:
        rate = None if self.request.data is None else row.rate_with_data
        return Schedule(
            rounds=self.settings.rounds,
            learning_rate=row.learning_rate if rate is None else rate,
            decay_rounds=self.settings.decay_rounds,
        )

    def setting(self, block: DataBlock, column: str, seed: int, show: Show) -> Setting:
        if seed not in self._of_seed:
            self._of_seed.clear()
            self._of_seed[seed] = _Seed()
        found = self._of_seed[seed]
        if block.owned not in found.backbones:
            found.backbones[block.owned] = self.backbone(block.owned, seed, show)
        backbone, target = found.backbones[block.owned], self.tasks[block.adapted_to]
        if block not in found.test_outputs:
            found.test_outputs[block] = self.outputs(backbone, target.test)
        if (block, column) not in found.settings:
            division = self.settings.divisions[column]
            shares = division.divide(target.train.labels.numpy(), target.train.centres, seed=seed)
            clients = [target.train.part(share) for share in shares]
            found.settings[block, column] = Setting(
                backbone=backbone,
                classes=target.classes,
                device=self._device,
                clients=clients,
                test=target.test,
                clients_outputs=[self.outputs(backbone, client) for client in clients],
                test_outputs=found.test_outputs[block],
            )
        return found.settings[block, column]

    def backbone(self, part: DataPart, seed: int, show: Show) -> FriendlyTransformer:
        settings, owned, device = self.settings, self.tasks[part], self._device
        channels = owned.train.dataset.channels
        teacher = build(settings.model, classes=owned.classes, channels=channels, seed=seed)
        x, y = owned.train.tensors(), owned.train.labels
        test = owned.test.tensors(), owned.test.labels
        train(teacher, x, y, settings.teacher, seed=seed, device=device)
        own = settings.distillation
        student = convert(teacher, Approximation(softmax_degree=own.softmax_degree, inverse_steps=own.inverse_steps))
        distill(teacher, student, x, y, test, own, seed=seed, device=device)
        calibrate(student, x, margin=own.margin)
        judged = judge(student, teacher, *test, device=device)
        show(ModelPretrained(time=time.time(), seed=seed, accuracy=judged.accuracy))
        return student

    def outputs(self, backbone: FriendlyTransformer, images: LabelledImages) -> LabelledOutputs:
        """Return the outputs of its blocks: at once, or on demand, depending on the settings."""
        computed = ComputedOutputs(backbone=backbone, images=images, device=self._device)
        return computed.part(np.arange(len(images.indices))) if self.settings.keeps_outputs else computed

    @property
    def _device(self) -> torch.device:
        return resolve_device(self.request.device)

    def _blocks(self) -> list[DataBlock]:
        return list(dict.fromkeys(row.block for row in self.rows))


@dataclass(frozen=True)
class _Seed:
    backbones: dict[DataPart, FriendlyTransformer] = field(default_factory=dict)
    test_outputs: dict[DataBlock, LabelledOutputs] = field(default_factory=dict)
    settings: dict[tuple[DataBlock, str], Setting] = field(default_factory=dict)


def prepare(settings: AdaptationSettings, rows: Sequence[AdaptationRow], request: Request) -> PreparedAdaptation:
    """Find all images. ValueError for unsuitable images, or a missing device."""
    resolve_device(request.device)
    data, blocks = request.data, list(dict.fromkeys(row.block for row in rows))
    if any(block.adapted_to.source for block in blocks):
        if data is None or not data.is_dir():
            raise DataError(f"the full size needs --data: a directory with the files of {_sources(blocks)}")
    elif data is not None and data.is_dir():
        raise DataError(f"--data {data}: the small twin takes an .npz file, or without --data the digits")
    datasets: dict[DataConfiguration, Dataset] = {}
    tasks: dict[DataPart, AdaptationTask] = {}

    def find(part: DataPart) -> None:
        if part not in tasks:
            configuration = part.configuration(data)
            if configuration not in datasets:
                datasets[configuration] = load(configuration, image_size=settings.model.image_size)
            tasks[part] = task(datasets[configuration], part)

    missing: list[FileNotFoundError] = []
    try:
        for block in blocks:
            try:
                find(block.adapted_to)
            except FileNotFoundError as error:
                missing.append(error)
                continue
            find(block.owned)
            train = tasks[block.adapted_to].train
            # Check for enough images before anything starts; rare draws of other seeds may still fail.
            for division in settings.divisions.values():
                division.divide(train.labels.numpy(), train.centres, seed=0)
        if len(missing) == len(blocks):
            raise missing[0]
    except OSError as error:
        raise DataError(f"--data {data}: {error}") from error
    return PreparedAdaptation(settings=settings, rows=rows, tasks=tasks, request=request)


def _sources(blocks: Sequence[DataBlock]) -> str:
    owned, clients = (
        dict.fromkeys(part.source for part in parts)
        for parts in ([block.owned for block in blocks], [block.adapted_to for block in blocks])
    )
    return f"{', '.join(owned)} for the owner and of {' or '.join(clients)} for the clients"
