"""Images of adaptations: the owner's, on which a backbone is made, and the clients', of other classes.

Both may be parts of one data set, by classes or by centres. Tensors of images are temporary: at the paper's size those
of one data set would take 90 GB. torch is loaded on demand.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from tacit.models.configuration import DataConfiguration
from tacit.models.datasets.samples import Indices, Samples
from tacit.models.partition import by_centre, dirichlet

if TYPE_CHECKING:
    import torch

    from tacit.models.adapters.federated import Order
    from tacit.models.data import Dataset


@dataclass(frozen=True, kw_only=True)
class DataPart:
    source: str = ""
    """A `data.source`; empty for the small twin, which uses digits or the file of --data."""
    half: int | None = None
    """The first (0) or the second half (1) of its classes; None: all."""
    centres: tuple[int, ...] = ()
    most_per_class: int | None = None
    """Only the first so many of each class, for training and for tests; None: all."""

    def of_classes(self, count: int) -> Indices:
        return np.arange(count) if self.half is None else np.array_split(np.arange(count), 2)[self.half]

    def configuration(self, data: Path | None) -> DataConfiguration:
        place = "" if data is None else str(data.resolve())
        if self.source:
            return DataConfiguration(source=self.source, directory=place)
        return DataConfiguration(source=place) if place else DataConfiguration()


class Division(Protocol):
    def divide(self, labels: Indices, centres: Indices | None, *, seed: int) -> list[Indices]:
        """Return the indices of every client, for labels int64 [N] and centres [N]. ValueError for too few images."""


@dataclass(frozen=True)
class Pooled:
    def divide(self, labels: Indices, centres: Indices | None, *, seed: int) -> list[Indices]:
        return [np.arange(len(labels))]


@dataclass(frozen=True)
class ByDirichlet:
    clients: int
    alpha: float

    def divide(self, labels: Indices, centres: Indices | None, *, seed: int) -> list[Indices]:
        return dirichlet(labels, clients=self.clients, alpha=self.alpha, seed=seed)


@dataclass(frozen=True)
class ByCentre:
    def divide(self, labels: Indices, centres: Indices | None, *, seed: int) -> list[Indices]:
        if centres is None:
            raise ValueError("the images do not say at which centre they were taken; take those of Fed-ISIC2019")
        return by_centre(centres, clients=len(np.unique(centres)))


@dataclass(frozen=True, kw_only=True)
class DataBlock:
    name: str = ""
    """Name of the data set, a prefix of its rows' names; empty for a small twin."""
    owned: DataPart
    adapted_to: DataPart

    def row(self, name: str) -> str:
        return f"{self.name}: {name}" if self.name else name


@dataclass(frozen=True, kw_only=True, eq=False)
class LabelledImages:
    """Some images of a data set. The representation shows none of them."""

    dataset: Dataset = field(repr=False)
    samples: Samples = field(repr=False)
    """Training or test images of the data set."""
    indices: Indices = field(repr=False)
    labels: torch.Tensor = field(repr=False)
    """Classes of the task, int64 [N], from 0."""

    @property
    def centres(self) -> Indices | None:
        """Return the centre of each image, int64 [N]; None if the data set does not say."""
        return None if self.samples.centres is None else self.samples.centres[self.indices]

    def part(self, order: Order) -> LabelledImages:
        import torch

        return replace(self, indices=self.indices[order], labels=self.labels[torch.from_numpy(order)])

    def tensors(self) -> torch.Tensor:
        return self.dataset.normalised(self.samples.images, self.indices)

    def batches(self) -> Iterator[LabelledImages]:
        from tacit.models.training import EVALUATION_BATCH

        for start in range(0, len(self.indices), EVALUATION_BATCH):
            yield self.part(np.arange(start, min(start + EVALUATION_BATCH, len(self.indices))))


@dataclass(frozen=True, kw_only=True, eq=False)
class AdaptationTask:
    classes: int
    train: LabelledImages
    test: LabelledImages


def task(dataset: Dataset, part: DataPart) -> AdaptationTask:
    """Return this part of a data set, its classes numbered from 0. ValueError if fewer than two of them have training
    images, or there is no test image."""
    import torch

    names = dataset.source.class_names
    wanted = part.of_classes(len(names))
    found = {}
    for kind, samples in (("train", dataset.source.train), ("test", dataset.source.test)):
        chosen = np.isin(samples.labels, wanted)
        if part.centres:
            if samples.centres is None:
                raise ValueError(f"data set {part.source}: does not say at which centre an image was taken")
            chosen &= np.isin(samples.centres, part.centres)
        indices = np.flatnonzero(chosen)
        if part.most_per_class is not None:
            indices = np.sort(
                np.concatenate([indices[samples.labels[indices] == label][: part.most_per_class] for label in wanted])
            )
        labels = torch.from_numpy(np.searchsorted(wanted, samples.labels[indices]))
        found[kind] = LabelledImages(dataset=dataset, samples=samples, indices=indices, labels=labels)
    counts = torch.bincount(found["train"].labels, minlength=len(wanted))
    present = int((counts > 0).sum())
    if present < 2 or len(found["test"].labels) == 0:
        raise ValueError(
            f"of {len(names)} classes, one side takes {len(wanted)}, of which {present} have training images, and "
            f"{len(found['test'].labels)} test images; each side needs two classes to train on, and images to test with"
        )
    return AdaptationTask(classes=len(wanted), **found)
