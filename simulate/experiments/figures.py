"""The plots of the studies. Colours are those of the reports; what stands for itself is labelled at its place."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tacit.simulate.experiments.study import ArmResult

if TYPE_CHECKING:  # Drawing takes a second to load, which whoever asks for the list of studies need not wait for.
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
