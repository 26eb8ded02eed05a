"""What the cells of a table of adaptation say of claims about its rows, for every data set."""

from __future__ import annotations

from tacit.simulate.experiments.adaptation import Cells
from tacit.simulate.experiments.criteria import MARGIN, verdict
from tacit.simulate.experiments.study import ClaimVerdict


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
