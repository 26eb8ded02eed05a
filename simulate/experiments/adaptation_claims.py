"""What the cells of a table of adaptation say of claims about its rows, for every data set."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from tacit.simulate.experiments.adaptation import Cells
from tacit.simulate.experiments.study import MARGIN, ClaimVerdict, spread


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


def verdict(found: Mapping[str, Sequence[float]], *, claim: str, above: float) -> ClaimVerdict:
    """Of differences of accuracies, seed by seed, under the names of their columns: whether all are above a bound."""
    decided = {name: _is_above(values, above) for name, values in found.items()}
    not_so = [name for name, holds in decided.items() if holds is False]
    unclear = [name for name, holds in decided.items() if holds is None]
    detail = ", ".join(
        f"{name} {100 * statistics.mean(values):+.1f} points" if values else f"{name} not measured"
        for name, values in found.items()
    )
    if not_so:
        detail += f"; not so: {', '.join(not_so)}"
    if unclear:
        detail += f"; undecided: {', '.join(unclear)}"
    return ClaimVerdict(
        claim=claim,
        criterion=f"the difference of the accuracies, seed by seed, has a mean above {100 * above:g} points by more "
        "than twice its standard error; not so if it is below by as much; between, and with one seed, undecided",
        holds=False if not_so else None if unclear else True,
        detail=detail,
    )


def _is_above(values: Sequence[float], bound: float) -> bool | None:
    if len(values) < 2:
        return None
    # Rounded, so that equal accuracies differ by nothing.
    distance, error = round(statistics.mean(values) - bound, 9), spread(values) / len(values) ** 0.5
    return None if abs(distance) <= 2 * error else distance > 0


def _by_column(cells: Cells, block: str, row: str, other: str) -> dict[str, list[float]]:
    return {column: _differences(cells, block, row, other, column) for column in cells.columns}


def _differences(cells: Cells, block: str, row: str, other: str, column: str) -> list[float]:
    """Empty if one of both could not be measured."""
    ours, theirs = (cells.of(block, name, column) for name in (row, other))
    return [one - two for one, two in zip(ours, theirs, strict=True)] if ours and theirs else []
