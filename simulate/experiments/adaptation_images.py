"""The images of a table of adaptation: the owner's, on which a backbone is made, and the clients', of other classes.

Both may be parts of one data set, by classes or by centres. Images are tensors only for as long as they are asked for:
at the paper's size those of one data set would take 90 GB.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from tacit.models.adapters.federated import Order
from tacit.models.data import Dataset
from tacit.models.datasets.samples import Indices, Samples
from tacit.models.training import EVALUATION_BATCH
from tacit.simulate.experiments.adaptation_parts import DataPart


@dataclass(frozen=True, kw_only=True, eq=False)
class LabelledImages:
    """Some images of a data set. The printed form shows none of them."""

    dataset: Dataset = field(repr=False)
    samples: Samples = field(repr=False)
    """The training or the test images of the data set."""
    indices: Indices = field(repr=False)
    """Which of them, int64 [N]."""
    labels: torch.Tensor = field(repr=False)
    """Classes of the task, int64 [N], from 0."""

    @property
    def centres(self) -> Indices | None:
        """Where each was taken, int64 [N]; None if the data set does not say."""
        return None if self.samples.centres is None else self.samples.centres[self.indices]

    def part(self, order: Order) -> LabelledImages:
        """The images at these indices, in their order."""
        return replace(self, indices=self.indices[order], labels=self.labels[torch.from_numpy(order)])

    def tensors(self) -> torch.Tensor:
        """The images, float32 [N, C, S, S]."""
        return self.dataset.normalised(self.samples.images, self.indices)

    def batches(self) -> Iterator[LabelledImages]:
        """All, a few at a time."""
        for start in range(0, len(self.indices), EVALUATION_BATCH):
            yield self.part(np.arange(start, min(start + EVALUATION_BATCH, len(self.indices))))


@dataclass(frozen=True, kw_only=True, eq=False)
class AdaptationTask:
    """What is to be told apart."""

    classes: int
    train: LabelledImages
    test: LabelledImages


def task(dataset: Dataset, part: DataPart) -> AdaptationTask:
    """This part of a data set, its classes numbered from 0. ValueError if fewer than two of them have training images,
    or there is no test image."""
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
