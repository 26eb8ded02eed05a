"""`tastan-reveal` as a measurement, and how it is told: as a page, rows and a plot."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tacit.simulate.experiments.data import find
from tacit.simulate.experiments.measurement import Progress
from tacit.simulate.experiments.page import COLOURS
from tacit.simulate.experiments.study import ClaimVerdict, markdown_table, spread
from tacit.simulate.experiments.tastan_reveal import (
    ROWS,
    CopyFigures,
    RevealFigures,
    RevealSize,
    RevealTable,
    judge,
    of,
)

if TYPE_CHECKING:  # Both take a second or two to load, which whoever asks for the list of tables need not wait for.
    from matplotlib.figure import Figure

    from tacit.simulate.experiments.tastan_reveal_runs import RevealWork

Value = Callable[[RevealFigures], float | None]

COSTS: Final[dict[str, tuple[Value, str]]] = {
    "MB of a data owner": (lambda entry: _millionth(entry.data_owner_bytes), ".2f"),
    "MB of the model owner": (lambda entry: _millionth(entry.model_owner_bytes), ".2f"),
    "seconds online": (lambda entry: entry.seconds, ".2f"),
    "seconds of waiting": (lambda entry: entry.waited_seconds, ".2f"),
    "batches refused": (lambda entry: entry.refused, ".0f"),
}
"""Columns, what they have of a run, and how that is printed."""


@dataclass(frozen=True, kw_only=True)
class RevealMeasurement:
    """The table; see Measurement."""

    claim: RevealTable

    def prepare(self, *, small: bool, data: Path | None) -> PreparedReveal:
        """See Measurement."""
        # Imported here: it loads torch.
        from tacit.simulate.experiments.tastan_reveal_runs import RevealWork

        size = self.claim.size(small=small)
        images = find(data, small=small, clients=size.experiment.clients, halved=False)
        return PreparedReveal(table=self.claim, work=RevealWork(size=size, images=images))

    def summary(self) -> list[str]:
        """See Measurement."""
        sizes = (
            ("full size", self.claim.full, "CIFAR-10"),
            ("--small", self.claim.small, "digits or --data"),
        )
        return [
            f"arms: {', '.join(ROWS)}",
            *(f"{name}: {_model(size)}, {_rounds(size)} rounds, {data}" for name, size, data in sizes),
        ]


@dataclass(frozen=True, kw_only=True)
class PreparedReveal:
    """The table whose images are found; see PreparedMeasurement."""

    table: RevealTable
    work: RevealWork

    @property
    def differences(self) -> tuple[str, ...]:
        """See PreparedMeasurement."""
        return self.work.size.differences

    def measure(self, *, seeds: Sequence[int], device: str, progress: Progress) -> RevealFindings:
        """See PreparedMeasurement; ProcessError for a party that fails, or a round that is lost."""
        figures = self.work.measure(seeds=seeds, device=device, progress=progress)
        return RevealFindings(images=self.work.images.name, figures=figures)


@dataclass(frozen=True, kw_only=True)
class RevealFindings:
    """Every row with every seed; see Findings."""

    images: str
    """Name of the data set or the file."""
    figures: tuple[RevealFigures, ...]

    def verdicts(self) -> list[ClaimVerdict]:
        """By the criteria of the table."""
        return judge(self.figures)

    def lines(self) -> list[str]:
        """What was learned and what it cost; then what was copied."""
        learned = [[row, self._accuracy(row), *(self._cost(row, *how) for how in COSTS.values())] for row in ROWS]
        seeds = ", ".join(str(entry.seed) for entry in of(self.figures, ROWS[0]))
        return [
            *markdown_table([self.images, "balanced accuracy", *COSTS], learned),
            "",
            "What one data owner copied:",
            "",
            *markdown_table(
                ["", "outputs told", "orders found (%)", "copies", "largest error held out", "agreement", "without"],
                [[row, *self._copied(row)] for row in ROWS[1:]],
            ),
            "",
            f"Seeds {seeds}: means over them, and each seed in brackets; MB (10^6 bytes) sent and seconds are of one "
            "batch. An error is relative to what the blocks add; agreement is the share of the test images with the "
            "victim's label by the victim with copies in the place of its blocks, and without them. In the clear there "
            "are no parties.",
        ]

    def rows(self) -> list[dict[str, Any]]:
        """A row for every way, with means over the seeds; null for what it does not have."""
        return [
            {
                "row": row,
                "accuracy": statistics.mean(entry.accuracy for entry in of(self.figures, row)),
                **{
                    field: _mean(self._values(row, attrgetter(field)))
                    for field in ("data_owner_bytes", "model_owner_bytes", "seconds", "waited_seconds", "refused")
                },
                **{
                    field: _mean([getattr(each, field) for each in self._copies(row)])
                    for field in ("ordered", "agreement", "without")
                },
            }
            for row in ROWS
        ]

    def runs(self) -> Sequence[RevealFigures]:
        """Every row with every seed."""
        return self.figures

    def draw(self) -> Figure:
        """Accuracy, seconds online and agreement of every row, and every seed."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(10.0, 2.6))
        panels: tuple[tuple[str, Value], ...] = (
            ("balanced accuracy", lambda entry: entry.accuracy),
            ("seconds of a batch online", lambda entry: entry.seconds),
            ("agreement of the copy", lambda entry: None if entry.copied is None else entry.copied.agreement),
        )
        for axes, (title, value) in zip(figure.subplots(1, len(panels), sharey=True), panels, strict=True):
            found = [self._values(row, value) for row in ROWS]
            axes.barh(ROWS, [_mean(values) or 0.0 for values in found], color=COLOURS[2], height=0.6)
            for place, values in enumerate(found):
                axes.plot(values, [place] * len(values), "o", color=COLOURS[0], markersize=3)
            axes.set_xlabel(title)
            axes.grid(axis="x")
        figure.axes[0].invert_yaxis()
        return figure

    def _values(self, row: str, value: Value) -> list[float]:
        """Of the seeds that have one."""
        return [found for entry in of(self.figures, row) if (found := value(entry)) is not None]

    def _copies(self, row: str) -> list[CopyFigures]:
        return [entry.copied for entry in of(self.figures, row) if entry.copied is not None]

    def _accuracy(self, row: str) -> str:
        found = [entry.accuracy for entry in of(self.figures, row)]
        return _told(found, ".3f") + (f" ± {spread(found):.3f}" if len(found) > 1 else "")

    def _cost(self, row: str, value: Value, form: str) -> str:
        return _told(self._values(row, value), form)

    def _copied(self, row: str) -> list[str]:
        copied = self._copies(row)
        if not copied:
            return ["none", "", "nothing to copy from", "", "", ""]
        return [
            _told([each.told for each in copied], ".0f"),
            _told([100 * each.ordered for each in copied], ".1f"),
            _told([len(each.errors) for each in copied], ".0f"),
            _told([max(each.errors) for each in copied], ".3f"),
            _told([each.agreement for each in copied], ".3f"),
            _told([each.without for each in copied], ".3f"),
        ]


def _told(values: Sequence[float], form: str) -> str:
    """The mean, and all where they differ; "" for none."""
    if not values:
        return ""
    each = [format(value, form) for value in values]
    return format(statistics.mean(values), form) + (f" ({', '.join(each)})" if len(set(each)) > 1 else "")


def _mean(values: Sequence[float]) -> float | None:
    return statistics.mean(values) if values else None


def _millionth(value: float | None) -> float | None:
    return None if value is None else value / 1e6


def _model(size: RevealSize) -> str:
    return size.experiment.model.name


def _rounds(size: RevealSize) -> int:
    return size.experiment.federation.rounds
