"""Results of a study as files: table.md, table.json and plot.svg, and the plots that studies share.

Colours are those of the reports. matplotlib is loaded on demand.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from tacit.parties.runs.directory import writing
from tacit.parties.runs.results import Table, markdown
from tacit.simulate.experiments.results import WORDS, StudyResult, StudyRow

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARKERS: Final = ("o", "s", "^", "v", "D", "P", "X")


def write(
    result: StudyResult,
    directory: Path,
    *,
    draw: Callable[[StudyResult], Figure],
    details: Sequence[Table | str] = (),
    json_file: Path | None = None,
) -> None:
    """Write all three files, and a copy of table.json. OSError, naming the file, if one cannot be written."""
    from tacit.simulate.report.figures import style

    with writing(directory / "table.md"):
        lines = page(result, details)
        (directory / "table.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for path in filter(None, (directory / "table.json", json_file)):
        result.write(path)
    with writing(directory / "plot.svg"), style():
        draw(result).savefig(directory / "plot.svg", metadata={"Date": None})


def page(result: StudyResult, details: Iterable[Table | str]) -> Iterator[str]:
    yield from (f"## {result.study}: {result.shows}", "", result.paper, "", f"The paper's claim: {result.claim}", "")
    for verdict in result.verdicts:
        found = f"{verdict.claim}. Criterion: {verdict.criterion}. Found: {verdict.detail}."
        yield f"- **{WORDS[verdict.reproduced]}**: {found}"
    yield from ("", "![Plot of the table](plot.svg)", "")
    yield from markdown(result.table(every_run=True))
    seeds = f"seeds {', '.join(map(str, result.seeds))}" if len(result.seeds) > 1 else f"seed {result.seeds[0]}"
    more = ": mean ± sample standard deviation, and every run in brackets; one number where all are equal"
    yield from ("", f"{seeds.capitalize()}{more if len(result.seeds) > 1 else ''}.", "")
    for line in result.unfinished():
        yield from (f"{line}.", "")
    for item in details:
        yield from (*markdown(item), "") if isinstance(item, Table) else (item, "")
    seconds = sum(run.seconds for row in result.finished for run in row.runs)
    data = f"; {result.data}" if result.data else ""
    yield f"`{result.command}` on {result.date}, {result.machine}{data}. All runs together took {seconds:.0f} s."
    if result.settings:
        yield from ("", *markdown(result.settings_table()))
    if result.silent:
        yield from ("", "What the paper does not say, and what the full size takes:", "")
        yield from (f"- {item}" for item in result.silent)
    if result.differences:
        size = "small twin" if result.size == "small" else "full size"
        yield from ("", f"Where the {size} differs from the paper:", "")
        yield from (f"- {item}" for item in result.differences)


def curves(panels: Mapping[str, Sequence[StudyRow]], *, labels: Mapping[str, str]) -> Figure:
    """Plot mean test accuracy after each round, with its range over the seeds, in adjacent panels; labels: of rows."""
    figure, colours = _figure(9.0, 3.8)
    styles = dict(zip(dict.fromkeys(labels.values()), zip(colours, MARKERS, strict=True), strict=False))
    shown: dict[str, Any] = {}
    for axes, (title, rows) in zip(figure.subplots(1, len(panels), sharey=True), panels.items(), strict=True):
        for row in rows:
            label = labels[row.name]
            colour, marker = styles[label]
            runs = 100 * np.array([run.accuracies for run in row.federated])  # [seeds, rounds]
            rounds = np.arange(1, runs.shape[1] + 1)
            axes.fill_between(rounds, runs.min(axis=0), runs.max(axis=0), color=colour, alpha=0.12, linewidth=0)
            (shown[label],) = axes.plot(rounds, runs.mean(axis=0), f"{marker}-", color=colour, markersize=4)
        axes.set_title(title)
        axes.set_xlabel("round")
        axes.grid(axis="y")
    figure.axes[0].set_ylabel("test accuracy (%)")
    # From any panel: a row may be finished in one and not in the other.
    figure.legend(shown.values(), shown.keys(), loc="outside lower center", ncols=3)
    return figure


def points(result: StudyResult, *quantities: str) -> Figure:
    """Plot every run, and the mean of each row, in a panel for each of these quantities, by default all columns."""
    chosen = [one for one in result.columns if not quantities or one.name in quantities]
    rows = result.finished
    figure, colours = _figure(4.0 + 3.0 * len(chosen), 1.2 + 0.4 * len(rows))
    for axes, quantity in zip(figure.subplots(1, len(chosen), sharey=True, squeeze=False)[0], chosen, strict=True):
        for at, row in enumerate(rows):
            if values := row.values(quantity.name):
                axes.plot(values, [at] * len(values), "o", color=colours[0], markersize=5, alpha=0.6)
                axes.plot(statistics.mean(values), at, "|", color=colours[5], markersize=16, markeredgewidth=2)
        axes.set_yticks(range(len(rows)), [row.name for row in rows])
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_xlabel(f"{quantity.heading}: every run, and the mean")
        axes.grid(axis="x")
    return figure


def across(result: StudyResult) -> Figure:
    """Plot a line for each row over the columns, which have one axis, and every run; a panel for each data set.

    Rows of several data sets are named "DATA SET: ROW".
    """
    figure, colours = _figure(5.0, 3.8)
    blocks = list(dict.fromkeys(row.name.rpartition(": ")[0] for row in result.finished))
    figure.set_figwidth(1.0 + 4.0 * len(blocks))
    names = [quantity.name for quantity in result.columns]
    panels = figure.subplots(1, len(blocks), sharey=True, squeeze=False)[0]
    labels = dict.fromkeys(row.name.rpartition(": ")[2] for row in result.rows)
    styles = dict(zip(labels, zip(colours, MARKERS, strict=True), strict=False))
    shown: dict[str, Any] = {}
    for row in result.finished:
        block, _, label = row.name.rpartition(": ")
        axes, (colour, marker) = panels[blocks.index(block)], styles[label]
        for at, name in enumerate(names):
            values = row.values(name)
            axes.plot([at] * len(values), values, marker, color=colour, markersize=4, alpha=0.4)
        means = [row.statistics[name].mean for name in names]
        (shown[label],) = axes.plot(range(len(names)), means, "-", color=colour, label=label)
    for axes, block in zip(panels, blocks, strict=True):
        axes.set_title(block)
        axes.set_xticks(range(len(names)), names)
        axes.grid(axis="y")
    panels[0].set_ylabel("balanced accuracy")
    figure.legend(shown.values(), shown.keys(), loc="outside lower center", ncols=3)
    return figure


def distributions(rows: Sequence[StudyRow], computed: Callable[[StudyRow], npt.NDArray[np.float64]]) -> Figure:
    """Plot the fraction of coordinates that were updated f times: measured as bars, computed as marks, on a logarithmic
    axis."""
    from matplotlib.ticker import MaxNLocator

    figure, colours = _figure(9.0, 1.9 * -(-len(rows) // 3) + 0.6)
    grid = figure.subplots(-(-len(rows) // 3), 3, sharex=True, sharey=True, squeeze=False)
    for axes, row, colour in zip(grid.flat, rows, colours, strict=False):
        moves = np.array([run.moves for run in row.federated], dtype=np.float64)  # [seeds, rounds + 1]
        shares = (moves / moves.sum(axis=1, keepdims=True)).mean(axis=0)
        counts = np.arange(len(shares))
        axes.bar(counts, shares, color=colour, alpha=0.55, width=0.8)
        expected = computed(row)
        axes.plot(counts[expected > 0], expected[expected > 0], "kx", markersize=5)
        axes.set_title(row.name, fontsize=9.5)
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_ylim(1e-6, 2.0)
        axes.grid(axis="y")
    for axes in grid.flat[len(rows) :]:
        axes.set_visible(False)
    for axes in grid.flat[max(0, len(rows) - 3) : len(rows)]:
        axes.tick_params(labelbottom=True)
    figure.supxlabel("updates f of a coordinate (bars: measured; crosses: computed)", fontsize=9.5)
    figure.supylabel("share of the coordinates", fontsize=9.5)
    return figure


def _figure(width: float, height: float) -> tuple[Figure, Sequence[str]]:
    from matplotlib.figure import Figure

    from tacit.simulate.report.figures import PALETTE

    return Figure(figsize=(width, height)), PALETTE
