"""Adapting a frozen model, as rows of a study: their settings, and claims about them.

An owner trains a vision transformer on its own images and distils it into an MPC-friendly one; clients adapt that to
their classes. All in the clear and in one process: protection does not change the result. A row is a method, with a
data set; a column a partition of the images. adaptation_runs.py does the work. Loads no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from tacit.models.configuration import ModelConfiguration, TrainingConfiguration
from tacit.models.friendly.configuration import DistillationConfiguration
from tacit.simulate.experiments.adaptation_images import DataBlock, Division
from tacit.simulate.experiments.adaptation_methods import Method
from tacit.simulate.experiments.criteria import MARGIN, verdict
from tacit.simulate.experiments.measures import Row
from tacit.simulate.experiments.results import StudyRow, Verdict
from tacit.simulate.experiments.study import Claim


@dataclass(frozen=True, kw_only=True)
class AdaptationRow(Row):
    """A method of adaptation to a data set, and its step sizes."""

    block: DataBlock
    method: Method
    learning_rate: float
    rate_with_data: float | None = None
    """The same with --data for a twin; None: no other."""


@dataclass(frozen=True, kw_only=True)
class AdaptationSettings:
    model: ModelConfiguration
    teacher: TrainingConfiguration
    distillation: DistillationConfiguration
    rounds: int
    decay_rounds: tuple[int, ...]
    """Rounds after which the learning rate falls to a tenth."""
    batch_size: int
    divisions: Mapping[str, Division]
    keeps_outputs: bool
    """Whether the outputs of the backbone are computed once and kept, which takes their memory, or for every batch."""


def adaptations(rows: Iterable[Row]) -> list[AdaptationRow]:
    return [row for row in rows if isinstance(row, AdaptationRow)]


def better(block: DataBlock, row: str, other: str) -> Claim:
    return _compared(block, row, other, f"{row} is more accurate than {other} in every column", above=0.0)


def as_good(block: DataBlock, row: str, other: str) -> Claim:
    text = f"{row} is at most {100 * MARGIN:.0f} points below {other} in every column"
    return _compared(block, row, other, text, above=-MARGIN)


def loses_less(block: DataBlock, row: str, other: str, *, before: str, after: str) -> Claim:
    def kept(found: Mapping[str, list[float]]) -> dict[str, list[float]]:
        losses = [late - early for early, late in zip(found[before], found[after], strict=True)]
        return {"difference of the losses": losses}

    text = f"{row} loses less than {other} from {before} to {after}"
    return _compared(block, row, other, text, above=0.0, of=kept)


def _compared(
    block: DataBlock,
    row: str,
    other: str,
    text: str,
    *,
    above: float,
    of: Callable[[Mapping[str, list[float]]], Mapping[str, list[float]]] = dict,
) -> Claim:
    """of: statistic of the two rows' differences, seed by seed, by column."""
    names = (block.row(row), block.row(other))

    def judge(rows: Mapping[str, StudyRow]) -> Verdict:
        ours, theirs = (rows[name] for name in names)
        found = {
            column: [one - two for one, two in zip(ours.values(column), theirs.values(column), strict=True)]
            for column in ours.statistics
        }
        return verdict(of(found), claim=block.row(text), above=above)

    return Claim(rows=names, judge=judge)
