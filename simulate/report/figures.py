"""Figures of the report, as SVG text inside an HTML page.

All are drawn at the same width, that of a telephone, where their text is as large as the page's small print; on a wide
screen two stand side by side. Text stays text, in the font of the page. The same data give the same bytes: no dates, no
random identifiers. Colours of data are those of Okabe and Ito (2008), which colour-blind readers can tell apart; ink,
lines and ground are variables of the page, which has others by night.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from statistics import fmean, stdev
from typing import Final, Literal

import matplotlib
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from tacit.parties.runs.classes import TestClasses
from tacit.parties.runs.results import BYTE_UNITS
from tacit.parties.runs.state import PartyState, RoundState, Span
from tacit.parties.runs.summary import SECURE_SUM
from tacit.protocol.sum.states import Phase

PHASES = (*(phase for phase in Phase if phase is not Phase.SESSION), Phase.SESSION)
COLOURS = {
    Phase.TRAIN: "#0072B2",
    Phase.ADVERTISE_KEYS: "#E69F00",
    Phase.SHARE_KEYS: "#009E73",
    Phase.MASKED_INPUT: "#CC79A7",
    Phase.ANSWER_COMPLAINTS: "#F0E442",
    Phase.CONSISTENCY_CHECK: "#56B4E9",
    Phase.UNMASK: "#D55E00",
    Phase.SESSION: "#C4C8CC",
}
"""Keys and shares go in parallel with the training; the overhead of secure aggregation comes after TRAIN."""
ACTIVITY_COLOURS: Final = {
    "training": COLOURS[Phase.TRAIN],
    "computing the protocol": COLOURS[Phase.UNMASK],
    "waiting": "#8a949e",
    "between rounds": COLOURS[Phase.SESSION],
}
"""Keyed by the keys of PartyState.activities."""
PALETTE: Final = tuple(COLOURS[phase] for phase in PHASES if phase is not Phase.ANSWER_COMPLAINTS)
"""For lines that represent no phase; yellow is too light for them."""
UNITS: Final = {"accuracy": "accuracy (share of images)", "loss": "loss (nats)"}
WIDTH = 3.9
MOST_ROWS = 16
MOST_NUMBERED = 12
"""Largest number of classes for which a matrix's cells have room for numbers."""
TIME_UNITS = ((1e-3, "milliseconds"), (1.0, "seconds"), (60.0, "minutes"), (3600.0, "hours"))
INK = "#1d2733"
_VARIABLES: Final = {INK: "--ink", "#ffffff": "--page", "#8a949f": "--quiet", "#e3e7eb": "--line"}
"""Colours that the page defines."""
_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "tacit",
    "text.parse_math": False,
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#8a949f",
    "axes.labelcolor": INK,
    "axes.axisbelow": True,
    "grid.color": "#e3e7eb",
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "hatch.linewidth": 0.8,
    "legend.frameon": False,
    "legend.fontsize": 10,
    "figure.constrained_layout.use": True,
}

_MARKS: Final = "os^DvPX*"
_DASHES: Final = ("-", "--", "-.", ":")

Points = Sequence[tuple[int, float | None]]
Unit = tuple[float, str]
Window = tuple[float, float]
"""Begin and end, in seconds since 1970."""


def learning_curve(rounds: Sequence[RoundState], *, metric: str, failed: Sequence[int], judged: bool) -> Markup:
    """Plot test and training `accuracy` or `loss` after each completed round; `failed` are numbers of other rounds.

    judged: whether there are test metrics.
    """
    with style():
        figure = Figure(figsize=(WIDTH, 3.2))
        axes = figure.subplots()
        results = [(round.number, round.result) for round in rounds if round.result]
        curves = (
            ("test images", "#0072B2", "o-", metric),
            ("training images (secure sum)", "#D55E00", "s--", f"train_{metric}"),
        )[not judged :]
        drawn = [
            (label, colour, line, [(at, getattr(one, key)) for at, one in results if getattr(one, key) is not None])
            for label, colour, line, key in curves
        ]
        if held_out := [one.held_out for _, one in results if one.held_out]:
            points = [(one.round, getattr(one, metric)) for one in held_out]
            drawn.append(("held-out images (secure sum)", "#009E73", "^-.", points))
        for label, colour, line, known in drawn:
            size = 5 if len(known) <= 40 else 0
            axes.plot(*zip(*known, strict=True), line, color=colour, label=label, markersize=size) if known else None
        for number in failed:
            axes.axvline(number, color="#8a949f", linestyle=":", label="no result" if number == failed[0] else None)
        _by_round(axes, f"{metric.capitalize()} by round", UNITS[metric])
        highest = max((y for _, _, _, known in drawn for _, y in known), default=1.0)
        axes.set_ylim(0, 1.02 if metric == "accuracy" else 1.05 * highest)
        if axes.get_legend_handles_labels()[1]:
            figure.legend(loc="outside lower center", handlelength=1.8)
        return _svg(figure, metric)


def compared_curves(lines: Mapping[str, Sequence[Points]], *, metric: str) -> Markup:
    """Plot `accuracy` or `loss` by round of several runs by name, or the mean and spread of runs of one name."""
    with style():
        return _svg(_compared(lines, metric), metric)


def save_compared(lines: Mapping[str, Sequence[Points]], paths: Sequence[Path], *, metric: str) -> None:
    """Write the same plot to files, of the kinds that their suffixes name. OSError if one cannot be written."""
    with style():
        for path in paths:
            _compared(lines, metric).savefig(path, dpi=200, metadata=None if path.suffix == ".png" else {"Date": None})


def _compared(lines: Mapping[str, Sequence[Points]], metric: str) -> Figure:
    figure = Figure(figsize=(WIDTH, 2.7 + 0.18 * len(lines)))
    axes = figure.subplots()
    shown: list[float] = []
    for number, (name, runs) in enumerate(lines.items()):
        found = means(runs)
        if not found:
            continue
        rounds, centres, spreads = zip(*found, strict=True)
        colour, label = PALETTE[number % len(PALETTE)], shortened(name, 40)
        # Later lines are thinner, and all have marks of their own, so that each shows where several are the same.
        axes.plot(
            rounds,
            centres,
            f"{_MARKS[number % len(_MARKS)]}{_DASHES[number % len(_DASHES)]}",
            color=colour,
            label=label,
            linewidth=1.2 + 2.4 * (1 - number / len(lines)),
            markersize=3 + 4 * (1 - number / len(lines)) if len(found) <= 40 else 0,
        )
        low, high = ([at + sign * by for at, by in zip(centres, spreads, strict=True)] for sign in (-1, 1))
        if len(runs) > 1:
            axes.fill_between(rounds, low, high, color=colour, alpha=0.15, linewidth=0)
        shown += [*low, *high]
    _by_round(axes, f"{metric.capitalize()} by round", UNITS[metric])
    if shown:
        least, most = min(shown), max(shown)
        margin = 0.05 * (most - least) or 0.05 * abs(most) or 0.05
        axes.set_ylim(max(0.0, least - margin), most + margin)
    figure.legend(loc="outside lower center", handlelength=2.6)
    return figure


def means(runs: Sequence[Points]) -> list[tuple[int, float, float]]:
    """Return each round with mean and standard deviation of the runs' values; 0 for a single run."""
    values: dict[int, list[float]] = {}
    for points in runs:
        for at, value in points:
            if value is not None:
                values.setdefault(at, []).append(value)
    return [(at, fmean(found), stdev(found) if len(found) > 1 else 0.0) for at, found in sorted(values.items())]


def confusion_matrix(found: TestClasses) -> Markup:
    """Draw the confusion matrix: a row per true class, darker for a larger part of its images; found has a matrix."""
    assert found.confusion is not None
    names = [shortened(one.name, 12) for one in found.classes]
    count = len(names)
    with style():
        figure = Figure(figsize=(WIDTH, WIDTH))
        axes = figure.subplots()
        for row, taken in enumerate(found.confusion):
            total = sum(taken) or 1
            for column, images in enumerate(taken):
                if images:
                    colour = COLOURS[Phase.TRAIN] if row == column else COLOURS[Phase.UNMASK]
                    shade = 0.15 + 0.85 * images / total
                    axes.add_patch(
                        Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor=colour, alpha=shade, linewidth=0)
                    )
                if images and count <= MOST_NUMBERED:
                    ink = "#fefefe" if images / total > 0.5 else INK
                    size = 8 if images < 1000 else 6
                    axes.text(column, row, str(images), ha="center", va="center", color=ink, fontsize=size)
        axes.set(xlim=(-0.5, count - 0.5), ylim=(count - 0.5, -0.5), aspect="equal")
        small = 10 if count <= 15 else 5
        axes.set_xticks(range(count), names, rotation=90 if max(map(len, names)) > 2 else 0, fontsize=small)
        axes.set_yticks(range(count), names, fontsize=small)
        axes.tick_params(length=0)
        axes.set_title("Confusion matrix")
        axes.set_xlabel("predicted class")
        axes.set_ylabel("true class")
        return _svg(figure, "confusion")


def clipped_bars(rounds: Sequence[RoundState], parameters: int) -> Markup:
    """Draw the clipped coordinates of every completed round, in percent of all in the sum."""
    with style():
        figure = Figure(figsize=(WIDTH, 2.6))
        axes = figure.subplots()
        results = [(round.number, round.result) for round in rounds if round.result and round.result.survivors]
        shares = [100 * (result.clipped or 0) / (parameters * len(result.survivors)) for _, result in results]
        axes.bar([number for number, _ in results], shares, color="#0072B2", width=0.7)
        _by_round(axes, "Clipped coordinates by round", "clipped (% of coordinates)")
        return _svg(figure, "clipped")


def party_bars(
    server: PartyState | None,
    clients: Sequence[PartyState],
    amount: Literal["activities", "seconds", "sent", "received"],
    *,
    title: str,
    axis: str,
    name: str,
) -> Markup:
    """Draw one amount per party as bars, stacked by phase or activity; the server, serving all, has its own axis."""
    units = TIME_UNITS if amount in ("activities", "seconds") else BYTE_UNITS
    colours: Mapping[str, str] = (
        ACTIVITY_COLOURS if amount == "activities" else {phase: COLOURS[phase] for phase in PHASES}
    )

    def values(party: PartyState) -> list[float]:
        return [getattr(party, amount).get(part, 0) for part in colours]

    def total(party: PartyState) -> float:
        return sum(values(party))

    shown = sample(sorted(clients, key=total, reverse=True), MOST_ROWS)
    if len(shown) == len(clients):
        shown = list(clients)
    groups = [group for group in ([server] if server else [], shown) if group]
    with style():
        figure = Figure(figsize=(WIDTH, 1.2 + 0.55 * len(groups) + 0.24 * sum(map(len, groups))))
        ratios = [len(group) + 0.6 for group in groups]
        columns = figure.subplots(len(groups), 1, squeeze=False, height_ratios=ratios)[:, 0]
        for axes, group in zip(columns, groups, strict=True):
            largest = max(map(total, group))
            scale, unit = _unit(largest, units)
            left = [0.0] * len(group)
            for colour, amounts in zip(colours.values(), zip(*map(values, group), strict=True), strict=True):
                widths = [value / scale for value in amounts]
                axes.barh(range(len(group)), widths, left=left, color=colour, height=0.72)
                left = [before + width for before, width in zip(left, widths, strict=True)]
            _rows(axes, [party.name for party in group])
            axes.set_xlim(0, 1.04 * largest / scale or 1)
            axes.set_xlabel(f"{axis} ({unit})")
        columns[0].set_title(title)
        return _svg(figure, name)


def timeline(round: RoundState, server: str | None, *, window: Window, title: str, axis: str, name: str) -> Markup:
    """Draw the parties' phases within a window of times; crosses mark dropped ones, hatches the ends of logs."""
    rows = _timeline_rows(round, server)
    begin, end = window
    with style():
        figure = Figure(figsize=(WIDTH, 1.1 + 0.24 * len(rows)))
        axes = figure.subplots()
        scale, unit = _unit(end - begin, TIME_UNITS)
        for row, party in enumerate(rows):
            for span in round.spans.get(party, ()):
                _bar(axes, row, span, window, scale)
            dropped = round.drops.get(party)
            if dropped is not None and begin <= dropped.time <= end:
                axes.plot((dropped.time - begin) / scale, row, "X", color=INK, markersize=8, clip_on=False)
        axes.set_xlim(0, (end - begin) / scale)
        _rows(axes, rows)
        axes.set_title(title)
        axes.set_xlabel(f"{axis} ({unit})")
        return _svg(figure, name)


def secure_sum_window(round: RoundState, server: str | None) -> Window | None:
    """Return the server's first and last moment in phases of the secure sum; None if it reached none."""
    spans = [span for span in round.spans.get(server or "", ()) if span.phase in SECURE_SUM]
    return (spans[0].start, spans[-1].end) if spans else None


def sample(ranked: Sequence[PartyState], most: int) -> list[PartyState]:
    """Return at most `most` of the ranked, evenly spaced, the first and the last included."""
    if len(ranked) <= most:
        return list(ranked)
    return [ranked[round(place * (len(ranked) - 1) / (most - 1))] for place in range(most)]


def _timeline_rows(round: RoundState, server: str | None) -> list[str]:
    """Return the server, the dropped clients, and the slowest to train, in the order of the cohort."""

    def trained(name: str) -> float:
        return max((span.end for span in round.spans.get(name, ()) if span.phase is Phase.TRAIN), default=0.0)

    ranked = sorted(round.cohort, key=lambda name: (name not in round.drops, -trained(name)))
    shown = set(ranked[:MOST_ROWS])
    return [*([server] if server else []), *(name for name in round.cohort if name in shown)]


def _bar(axes: Axes, row: int, span: Span, window: Window, scale: float) -> None:
    start, end = max(span.start, window[0]), min(span.end, window[1])
    if end > start:
        colour = COLOURS[span.phase]
        style = {"facecolor": "#ffffff", "edgecolor": colour, "hatch": "////"} if span.open else {"facecolor": colour}
        axes.barh(row, (end - start) / scale, left=(start - window[0]) / scale, height=0.72, **style)  # type: ignore[arg-type]


def _by_round(axes: Axes, title: str, unit: str) -> None:
    axes.set_title(title)
    axes.set_xlabel("round")
    axes.set_ylabel(unit)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.grid(axis="y")


def _rows(axes: Axes, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), [shortened(name, 20) for name in names])
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 5, 10]))


def shortened(name: str, most: int) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"


def _unit(largest: float, units: Sequence[Unit]) -> Unit:
    """Return the largest unit of which there is at least one; the smallest if there is none."""
    return next((unit for unit in reversed(units) if largest >= unit[0]), units[0])


def style() -> AbstractContextManager[None]:
    return matplotlib.rc_context(_STYLE)  # type: ignore[arg-type]


def _svg(figure: Figure, name: str) -> Markup:
    """Return the figure as an <svg> element whose identifiers begin with its name: they must be unique in a page."""
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    svg = text.getvalue()[text.getvalue().index("<svg") :]
    # Its style sheet would apply to the whole page, which has the same rule for figures only.
    svg = re.sub(r"<style.*?</style>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(?<=\bid=")|(?<=href="#)|(?<=url\(#)', f"{name}-", svg)
    svg = re.sub("|".join(_VARIABLES), lambda found: f"var({_VARIABLES[found[0]]})", svg)
    return Markup(re.sub(r'<svg [^>]*?viewBox="([^"]*)"[^>]*>', r'<svg viewBox="\1" aria-hidden="true">', svg, count=1))
