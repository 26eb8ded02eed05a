"""Result of a study: every run of every row, verdicts, and their settings."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, Literal

import msgspec

from tacit.parties.runs.results import Column, Result, Table, decimals, prose

WORDS: Final = {True: "reproduced", False: "NOT reproduced", None: "not decided"}
"""Keyed by the value of `reproduced`."""


class Quantity(msgspec.Struct, frozen=True, kw_only=True):
    """A measured quantity of a row."""

    name: str
    unit: str = ""
    decimals: int = 2

    @property
    def heading(self) -> str:
        return f"{self.name} ({self.unit})" if self.unit else self.name


class RunCost(msgspec.Struct, frozen=True, kw_only=True):
    """Cost of all rounds of a run, over all clients."""

    sent: int
    """Bytes that clients sent to the server, in all kinds of messages."""
    kept: int = 0
    """Bytes of zeros among them, in place of whole tensors that a client withheld."""
    seconds: float
    """Duration of the rounds in sequence."""
    training_seconds: float
    choosing_seconds: float
    """Seconds in which clients chose tensors to withhold."""


class FederatedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run by the parties of a federation."""

    directory: str
    """Relative to the directory of the study."""
    test_images: int
    accuracies: list[float]
    """Test accuracy of the global model after each round, 0 to 1."""
    clipped: int
    """Coordinates of updates that were clipped, in all rounds."""
    cost: RunCost
    parameters: int = 0
    """Number of summed parameters per round."""
    epsilon_update: float | None = None
    """With noise: epsilon of updates, as in the summary of the run; null without, or if it is infinite."""
    epsilon_sum: float | None = None
    """Epsilon of sums, likewise."""
    moves: list[int] | None = None
    """Coordinates of the model that moved in 0, 1, 2, ... of the rounds, if recorded."""

    @property
    def accuracy(self) -> float:
        """Return the accuracy after the last round."""
        return self.accuracies[-1]


class PartCost(msgspec.Struct, frozen=True, kw_only=True):
    """Cost of one of many equal parts of an adaptation."""

    count: int
    online_seconds: float
    waiting_seconds: float
    """Waiting time for correlated randomness."""
    rounds: int | None
    """Rounds of communication."""
    data_owner_megabytes: float
    """Sent by the data owner; likewise the next two, and the dealer's to both owners."""
    model_owner_megabytes: float
    dealer_megabytes: float


class AdaptedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run by the parties of a double-blind adaptation."""

    accuracies: list[float]
    """Test accuracy after each round, 0 to 1."""
    seconds: list[float]
    """Time since the start of the first round, after each."""
    sent_bytes: list[int]
    """Bytes sent by all parties until then, without the secure sums."""
    parts: dict[str, PartCost]
    peak_bytes: dict[str, int]
    """Peak memory of a process, by role."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A row, measured with one seed."""

    seed: int
    values: dict[str, float | None]
    """Values by the name of the quantity; null if a row does not have it."""
    seconds: float
    federation: FederatedRun | None = None
    """null: not run by the parties of a federation."""
    adaptation: AdaptedRun | None = None
    """null: not run by the parties of an adaptation."""
    refused: str = ""
    """Reason for a failed measurement: the task does not fit the arithmetic on shares."""


class Statistic(msgspec.Struct, frozen=True, kw_only=True):
    """A quantity over the seeds."""

    mean: float
    spread: float | None
    """Sample standard deviation; null for one run."""


class StudyRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of a study, with its runs in the order of their seeds."""

    name: str
    published: dict[str, str] = {}
    """The paper's values, by the name of the quantity."""
    runs: list[Run] = []
    """All runs, or none if some are missing."""
    statistics: dict[str, Statistic] = {}
    """Statistics by the name of the quantity."""
    unfinished: str = ""
    """Reason for missing runs."""

    @classmethod
    def of(cls, name: str, runs: Sequence[Run], published: dict[str, str]) -> StudyRow:
        found = {}
        for quantity in runs[0].values:
            if values := [value for run in runs if (value := run.values[quantity]) is not None]:
                deviation = spread(values) if len(values) > 1 else None
                found[quantity] = Statistic(mean=statistics.mean(values), spread=deviation)
        return cls(name=name, published=published, runs=list(runs), statistics=found)

    def values(self, quantity: str) -> list[float]:
        return [value for run in self.runs if (value := run.values.get(quantity)) is not None]

    @property
    def federated(self) -> list[FederatedRun]:
        return [run.federation for run in self.runs if run.federation is not None]

    @property
    def accuracies(self) -> list[float]:
        """Return the test accuracy of every federation after its last round, 0 to 1."""
        return [run.accuracy for run in self.federated]


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Verdict on a sentence of a paper."""

    claim: str
    criterion: str
    reproduced: bool | None
    """null: the runs do not decide it."""
    detail: str


class StudyResult(Result, frozen=True, kw_only=True, tag="tacit.study.2"):
    """A table or figure of a paper, as measured."""

    study: str
    shows: str
    paper: str
    claim: str
    size: Literal["full", "small"]
    command: str
    machine: str
    date: str
    data: str
    device: str
    seeds: list[int]
    columns: list[Quantity]
    rows: list[StudyRow]
    verdicts: list[Verdict]
    """Verdicts on the claims whose rows have all run."""
    settings: dict[str, str]
    """The paper's own settings."""
    silent: list[str]
    """Settings that the paper does not give, and those of the full size."""
    differences: list[str]
    """Deviations from the paper's settings."""

    @property
    def finished(self) -> list[StudyRow]:
        return [row for row in self.rows if row.runs]

    def view(self) -> Iterator[Table | str]:
        yield self.table()
        yield from self.unfinished()
        for verdict in self.verdicts:
            yield f"{WORDS[verdict.reproduced]}: {verdict.claim} ({verdict.detail})"

    def table(self, *, every_run: bool = False) -> Table:
        """Return mean and spread of every completed row; every_run: in one cell, with the value of each run."""
        finished = self.finished
        columns: list[Column] = [Column("row")]
        cells: list[list[Any]] = [[row.name for row in finished]]
        for quantity in self.columns:
            found = [row.statistics.get(quantity.name) for row in finished]
            number = decimals(quantity.decimals)
            if every_run:
                columns.append(Column(quantity.heading, partial(_with_runs, number)))
                cells.append(
                    [one and (one, row.values(quantity.name)) for one, row in zip(found, finished, strict=True)]
                )
            else:
                columns += [Column(quantity.heading, number), Column("spread", number, minor=1)]
                cells += [[one and one.mean for one in found], [one and one.spread for one in found]]
            published = [row.published.get(quantity.name) for row in finished]
            if any(published):
                columns.append(Column("the paper", minor=2))
                cells.append(published)
        title = f"seeds {', '.join(map(str, self.seeds))}"
        return Table(columns=columns, rows=list(zip(*cells, strict=True)), title=title)

    def unfinished(self) -> Iterator[str]:
        """Yield the rows without runs, and the reasons."""
        for reason in dict.fromkeys(row.unfinished for row in self.rows if row.unfinished):
            yield f"{', '.join(row.name for row in self.rows if row.unfinished == reason)}: {reason}"

    def settings_table(self) -> Table:
        return Table(columns=[Column("the paper's settings", prose), Column("", prose)], rows=[*self.settings.items()])


def spread(values: Sequence[float]) -> float:
    """Return the sample standard deviation; nan for a single value."""
    return statistics.stdev(values) if len(values) > 1 else float("nan")


def _with_runs(number: Callable[[float], str], found: tuple[Statistic, list[float]]) -> str:
    """Format mean, spread and values; one number if all are equal."""
    statistic, values = found
    text = number(statistic.mean)
    if statistic.spread is not None and len(set(values)) > 1:
        text += f" ± {number(statistic.spread)} ({', '.join(map(number, values))})"
    return text
