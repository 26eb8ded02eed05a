"""Tables 5 and 6 of Tastan and Nandakumar 2025 as a page, for programs, and as a plot, like those of the studies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from tacit.simulate.experiments.figures import COLOURS
from tacit.simulate.experiments.page import date, head, machine, origin
from tacit.simulate.experiments.page import write as write_files
from tacit.simulate.experiments.study import ClaimVerdict, markdown_table, spread
from tacit.simulate.experiments.tastan_approximations import (
    BATCH,
    Figures,
    Measurement,
    MeasurementSize,
    judge,
    means,
    name_of,
    of,
)


def write(
    measurement: Measurement,
    chosen: MeasurementSize,
    figures: Sequence[Figures],
    *,
    small: bool,
    command: str,
    directory: Path,
    json_file: Path | None,
) -> list[ClaimVerdict]:
    """table.md, table.json (and a copy) and plot.svg; returns the verdicts. OSError names what it cannot write."""
    verdicts = judge(measurement, figures)
    lines = [
        *head(measurement, verdicts),
        *_table(measurement, figures),
        "",
        f"Means over the seeds {', '.join(map(str, sorted({entry.seed for entry in figures})))} "
        f"(accuracy: ± sample standard deviation), {'small twin' if small else 'full size'}.",
        "",
        f"`{command}` on {date()}, {machine()}.",
        "",
        "Where the settings differ from the paper:",
        "",
        *(f"- {item}" for item in chosen.differences),
    ]
    table = origin(measurement, small=small, command=command) | {
        "rows": [
            {"degree": degree, "published": published} | means(figures, degree)
            for degree, published in measurement.published.items()
        ],
        "runs": list(figures),
        "verdicts": verdicts,
        "differences": list(chosen.differences),
    }
    write_files(directory, lines, "measurement", table, lambda: draw(measurement, figures), json_file)
    return verdicts


def _table(measurement: Measurement, figures: Sequence[Figures]) -> list[str]:
    losses = ("attention loss", "representation loss")
    unit = "s" if measurement.varies == "softmax_degree" else "ms"
    ours = ("accuracy (%)", *losses, f"ms for {BATCH} images", "MB")
    headings = ("degree", *ours, "the paper: accuracy", *losses, f"latency ({unit})", "GB")
    rows = []
    for degree, published in measurement.published.items():
        mean = means(figures, degree)
        accuracies = [100 * entry.accuracy for entry in of(figures, degree)]
        deviation = f" ± {spread(accuracies):.2f}" if len(accuracies) > 1 else ""
        memory, latency, attention, hidden, best = map(str, published)
        digits = {"attention": 3, "hidden": 3, "milliseconds": 1, "megabytes": 2}
        costs = [f"{mean[field]:.{count}f}" for field, count in digits.items()]
        accuracy = f"{100 * mean['accuracy']:.2f}{deviation}"
        rows.append([name_of(degree), accuracy, *costs, best, attention, hidden, latency, memory])
    return markdown_table(headings, rows)


def draw(measurement: Measurement, figures: Sequence[Figures]) -> Figure:
    """Losses and accuracy by degree; the function itself as a line."""
    figure = Figure(figsize=(9.0, 3.2))
    degrees = [degree for degree in measurement.published if degree is not None]
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
