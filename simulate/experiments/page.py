"""The results of a study: table.md, table.json and plot.svg, made from the results of its runs.

Everything on the page is computed from the runs, the verdicts too; the column of the size that was not run says so.
Colours are those of the reports; what stands alone is labelled at its place.
"""

from __future__ import annotations

import os
import platform
import shlex
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from tacit.parties.runs.directory import write_output, writing
from tacit.simulate.experiments.data import CIFAR10_SAMPLES
from tacit.simulate.experiments.engine import PreparedStudy
from tacit.simulate.experiments.measurement import Findings
from tacit.simulate.experiments.study import ArmResult, Claim, ClaimVerdict, markdown_table, spread
from tacit.simulate.report.figures import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = ("#000000", "#D55E00", "#0072B2", "#56B4E9", "#009E73", "#E69F00", "#CC79A7")
MARKERS = ("o", "s", "^", "v", "D", "P", "X")


def curves(panels: Mapping[str, Sequence[ArmResult]], *, labels: Mapping[str, str]) -> Figure:
    """Mean test accuracy after each round, with the range over the seeds, in panels side by side; labels: of arms."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 3.8))
    styles = dict(zip(dict.fromkeys(labels.values()), zip(COLOURS, MARKERS, strict=True), strict=False))
    shown: dict[str, Any] = {}
    for axes, (title, results) in zip(figure.subplots(1, len(panels), sharey=True), panels.items(), strict=True):
        for result in results:
            label = labels[result.arm.name]
            colour, marker = styles[label]
            runs = 100 * np.array([run.accuracies for run in result.runs])  # [seeds, rounds]
            rounds = np.arange(1, runs.shape[1] + 1)
            axes.fill_between(rounds, runs.min(axis=0), runs.max(axis=0), color=colour, alpha=0.12, linewidth=0)
            (shown[label],) = axes.plot(rounds, runs.mean(axis=0), f"{marker}-", color=colour, markersize=4)
        axes.set_title(title)
        axes.set_xlabel("round")
        axes.grid(axis="y")
    figure.axes[0].set_ylabel("test accuracy (%)")
    # Of any panel: an arm may be finished in one and not in the other.
    figure.legend(shown.values(), shown.keys(), loc="outside lower center", ncols=3)
    return figure


def points(results: Sequence[ArmResult]) -> Figure:
    """The final accuracy of every run, in percent, and the mean of each arm."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 1.2 + 0.4 * len(results)))
    axes = figure.subplots()
    for row, result in enumerate(results):
        values = [100 * accuracy for accuracy in result.accuracies]
        axes.plot(values, [row] * len(values), "o", color="#0072B2", markersize=5, alpha=0.6)
        axes.plot(statistics.mean(values), row, "|", color="#000000", markersize=16, markeredgewidth=2)
    axes.set_yticks(range(len(results)), [result.arm.name for result in results])
    axes.set_ylim(len(results) - 0.5, -0.5)
    axes.set_xlabel("test accuracy (%): every run, and the mean")
    axes.grid(axis="x")
    return figure


def distributions(results: Sequence[ArmResult], computed: Callable[[ArmResult], npt.NDArray[np.float64]]) -> Figure:
    """How many of the coordinates were updated f times: measured as bars, computed as marks, on a logarithmic axis."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(9.0, 1.9 * -(-len(results) // 3) + 0.6))
    grid = figure.subplots(-(-len(results) // 3), 3, sharex=True, sharey=True, squeeze=False)
    for axes, result, colour in zip(grid.flat, results, COLOURS, strict=False):
        moves = np.array([run.moves for run in result.runs], dtype=np.float64)  # [seeds, rounds + 1]
        shares = (moves / moves.sum(axis=1, keepdims=True)).mean(axis=0)
        counts = np.arange(len(shares))
        axes.bar(counts, shares, color=colour, alpha=0.55, width=0.8)
        expected = computed(result)
        axes.plot(counts[expected > 0], expected[expected > 0], "kx", markersize=5)
        axes.set_title(result.arm.name, fontsize=9.5)
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_ylim(1e-6, 2.0)
        axes.grid(axis="y")
    for axes in grid.flat[len(results) :]:
        axes.set_visible(False)
    for axes in grid.flat[max(0, len(results) - 3) : len(results)]:
        axes.tick_params(labelbottom=True)
    figure.supxlabel("updates f of a coordinate (bars: measured; crosses: computed)", fontsize=9.5)
    figure.supylabel("share of the coordinates", fontsize=9.5)
    return figure


NOT_RUN: Final = "not run"
NOT_FINISHED: Final = "not finished"


def write(
    directory: Path,
    lines: Iterable[str],
    schema: str,
    figures: dict[str, Any],
    draw: Callable[[], Figure],
    json_file: Path | None,
) -> None:
    """All three files, and a copy of table.json. OSError, which names the file, if one cannot be written."""
    with writing(directory / "table.md"):
        (directory / "table.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for path in filter(None, (directory / "table.json", json_file)):
        write_output(schema, figures, path)
    with writing(directory / "plot.svg"), style():
        draw().savefig(directory / "plot.svg", metadata={"Date": None})


def origin(claim: Claim, *, small: bool, command: str) -> dict[str, Any]:
    """The first keys of table.json."""
    size = "small" if small else "full"
    return {"study": claim.name, "size": size, "command": command, "machine": machine(), "date": date()}


def head(claim: Claim, verdicts: Iterable[ClaimVerdict]) -> list[str]:
    """The first lines of table.md, up to the plot."""
    words = {True: "holds", False: "does not hold", None: "not decided by these runs"}
    return [
        f"## {claim.name}: {claim.shows}",
        "",
        claim.paper,
        "",
        f"The paper's claim: {claim.claim}",
        "",
        *(
            f"- **{words[verdict.holds]}**: {verdict.claim}. Criterion: {verdict.criterion}. Found: {verdict.detail}."
            for verdict in verdicts
        ),
        "",
        "![Plot of the table](plot.svg)",
        "",
    ]


def write_measurement(
    claim: Claim,
    differences: Sequence[str],
    findings: Findings,
    *,
    small: bool,
    command: str,
    directory: Path,
    json_file: Path | None,
) -> list[ClaimVerdict]:
    """All files of a table that needs no federation; returns the verdicts. Raises as `write` does."""
    verdicts = findings.verdicts()
    lines = [
        *head(claim, verdicts),
        *findings.lines(),
        "",
        f"`{command}` on {date()}, {machine()}.",
        "",
        f"Where the {'small twin' if small else 'full size'} differs from the paper:",
        "",
        *(f"- {item}" for item in differences),
    ]
    figures = origin(claim, small=small, command=command) | {
        "rows": findings.rows(),
        "runs": list(findings.runs()),
        "verdicts": verdicts,
        "differences": list(differences),
    }
    write(directory, lines, "measurement", figures, findings.draw, json_file)
    return verdicts


@dataclass(frozen=True, kw_only=True)
class Page:
    """The results of a study, and how they came about."""

    work: PreparedStudy
    results: Sequence[ArmResult]
    command: str

    def write(self, directory: Path, json_file: Path | None = None) -> None:
        """All files of the study. Raises as `write` does."""
        draw = self.work.study.draw
        write(directory, self.markdown(), "study", self.figures(), lambda: draw(self.results), json_file)

    def figures(self) -> dict[str, Any]:
        """The content of table.json; docs/experiments.md lists the keys."""
        study = self.work.study
        arms = []
        for result in self.results:
            quantity, values = study.quantity(result)
            arms.append(
                {
                    "name": result.arm.name,
                    "published": result.arm.published,
                    "quantity": quantity,
                    "mean": statistics.mean(values),
                    "spread": spread(values) if len(values) > 1 else None,
                    "runs": [
                        {"value": value} | msgspec.to_builtins(run)
                        for value, run in zip(values, result.runs, strict=True)
                    ],
                }
            )
        return origin(study, small=self.work.small, command=self.command) | {
            "data": self.work.images.description,
            "device": self.work.device,
            "seeds": list(self.work.seeds),
            "arms": arms,
            "unfinished": self._unfinished(),
            "verdicts": study.judge(self.results),
            "differences": self._differences(),
        }

    def markdown(self) -> list[str]:
        """The lines of table.md."""
        study = self.work.study
        return [
            *head(study, study.judge(self.results)),
            *self._table(),
            "",
            *study.details(self.results),
            f"`{self.command}` on {date()}, {machine()}; {self.work.images.description}. "
            f"All runs together took {sum(run.seconds for result in self.results for run in result.runs):.0f} s.",
            "",
            *markdown_table(["the paper's settings", ""], study.settings),
            "",
            "What the paper does not say, and what the full size takes:",
            "",
            *(f"- {item}" for item in study.silent),
            "",
            f"Where the {'small twin' if self.work.small else 'full size'} differs from the paper:",
            "",
            *(f"- {item}" for item in self._differences()),
        ]

    def _unfinished(self) -> list[str]:
        finished = {result.arm.name for result in self.results}
        return [arm.name for arm in self.work.size.arms if arm.name not in finished]

    def _differences(self) -> list[str]:
        work, found = self.work, [*self.work.size.differences]
        per_client = work.study.images_per_client
        if not work.small and not per_client and work.images.samples != CIFAR10_SAMPLES:
            train, test = work.images.samples
            found.append(f"{train:,} training and {test:,} test images instead of 50,000 and 10,000")
        if not work.small and per_client:
            wanted = per_client[len(work.images.source.class_names)] * work.arms[0].experiment.clients
            if work.test_images < wanted:
                found.append(f"{work.test_images:,} test images, all that there are, instead of {wanted:,}")
        return found

    def _table(self) -> list[str]:
        quantity, _ = self.work.study.quantity(self.results[0])
        sizes = [f"full size: {quantity}", f"small twin: {quantity}"]
        seeds = [f"seed {seed}" for seed in self.work.seeds]
        results, rows = {result.arm.name: result for result in self.results}, []
        for arm in self.work.size.arms:
            ours, runs = NOT_FINISHED, [""] * len(seeds)
            if result := results.get(arm.name):
                _, values = self.work.study.quantity(result)
                ours, runs = _number(statistics.mean(values)), [_number(value) for value in values]
                ours += f" ± {_number(spread(values))}" if len(values) > 1 else ""
            both = [NOT_RUN, ours] if self.work.small else [ours, NOT_RUN]
            rows.append([arm.name, arm.published, *both, *runs])
        table = markdown_table(["arm", "the paper", *sizes, *seeds], rows)
        return [*table, "", "Mean ± sample standard deviation over the seeds, and every run."]


def command_line(
    name: str, *, small: bool, seeds: str, data: Path | None, device: str, patterns: Sequence[str] = ()
) -> str:
    """The command that repeats these runs, without the places of files on this machine."""
    words = ["tacit", "experiment", name, *(["--small"] if small else []), "--seeds", seeds]
    words += [word for pattern in patterns for word in ("--arm", pattern)]
    words += ["--data", data.name] if data is not None else []
    words += ["--device", device] if device != "cpu" else []
    return shlex.join(words)


def _number(value: float) -> str:
    """Two decimals, or three digits of what is smaller than one."""
    return f"{value:.2f}" if abs(value) >= 1 or value == 0 else f"{value:.3g}"


def date() -> str:
    return f"{datetime.now(UTC):%Y-%m-%d}"


def machine() -> str:
    return f"{os.cpu_count()} cores ({platform.machine()}), Python {platform.python_version()}"
