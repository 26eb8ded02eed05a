"""A table of adapting a frozen model, as data: rows, columns, data sets, settings of both sizes, and claims about rows.

An owner trains a vision transformer on images of its own and distils it into one of polynomials; clients adapt that to
classes of theirs. All in the clear and in one process: with or without protection the same is learnt. A row is a way to
adapt, a column a way to divide the images, a block a data set. Claims are decided for every data set.
adaptation_runs.py does the work, and adaptation_page.py writes the page.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from tacit.models.configuration import ModelConfiguration, TrainingConfiguration
from tacit.models.friendly.configuration import DistillationConfiguration
from tacit.simulate.experiments.adaptation_methods import Method
from tacit.simulate.experiments.adaptation_parts import DataPart, Division
from tacit.simulate.experiments.study import MARGIN, Claim, ClaimVerdict, verdict


@dataclass(frozen=True, kw_only=True)
class DataBlock:
    """The rows of one data set."""

    name: str = ""
    """Of the data set; "" takes that of a small twin's."""
    owned: DataPart
    """What the owner makes the backbone on."""
    adapted_to: DataPart
    """What the clients have."""


@dataclass(frozen=True, kw_only=True)
class TableRow:
    """A way to adapt, and how large its steps are."""

    name: str
    method: Method
    learning_rate: float


@dataclass(frozen=True, kw_only=True)
class TableColumn:
    """A way to divide the images."""

    name: str
    division: Division


@dataclass(frozen=True, kw_only=True)
class AdaptationSize:
    """The settings of one size."""

    model: ModelConfiguration
    teacher: TrainingConfiguration
    distillation: DistillationConfiguration
    rounds: int
    decay_rounds: tuple[int, ...]
    """After these the learning rate is a tenth of what it was."""
    batch_size: int
    blocks: tuple[DataBlock, ...]
    rows: tuple[TableRow, ...]
    rows_of_data: tuple[TableRow, ...] = ()
    """Of a twin that is given images, in the place of `rows`; empty: the same."""
    keeps_outputs: bool
    """Whether the outputs of the backbone are computed once and kept, which takes their memory, or for every batch."""
    differences: tuple[str, ...]


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """What one way to adapt gave, with one division and one seed."""

    block: str
    row: str
    column: str
    seed: int
    accuracy: float
    """Balanced, on the test images after the last round: the mean over the classes, 0 to 1."""
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Cells:
    """All cells of a table."""

    blocks: tuple[str, ...]
    """Names of the data sets."""
    columns: tuple[str, ...]
    cells: tuple[Cell, ...]

    def of(self, block: str, row: str, column: str) -> list[float]:
        """Balanced accuracies in the order of the seeds; empty for a row that could not be measured."""
        place = (block, row, column)
        return [cell.accuracy for cell in self.cells if (cell.block, cell.row, cell.column) == place]


Published = dict[tuple[str, str], tuple[float | None, ...]]
"""The paper's balanced accuracy by block and row, for each column; None where it has none."""


@dataclass(frozen=True, kw_only=True)
class AdaptationTable(Claim):
    """A table of the paper."""

    columns: tuple[TableColumn, ...]
    published: Published = field(repr=False)
    small: AdaptationSize | None
    """None: there is no twin."""
    full: AdaptationSize
    judge: Callable[[Cells], list[ClaimVerdict]]

    def size(self, *, small: bool) -> AdaptationSize:
        """Its settings. ValueError where there is no twin."""
        found = self.small if small else self.full
        if found is None:
            raise ValueError(f"{self.name} has no small twin: its data set has no stand-in; leave --small out")
        return found


def better(cells: Cells, row: str, other: str) -> list[ClaimVerdict]:
    """Whether a row is more accurate than another in every column."""
    return [
        verdict(
            _by_column(cells, block, row, other),
            claim=f"{block}: {row} is more accurate than {other} in every column",
            above=0.0,
        )
        for block in cells.blocks
    ]


def as_good(cells: Cells, row: str, other: str) -> list[ClaimVerdict]:
    """Whether a row is at most MARGIN less accurate than another in every column."""
    return [
        verdict(
            _by_column(cells, block, row, other),
            claim=f"{block}: {row} is at most {100 * MARGIN:.0f} points below {other} in every column",
            above=-MARGIN,
        )
        for block in cells.blocks
    ]


def loses_less(cells: Cells, row: str, other: str, *, before: str, after: str) -> list[ClaimVerdict]:
    """Whether a row loses less accuracy than another from one column to another."""
    verdicts = []
    for block in cells.blocks:
        first, second = (_differences(cells, block, row, other, column) for column in (before, after))
        kept = [late - early for early, late in zip(first, second, strict=True)]
        claim = f"{block}: {row} loses less than {other} from {before} to {after}"
        verdicts.append(verdict({"difference of the losses": kept}, claim=claim, above=0.0))
    return verdicts


def _by_column(cells: Cells, block: str, row: str, other: str) -> dict[str, list[float]]:
    return {column: _differences(cells, block, row, other, column) for column in cells.columns}


def _differences(cells: Cells, block: str, row: str, other: str, column: str) -> list[float]:
    """Empty if one of both could not be measured."""
    ours, theirs = (cells.of(block, name, column) for name in (row, other))
    return [one - two for one, two in zip(ours, theirs, strict=True)] if ours and theirs else []
