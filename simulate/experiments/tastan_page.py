"""Tables 5 and 6 of Tastan and Nandakumar 2025 as measurements, and how they are told: as a page, rows and a plot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacit.simulate.experiments.figures import COLOURS
from tacit.simulate.experiments.measurement import Progress
from tacit.simulate.experiments.study import ClaimVerdict, markdown_table, spread
from tacit.simulate.experiments.tastan_approximations import (
    BATCH,
    ApproximationSize,
    ApproximationTable,
    Figures,
    judge,
    means,
    measure,
    name_of,
    of,
    setting,
)

if TYPE_CHECKING:  # Drawing takes a second to load, which whoever asks for the list of tables need not wait for.
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class ApproximationMeasurement:
    """One of both tables; see Measurement."""

    claim: ApproximationTable

    def prepare(self, *, small: bool, data: Path | None) -> PreparedApproximation:
        """See Measurement."""
        return PreparedApproximation(table=self.claim, size=setting(small=small, data=data))

    def summary(self) -> list[str]:
        """See Measurement."""
        return [
            f"arms: degree {', '.join(map(name_of, self.claim.published))}",
            "full size: vit_base_patch16_384, 1 epoch, Fed-ISIC2019",
            "--small: vit, 1 epoch, digits or --data",
        ]


@dataclass(frozen=True, kw_only=True)
class PreparedApproximation:
    """A table with its settings; see PreparedMeasurement."""

    table: ApproximationTable
    size: ApproximationSize

    @property
    def differences(self) -> tuple[str, ...]:
        """See PreparedMeasurement."""
        return self.size.differences

    def measure(self, *, seeds: Sequence[int], device: str, progress: Progress) -> ApproximationFindings:
        """See PreparedMeasurement."""
        figures = measure(self.table, self.size, seeds=seeds, device=device, progress=progress)
        return ApproximationFindings(table=self.table, figures=figures)


@dataclass(frozen=True, kw_only=True)
class ApproximationFindings:
    """What the students of one table came to; see Findings."""

    table: ApproximationTable
    figures: Sequence[Figures]

    def verdicts(self) -> list[ClaimVerdict]:
        """By the claims of the paper."""
        return judge(self.table, self.figures)

    def lines(self) -> list[str]:
        """One table."""
        seeds = ", ".join(map(str, sorted({entry.seed for entry in self.figures})))
        return [
            *_table(self.table, self.figures),
            "",
            f"Means over the seeds {seeds} (accuracy: ± sample standard deviation).",
        ]

    def rows(self) -> list[dict[str, Any]]:
        """A row for every degree."""
        return [
            {"degree": degree, "published": published} | means(self.figures, degree)
            for degree, published in self.table.published.items()
        ]

    def runs(self) -> Sequence[Figures]:
        """Every student."""
        return self.figures

    def draw(self) -> Figure:
        """Losses and accuracy by degree."""
        return draw(self.table, self.figures)


def _table(table: ApproximationTable, figures: Sequence[Figures]) -> list[str]:
    losses = ("attention loss", "representation loss")
    unit = "s" if table.varies == "softmax_degree" else "ms"
    ours = ("accuracy (%)", *losses, f"ms for {BATCH} images", "MB")
    headings = ("degree", *ours, "the paper: accuracy", *losses, f"latency ({unit})", "GB")
    rows = []
    for degree, published in table.published.items():
        mean = means(figures, degree)
        accuracies = [100 * entry.accuracy for entry in of(figures, degree)]
        deviation = f" ± {spread(accuracies):.2f}" if len(accuracies) > 1 else ""
        memory, latency, attention, hidden, best = map(str, published)
        digits = {"attention": 3, "hidden": 3, "milliseconds": 1, "megabytes": 2}
        costs = [f"{mean[field]:.{count}f}" for field, count in digits.items()]
        accuracy = f"{100 * mean['accuracy']:.2f}{deviation}"
        rows.append([name_of(degree), accuracy, *costs, best, attention, hidden, latency, memory])
    return markdown_table(headings, rows)


def draw(table: ApproximationTable, figures: Sequence[Figures]) -> Figure:
    """Losses and accuracy by degree; the function itself as a line."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 3.2))
    degrees = [degree for degree in table.published if degree is not None]
    panels = (
        ("accuracy", "test accuracy (%)", 100.0),
        ("attention", "attention loss", 1.0),
        ("hidden", "representation loss", 1.0),
    )
    for axes, (field, title, factor) in zip(figure.subplots(1, 3), panels, strict=True):
        for degree in degrees:
            values = [factor * getattr(entry, field) for entry in of(figures, degree)]
            axes.plot([degree] * len(values), values, "o", color=COLOURS[2], markersize=4, alpha=0.5)
        axes.plot(degrees, [factor * means(figures, degree)[field] for degree in degrees], "-", color=COLOURS[2])
        axes.axhline(factor * means(figures, None)[field], color=COLOURS[0], linestyle="--")
        axes.set_title(title)
        axes.set_xlabel("degree (dashed: the function itself)")
        axes.grid(axis="y")
    return figure
