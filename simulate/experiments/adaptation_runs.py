"""Does the work of a table of adaptation (adaptation.py): the owner's backbone, then every row in every column."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

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
from tacit.simulate.experiments.adaptation import AdaptationSize, AdaptationTable, Cell, Cells, DataBlock
from tacit.simulate.experiments.adaptation_images import AdaptationTask, LabelledImages, task
from tacit.simulate.experiments.adaptation_methods import Setting
from tacit.simulate.experiments.adaptation_parts import DataPart
from tacit.simulate.experiments.measurement import Progress


@dataclass(frozen=True, kw_only=True, eq=False)
class ComputedOutputs:
    """Labelled images whose blocks' outputs are computed for those that are asked for."""

    backbone: FriendlyTransformer
    images: LabelledImages
    device: torch.device

    @property
    def labels(self) -> torch.Tensor:
        """See LabelledOutputs."""
        return self.images.labels.to(self.device)

    def part(self, order: Order) -> Features:
        """See LabelledOutputs. ActivationError for an image beyond what the backbone is calibrated for."""
        part = self.images.part(order)
        outputs = block_outputs(self.backbone, part.tensors().to(self.device))
        return Features(outputs=outputs, labels=part.labels.to(self.device))


@dataclass(frozen=True, kw_only=True)
class AdaptationWork:
    """A table whose images are found."""

    table: AdaptationTable
    size: AdaptationSize
    blocks: tuple[DataBlock, ...]
    """Those whose images are there."""
    tasks: dict[DataPart, AdaptationTask] = field(repr=False)
    """Of the owner and of the clients."""

    def measure(self, *, seeds: Sequence[int], device: str, progress: Progress) -> Cells:
        """Every cell. Raises as PreparedMeasurement says."""
        place = resolve_device(device)
        cells: list[Cell] = []
        for seed in seeds:
            backbones: dict[DataPart, FriendlyTransformer] = {}
            for block in self.blocks:
                if block.owned not in backbones:
                    backbones[block.owned] = self.backbone(block.owned, seed, place, progress)
                cells += self._block(block, backbones[block.owned], seed, place, progress)
        return Cells(
            blocks=tuple(block.name for block in self.blocks),
            columns=tuple(column.name for column in self.table.columns),
            cells=tuple(cells),
        )

    def backbone(self, part: DataPart, seed: int, device: torch.device, progress: Progress) -> FriendlyTransformer:
        """The student of a teacher, calibrated on the owner's images."""
        size, owned = self.size, self.tasks[part]
        channels = owned.train.dataset.channels
        teacher = build(size.model, classes=owned.classes, channels=channels, seed=seed)
        x, y = owned.train.tensors(), owned.train.labels
        test = owned.test.tensors(), owned.test.labels
        train(teacher, x, y, size.teacher, seed=seed, device=device)
        settings = size.distillation
        student = convert(
            teacher, Approximation(softmax_degree=settings.softmax_degree, inverse_steps=settings.inverse_steps)
        )
        distill(teacher, student, x, y, test, settings, seed=seed, device=device)
        calibrate(student, x, margin=settings.margin)
        judged = judge(student, teacher, *test, device=device)
        progress(f"backbone, seed {seed}: test accuracy {judged.accuracy:.3f} on the owner's classes")
        return student

    def _block(
        self, block: DataBlock, backbone: FriendlyTransformer, seed: int, device: torch.device, progress: Progress
    ) -> list[Cell]:
        target = self.tasks[block.adapted_to]
        test_outputs = self.outputs(backbone, target.test, device)
        cells = []
        for column in self.table.columns:
            shares = column.division.divide(target.train.labels.numpy(), target.train.centres, seed=seed)
            clients = [target.train.part(share) for share in shares]
            setting = Setting(
                backbone=backbone,
                classes=target.classes,
                device=device,
                clients=clients,
                test=target.test,
                clients_outputs=[self.outputs(backbone, client, device) for client in clients],
                test_outputs=test_outputs,
            )
            for row in self.size.rows:
                if row.method.missing:
                    continue
                schedule = Schedule(
                    rounds=self.size.rounds, learning_rate=row.learning_rate, decay_rounds=self.size.decay_rounds
                )
                begin = time.perf_counter()
                accuracy = row.method.learn(setting, schedule, OneEpoch(self.size.batch_size), seed=seed)
                progress(f"{block.name}, {column.name}, {row.name}, seed {seed}: balanced accuracy {accuracy:.3f}")
                cells.append(
                    Cell(
                        block=block.name,
                        row=row.name,
                        column=column.name,
                        seed=seed,
                        accuracy=accuracy,
                        seconds=time.perf_counter() - begin,
                    )
                )
        return cells

    def outputs(self, backbone: FriendlyTransformer, images: LabelledImages, device: torch.device) -> LabelledOutputs:
        """What its blocks leave of images: at once, or when they are asked for, as the size says."""
        computed = ComputedOutputs(backbone=backbone, images=images, device=device)
        return computed.part(np.arange(len(images.indices))) if self.size.keeps_outputs else computed


def prepare(table: AdaptationTable, *, small: bool, data: Path | None) -> AdaptationWork:
    """Find all images. Raises ValueError or OSError for those that this size does not take."""
    size = table.size(small=small)
    if small and data is not None and data.is_dir():
        raise ValueError(f"--data {data}: the small twin takes an .npz file, or without --data the digits")
    if small and data is not None and size.rows_of_data:
        size = replace(size, rows=size.rows_of_data)
    if not small and (data is None or not data.is_dir()):
        raise ValueError(f"the full size needs --data: a directory with the files of {_sources(size)}")
    datasets: dict[DataConfiguration, Dataset] = {}
    tasks: dict[DataPart, AdaptationTask] = {}

    def found(part: DataPart) -> AdaptationTask:
        if part not in tasks:
            configuration = part.configuration(data)
            if configuration not in datasets:
                datasets[configuration] = load(configuration, image_size=size.model.image_size)
            tasks[part] = task(datasets[configuration], part)
        return tasks[part]

    blocks, missing = [], []
    for block in size.blocks:
        try:
            target = found(block.adapted_to)
        except FileNotFoundError as error:
            missing.append(error)
            continue
        found(block.owned)
        blocks.append(replace(block, name=block.name or ("digits" if data is None else data.name)))
        # Whether there are enough images is known before anything starts, but for rare draws of other seeds.
        for column in table.columns:
            column.division.divide(target.train.labels.numpy(), target.train.centres, seed=0)
    if not blocks:
        raise missing[0]
    return AdaptationWork(table=table, size=size, blocks=tuple(blocks), tasks=tasks)


def _sources(size: AdaptationSize) -> str:
    owned, clients = (
        dict.fromkeys(part.source for part in parts)
        for parts in ([block.owned for block in size.blocks], [block.adapted_to for block in size.blocks])
    )
    return f"{', '.join(owned)} for the owner and of {' or '.join(clients)} for the clients"
