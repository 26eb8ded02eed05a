"""Measurement of a study's rows: the interface of all kinds, and the kind that calls a function."""

from __future__ import annotations

import asyncio
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from tacit.simulate.experiments.results import Run

if TYPE_CHECKING:
    from tacit.simulate.federation.processes import Show

MOST_SEEDS: Final = 1000
LARGEST: Final = 999_999

Values = Mapping[str, float | None]
"""Keyed by the name of the quantity; None if a row does not have it."""


class StudyError(ValueError):
    """An invalid study, or choice of its rows and seeds; the message gives the reason and valid choices."""


def read_seeds(text: str) -> tuple[int, ...]:
    """Parse ascending numbers and ranges, separated by commas. StudyError."""
    seeds: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", part.strip(), flags=re.ASCII)
        if match is None:
            raise StudyError(f"--seeds {text}: {part!r} is no seed: give numbers up to {LARGEST}, as in 0-4 or 0,2,7")
        first = int(match[1])
        seeds += range(first, int(match[2] or first) + 1)
        if len(seeds) > MOST_SEEDS:
            raise StudyError(f"--seeds {text}: at most {MOST_SEEDS} runs of a row")
        if match[2] and int(match[2]) < first:
            raise StudyError(f"--seeds {text}: {part!r} goes down; write it as {match[2]}-{match[1]}")
    if any(later <= earlier for earlier, later in pairwise(seeds)):
        raise StudyError(f"--seeds {text}: every seed once, in ascending order")
    return tuple(seeds)


@dataclass(frozen=True, kw_only=True)
class Row:
    name: str
    published: Mapping[str, str] = field(default_factory=dict)
    """The paper's values, by the name of the quantity."""

    @property
    def directory(self) -> str:
        return re.sub(r"[^\w.]+", "-", self.name)


@dataclass(frozen=True, kw_only=True)
class Request:
    seeds: tuple[int, ...]
    data: Path | None
    device: str
    out: Path
    run: Callable[[Coroutine[Any, Any, Any]], Any] = asyncio.run
    """Runs a coroutine to its end, or until it is interrupted."""
    checkpoint: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Prepared(ABC):
    """Rows that are ready to measure: settings and data are checked, and nothing is written yet."""

    request: Request

    @property
    def data(self) -> str:
        return "" if self.request.data is None else self.request.data.name

    @property
    def differences(self) -> Sequence[str]:
        """Describe deviations of data or settings from the paper, beyond those of the size."""
        return ()

    def missing(self, row: Row) -> str:
        return ""

    def start(self, begin: Callable[[str], Show]) -> None:  # noqa: B027  # Most share nothing.
        """Make the rows' shared resources: by default none. begin: called with the title of a step, returns the
        receiver of its events. Raises as `measure`."""

    @abstractmethod
    def measure(self, row: Row, seed: int, show: Show) -> Run:
        """Measure a row with a seed. ValueError or OSError for unusable data, model or device, FloatingPointError for a
        training that diverges, ProcessError or SimulationError for failed parties."""


class Measure(Protocol):
    """Measurement of the rows of a size: a dataclass with their common settings."""

    def summary(self, rows: Sequence[Row]) -> str:
        """Describe the effort, for the list of studies."""

    def prepare(self, name: str, rows: Sequence[Row], request: Request) -> Prepared:
        """Check these rows of a study, and its data. ValueError for unusable ones."""


@dataclass(frozen=True, kw_only=True)
class PreparedFunction(Prepared):
    values: Callable[[Any, int, Request], Values]

    def measure(self, row: Row, seed: int, show: Show) -> Run:
        begin = time.perf_counter()
        values = dict(self.values(row, seed, self.request))
        return Run(seed=seed, values=values, seconds=time.perf_counter() - begin)


@dataclass(frozen=True)
class InThisProcess:
    """Call a function of a row, a seed and the request for its values."""

    values: Callable[[Any, int, Request], Values]

    def summary(self, rows: Sequence[Row]) -> str:
        return "in one process"

    def prepare(self, name: str, rows: Sequence[Row], request: Request) -> Prepared:
        return PreparedFunction(values=self.values, request=request)
