"""Table 4 of Tastan and Nandakumar 2025 as a measurement, and how it is told: as a page, rows and a plot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacit.simulate.experiments.figures import COLOURS
from tacit.simulate.experiments.measurement import Progress
from tacit.simulate.experiments.study import ClaimVerdict, markdown_table
from tacit.simulate.experiments.tastan_costs import (
    CLASSES,
    ROWS,
    UNIT,
    CostFigures,
    Costs,
    CostSize,
    CostTable,
    judge,
    measure,
)

if TYPE_CHECKING:  # Drawing takes a second to load, which whoever asks for the list of tables need not wait for.
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class CostMeasurement:
    """The table; see Measurement."""

    claim: CostTable

    def prepare(self, *, small: bool, data: Path | None) -> PreparedCosts:
        """See Measurement. ValueError for data, of which it takes none."""
        if data is not None:
            raise ValueError(f"--data {data}: {self.claim.name} takes no images; leave it out")
        return PreparedCosts(table=self.claim, small=small)

    def summary(self) -> list[str]:
        """See Measurement."""
        sizes = (("full size", self.claim.full), ("--small", self.claim.small))
        return [
            f"arms: {', '.join(row.name for row in ROWS)}",
            *(f"{name}: {size.model.name}, steps of {size.batch_size} random images" for name, size in sizes),
        ]


@dataclass(frozen=True, kw_only=True)
class PreparedCosts:
    """The table with its settings; see PreparedMeasurement."""

    table: CostTable
    small: bool

    @property
    def size(self) -> CostSize:
        """The settings."""
        return self.table.small if self.small else self.table.full

    @property
    def differences(self) -> tuple[str, ...]:
        """See PreparedMeasurement."""
        return self.size.differences

    def measure(self, *, seeds: Sequence[int], device: str, progress: Progress) -> CostFindings:
        """See PreparedMeasurement."""
        costs = measure(self.size, seeds=seeds, device=device, progress=progress)
        return CostFindings(table=self.table, small=self.small, costs=costs)


@dataclass(frozen=True, kw_only=True)
class CostFindings:
    """Counts and figures; see Findings."""

    table: CostTable
    small: bool
    costs: Costs

    def verdicts(self) -> list[ClaimVerdict]:
        """By the claims of the paper."""
        return judge(self.table, self.costs)

    def lines(self) -> list[str]:
        """Two tables, and the paper's own figures where they are of the same model."""
        counts = [
            [row.name, *(self._count(name, row.name) for name in CLASSES)] for row in ROWS if not row.method.missing
        ]
        costs = [
            [row.name, *(self._cost(row.name, field) for field in ("milliseconds", "megabytes"))]
            for row in ROWS
            if not row.method.missing
        ]
        theirs = [
            [name, row, str(milliseconds), str(gigabytes)]
            for (name, row), (_, milliseconds, gigabytes) in self.table.published.items()
        ]
        # Time and memory of a twin are those of another model.
        beside = ["", "The paper's own:", "", *markdown_table(["", "", "ms for an image", "GB"], theirs)]
        return [
            f"Parameters that are trained, in units of {UNIT:,}, and exactly; ViT-B with 384 x 384 pixels:",
            "",
            *markdown_table(["", *CLASSES], counts),
            "",
            "One step, medians over the seeds, and how often that of linear probing:",
            "",
            *markdown_table(["", "ms for an image", "MB"], costs),
            *(f"\n{row.name}: not measured, {row.method.missing}." for row in ROWS if row.method.missing),
            *([] if self.small else beside),
        ]

    def rows(self) -> list[dict[str, Any]]:
        """A row for every data set and way to adapt, with the exact number of parameters."""
        return [
            {
                "data": name,
                "row": row,
                "parameters": parameters,
                "milliseconds": self.costs.median(row, "milliseconds"),
                "megabytes": self.costs.median(row, "megabytes"),
                "published": self.table.published.get((name, row)),
            }
            for (name, row), parameters in self.costs.counts.items()
        ]

    def runs(self) -> Sequence[CostFigures]:
        """Every step that was measured."""
        return self.costs.figures

    def draw(self) -> Figure:
        """Time and memory of a step."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(8.0, 2.6))
        names = [row.name for row in ROWS if not row.method.missing]
        panels = (("milliseconds", "ms for an image"), ("megabytes", "MB"))
        for axes, (field, title) in zip(figure.subplots(1, 2, sharey=True), panels, strict=True):
            axes.barh(names, [self.costs.median(name, field) or 0.0 for name in names], color=COLOURS[2], height=0.6)
            axes.set_xlabel(title)
            axes.grid(axis="x")
        figure.axes[0].invert_yaxis()
        return figure

    def _count(self, data: str, row: str) -> str:
        parameters = self.costs.counts[data, row]
        published = self.table.published.get((data, row))
        told = "" if published is None else f"; the paper: {published[0]:.4f}"
        return f"{parameters / UNIT:.4f} ({parameters:,}){told}"

    def _cost(self, row: str, field: str) -> str:
        return f"{self.costs.median(row, field):,.2f} ({self.costs.ratio(row, field):.2f})"
