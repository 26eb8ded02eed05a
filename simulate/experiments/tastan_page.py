"""Tables 5 and 6 of Tastan and Nandakumar 2025 as a page, for programs, and as a plot, like those of the studies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tacit.simulate.experiments.study import ClaimVerdict, spread
from tacit.simulate.experiments.tastan_approximations import (
    BATCH,
    PAPER,
    Figures,
    Measurement,
    MeasurementSize,
    judge,
    means,
    of,
)
from tacit.simulate.runs.directory import write_json, writing

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def markdown(
    measurement: Measurement,
    chosen: MeasurementSize,
    figures: Sequence[Figures],
    *,
    small: bool,
    command: str,
    machine: str,
) -> Iterator[str]:
    """The lines of table.md."""
    words = {True: "holds", False: "does not hold"}
    seeds = sorted({entry.seed for entry in figures})
    unit = "s" if measurement.varies == "softmax_degree" else "ms"
    yield from [
        f"## {measurement.name}: {measurement.shows}",
        "",
        PAPER,
        "",
        f"The paper's claim: {measurement.claim}",
        "",
    ]
    for verdict in judge(measurement, figures):
        holds = words[bool(verdict.holds)]
        yield f"- **{holds}**: {verdict.claim}. Criterion: {verdict.criterion}. Found: {verdict.detail}."
    yield from ["", "![Plot of the table](plot.svg)", ""]
    yield (
        f"| degree | accuracy (%) | attention loss | representation loss | ms for {BATCH} images | MB | "
        f"the paper: accuracy | attention loss | representation loss | latency ({unit}) | GB |"
    )
    yield f"|{'---|' * 11}"
    for row in measurement.rows:
        mean = means(figures, row.degree)
        accuracies = [100 * entry.accuracy for entry in of(figures, row.degree)]
        deviation = f" ± {spread(accuracies):.2f}" if len(accuracies) > 1 else ""
        memory, latency, attention, hidden, accuracy = row.published
        cells = [
            row.name, f"{100 * mean['accuracy']:.2f}{deviation}", f"{mean['attention']:.3f}", f"{mean['hidden']:.3f}",
            f"{mean['milliseconds']:.1f}", f"{mean['megabytes']:.2f}", f"{accuracy}", f"{attention}", f"{hidden}",
            f"{latency}", f"{memory}",
        ]  # fmt: skip
        yield f"| {' | '.join(cells)} |"
    yield from [
        "",
        f"Means over the seeds {', '.join(map(str, seeds))} (accuracy: ± sample standard deviation), "
        f"{'small twin' if small else 'full size'}.",
        "",
        f"`{command}` on {machine}.",
        "",
        "Where the settings differ from the paper:",
        "",
        *(f"- {item}" for item in chosen.differences),
    ]


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
    import matplotlib

    from tacit.simulate.experiments.page import date, machine
    from tacit.simulate.report.figures import STYLE

    verdicts = judge(measurement, figures)
    lines = markdown(measurement, chosen, figures, small=small, command=command, machine=f"{date()}, {machine()}")
    with writing(directory / "table.md"):
        (directory / "table.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    table = {
        "study": measurement.name,
        "size": "small" if small else "full",
        "command": command,
        "date": date(),
        "machine": machine(),
        "rows": [
            {"degree": row.degree, "published": row.published} | means(figures, row.degree) for row in measurement.rows
        ],
        "runs": list(figures),
        "verdicts": verdicts,
        "differences": list(chosen.differences),
    }
    for path in filter(None, (directory / "table.json", json_file)):
        write_json(table, path)
    with writing(directory / "plot.svg"), matplotlib.rc_context(STYLE):  # type: ignore[arg-type]
        draw(measurement, figures).savefig(directory / "plot.svg", metadata={"Date": None})
    return verdicts


def draw(measurement: Measurement, figures: Sequence[Figures]) -> Figure:
    """Losses and accuracy by degree; the function itself as a line."""
    from matplotlib.figure import Figure as Drawing

    from tacit.simulate.experiments.figures import COLOURS

    figure = Drawing(figsize=(9.0, 3.2))
    degrees = [row.degree for row in measurement.rows if row.degree is not None]
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
