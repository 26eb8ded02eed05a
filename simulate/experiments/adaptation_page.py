"""A table of adaptation as a page, for programs and as a plot."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacit.simulate.experiments.adaptation import AdaptationSize, AdaptationTable, Cell, Cells
from tacit.simulate.experiments.measurement import Progress
from tacit.simulate.experiments.page import COLOURS, MARKERS
from tacit.simulate.experiments.study import ClaimVerdict, markdown_table, spread

if TYPE_CHECKING:  # Both take a second or two to load, which whoever asks for the list of tables need not wait for.
    from matplotlib.figure import Figure

    from tacit.simulate.experiments.adaptation_runs import AdaptationWork


@dataclass(frozen=True, kw_only=True)
class AdaptationMeasurement:
    """A table of adaptation; see Measurement."""

    claim: AdaptationTable

    def prepare(self, *, small: bool, data: Path | None) -> PreparedAdaptation:
        """See Measurement."""
        # Imported here: it loads torch.
        from tacit.simulate.experiments.adaptation_runs import prepare

        return PreparedAdaptation(work=prepare(self.claim, small=small, data=data), small=small)

    def summary(self) -> list[str]:
        """See Measurement."""
        table = self.claim
        sizes = (
            ("full size", table.full, "a directory with the data sets"),
            ("--small", table.small, "digits or --data"),
        )
        return [
            f"arms: {', '.join(row.name for row in table.full.rows)}",
            f"columns: {', '.join(column.name for column in table.columns)}",
            *(f"{name}: {size.model.name}, {size.rounds} rounds, {data}" for name, size, data in sizes if size),
        ]


@dataclass(frozen=True, kw_only=True)
class PreparedAdaptation:
    """A table whose images are found; see PreparedMeasurement."""

    work: AdaptationWork
    small: bool

    @property
    def differences(self) -> tuple[str, ...]:
        """See PreparedMeasurement."""
        size, found = self.work.size, [block.name for block in self.work.blocks]
        missing = [block.name for block in size.blocks if block.name and block.name not in found]
        words = (f"without {', '.join(missing)}, whose files are not in the directory",) if missing else ()
        return (*size.differences, *words)

    def measure(self, *, seeds: Sequence[int], device: str, progress: Progress) -> AdaptationFindings:
        """See PreparedMeasurement."""
        cells = self.work.measure(seeds=seeds, device=device, progress=progress)
        return AdaptationFindings(table=self.work.table, size=self.work.size, small=self.small, cells=cells)


@dataclass(frozen=True, kw_only=True)
class AdaptationFindings:
    """The cells of a table; see Findings."""

    table: AdaptationTable
    size: AdaptationSize
    small: bool
    cells: Cells

    def verdicts(self) -> list[ClaimVerdict]:
        """By the criteria of the table."""
        return self.table.judge(self.cells)

    def lines(self) -> list[str]:
        """A table for every data set; the paper's figures stand in it where the settings are the paper's."""
        seeds = sorted({cell.seed for cell in self.cells.cells})
        lines: list[str] = []
        for block in self.cells.blocks:
            headings = [block, *self.cells.columns]
            rows = [
                [row.name, *(self._cell(block, row.name, at) for at in range(len(self.cells.columns)))]
                for row in self.size.rows
            ]
            lines += [*markdown_table(headings, rows), ""]
        lines += [f"{row.name}: not measured, {row.method.missing}." for row in self.size.rows if row.method.missing]
        told = "mean ± sample standard deviation, and that of each seed in brackets" if len(seeds) > 1 else "one seed"
        return [
            *lines,
            f"Balanced accuracy on the test images, seeds {', '.join(map(str, seeds))}: {told}. "
            f"All together took {sum(cell.seconds for cell in self.cells.cells):.0f} s, without making the backbones.",
        ]

    def rows(self) -> list[dict[str, Any]]:
        """A row for every data set and way to adapt."""
        return [
            {
                "block": block,
                "row": row.name,
                "learning_rate": row.learning_rate,
                "missing": row.method.missing,
                "published": self._published(block, row.name),
                "means": {
                    column: statistics.mean(found)
                    for column in self.cells.columns
                    if (found := self.cells.of(block, row.name, column))
                },
            }
            for block in self.cells.blocks
            for row in self.size.rows
        ]

    def runs(self) -> Sequence[Cell]:
        """Every cell with every seed."""
        return self.cells.cells

    def draw(self) -> Figure:
        """A panel for every data set: means by column, and every seed."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(1.0 + 4.0 * len(self.cells.blocks), 3.8))
        names = self.cells.columns
        panels = figure.subplots(1, len(self.cells.blocks), sharey=True, squeeze=False)[0]
        for axes, block in zip(panels, self.cells.blocks, strict=True):
            for row, colour, marker in zip(self.size.rows, COLOURS, MARKERS, strict=False):
                found = [self.cells.of(block, row.name, name) for name in names]
                if not all(found):
                    continue
                for at, values in enumerate(found):
                    axes.plot([at] * len(values), values, marker, color=colour, markersize=4, alpha=0.4)
                means = [statistics.mean(values) for values in found]
                axes.plot(range(len(names)), means, "-", color=colour, label=row.name)
            axes.set_title(block)
            axes.set_xticks(range(len(names)), names)
            axes.grid(axis="y")
        panels[0].set_ylabel("balanced accuracy")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
        return figure

    def _cell(self, block: str, row: str, column: int) -> str:
        found = self.cells.of(block, row, self.cells.columns[column])
        if not found:
            return "not measured"
        text = f"{statistics.mean(found):.3f}"
        if len(found) > 1:
            text += f" ± {spread(found):.3f} ({', '.join(f'{value:.3f}' for value in found)})"
        published = self._published(block, row)
        if published is not None:
            value = published[column]
            text += f"; the paper: {'none' if value is None else f'{value:.4f}'}"
        return text

    def _published(self, block: str, row: str) -> tuple[float | None, ...] | None:
        """The paper's figures are those of other data than a twin's."""
        return None if self.small else self.table.published.get((block, row))
