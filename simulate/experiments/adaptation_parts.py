"""Which images a table of adaptation takes of a data set, and how they are divided among clients. Loads no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from tacit.models.configuration import DataConfiguration
from tacit.models.datasets.samples import Indices
from tacit.models.partition import by_centre, dirichlet


@dataclass(frozen=True, kw_only=True)
class DataPart:
    """Some images of a data set."""

    source: str = ""
    """As of `data.source`; "": those of the small twin, which are digits or the file of --data."""
    half: int | None = None
    """The first (0) or the second half (1) of its classes; None: all."""
    centres: tuple[int, ...] = ()
    """Where they were taken; (): anywhere."""
    most_per_class: int | None = None
    """No more than the first so many of a class, for training and for tests; None: all."""

    def of_classes(self, count: int) -> Indices:
        """Which of so many classes."""
        return np.arange(count) if self.half is None else np.array_split(np.arange(count), 2)[self.half]

    def configuration(self, data: Path | None) -> DataConfiguration:
        """Where the images are, with --data."""
        place = "" if data is None else str(data.resolve())
        if self.source:
            return DataConfiguration(source=self.source, directory=place)
        return DataConfiguration(source=place) if place else DataConfiguration()


class Division(Protocol):
    """How training images are divided among clients."""

    def divide(self, labels: Indices, centres: Indices | None, *, seed: int) -> list[Indices]:
        """The indices of every client, for labels int64 [N] and centres [N]. ValueError for too few images."""


@dataclass(frozen=True)
class Pooled:
    """All in one place."""

    def divide(self, labels: Indices, centres: Indices | None, *, seed: int) -> list[Indices]:
        """See Division. Nothing is drawn."""
        return [np.arange(len(labels))]


@dataclass(frozen=True)
class ByDirichlet:
    """Every client has its own mixture of classes."""

    clients: int
    alpha: float

    def divide(self, labels: Indices, centres: Indices | None, *, seed: int) -> list[Indices]:
        """See Division and partition.dirichlet."""
        return dirichlet(labels, clients=self.clients, alpha=self.alpha, seed=seed)


@dataclass(frozen=True)
class ByCentre:
    """A client for every centre."""

    def divide(self, labels: Indices, centres: Indices | None, *, seed: int) -> list[Indices]:
        """See Division. ValueError for images without centres."""
        if centres is None:
            raise ValueError("the images do not say at which centre they were taken; take those of Fed-ISIC2019")
        return by_centre(centres, clients=len(np.unique(centres)))
