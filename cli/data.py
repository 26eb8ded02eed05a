"""`tacit data`: looks at a data set, and at how a simulation would divide it, before anything is trained.

Everything slow is imported inside the command, so that --help answers at once.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console
from rich.measure import Measurement
from rich.progress import Progress, SpinnerColumn, TimeElapsedColumn
from rich.table import Table

from tacit.cli.output import UNBOUNDED, WRONG_INPUT, complaining, json_option, keep_json, say, screen, table

if TYPE_CHECKING:
    from tacit.models.datasets.samples import Source
    from tacit.parties.runs.experiment import Experiment

MOST_COLUMNS: Final = 10
"""Clients that get a column of their own on the screen; the JSON file always has the whole table."""
MOST_CLASSES: Final = 20
"""Classes that are listed in one line."""
app = typer.Typer(no_args_is_help=True, help="Inspect data sets.")


@app.callback()
def data() -> None:
    """Inspect data sets."""


@app.command()
def inspect(
    experiment: Annotated[
        Path | None, typer.Argument(metavar="EXPERIMENT.toml", help="Experiment file; without one, the defaults.")
    ] = None,
    source: Annotated[str | None, typer.Option(help="Data set, as data.source of an experiment.")] = None,
    directory: Annotated[Path | None, typer.Option(help="Where its files are.")] = None,
    clients: Annotated[int | None, typer.Option(help="Number of clients.")] = None,
    partition: Annotated[str | None, typer.Option(help="How to divide: dirichlet, iid or centre.")] = None,
    alpha: Annotated[float | None, typer.Option(help="Dirichlet concentration.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the division; that of the experiment, else 0.")] = None,
    json_file: Annotated[Path | None, json_option("Write the figures to this file too.")] = None,
) -> None:
    """Show the classes and images of a data set, and the images of every client.

    Nothing is downloaded; every file is checked.

    Exit status: 0 done; 1 the file of --json cannot be written; 2 wrong input.
    """
    errors = Console(stderr=True, highlight=False)
    columns = (SpinnerColumn(), *Progress.get_default_columns(), TimeElapsedColumn())
    given = {
        "source": source,
        "directory": None if directory is None else str(directory),
        "partition": partition,
        "alpha": alpha,
    }
    with (
        complaining(((ValueError, OSError), WRONG_INPUT)),
        Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as progress,
    ):
        figures = _figures(_chosen(experiment, given, clients, seed), progress)
    keep_json(json_file, "data", figures)
    _show(figures, screen())


@app.command()
def divide(
    experiment: Annotated[
        Path | None, typer.Argument(metavar="EXPERIMENT.toml", help="Experiment file; without one, the defaults.")
    ] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder to write into; it must be empty or new.")] = Path(
        "data"
    ),
    clients: Annotated[int | None, typer.Option(help="Number of clients.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the division; that of the experiment, else 0.")] = None,
) -> None:
    """Write what each party of a simulation would have into a file of its own, to rehearse between hosts.

    client-1.npz, client-2.npz, ... have the training images of each client, server.npz the test images.

    Exit status: 0 done; 2 wrong input.
    """
    from tacit.parties.runs.directory import RunDirectoryError

    with complaining(((ValueError, OSError, RunDirectoryError), WRONG_INPUT)):
        for path, count in _write_parts(_chosen(experiment, {}, clients, seed), out):
            typer.echo(f"{path}: {count:,} images")


def _write_parts(experiment: Experiment, out: Path) -> Iterator[tuple[Path, int]]:
    import numpy as np

    from tacit.models.data import read
    from tacit.models.partition import divide
    from tacit.parties.runs.directory import claim, write_arrays

    data, size = experiment.data, experiment.model.image_size
    claim(out)
    source = read(data)
    labels, seed = source.train.labels, experiment.federation.seed or 0
    clients = experiment.clients
    shares = divide(labels, data, clients=clients, seed=seed, centres=source.train.centres)
    for number, share in enumerate(shares, start=1):
        path = out / f"client-{number}.npz"
        write_arrays(path, x_train=source.train.images.pixels(share, size=size), y_train=labels[share])
        yield path, len(share)
    everything = np.arange(len(source.test.labels))
    write_arrays(out / "server.npz", x_test=source.test.images.pixels(everything, size=size), y_test=source.test.labels)
    yield out / "server.npz", len(everything)


def _chosen(path: Path | None, given: dict[str, Any], clients: int | None, seed: int | None) -> Experiment:
    """The experiment, with what the command line says instead. Raises ExperimentError."""
    import msgspec

    from tacit.models.configuration import DataConfiguration
    from tacit.parties.runs.experiment import Experiment, ExperimentError, load, refusal, with_overrides

    base = load(path) if path is not None else Experiment()
    section = {**msgspec.to_builtins(base.data), **{key: value for key, value in given.items() if value is not None}}
    try:
        chosen = msgspec.structs.replace(base, data=msgspec.convert(section, DataConfiguration))
    except msgspec.ValidationError as error:
        raise ExperimentError(f"command line: {refusal(error, section, DataConfiguration)}") from error
    return with_overrides(chosen, clients=clients, seed=seed, where="command line")


def _figures(experiment: Experiment, progress: Progress) -> dict[str, Any]:
    """What is shown and written: counts only, no image. Raises ValueError or OSError, naming the file."""
    reading = progress.add_task("importing", total=None)
    import numpy as np

    from tacit.models.data import read, statistics
    from tacit.simulate.federation.hosting import largest_weight, shares

    progress.update(reading, description=f"reading {experiment.data.source}")
    source = read(experiment.data)
    sizes = _sizes(source, progress)
    seed = experiment.federation.seed or 0
    progress.update(reading, description="mean and standard deviation of the pixels")
    mean, std = statistics(source.train.images, image_size=experiment.model.image_size)
    labels, centres, classes = source.train.labels, source.train.centres, len(source.class_names)
    parts = shares(experiment, source, seed)
    return {
        "source": experiment.data.source,
        "channels": source.train.images.channels,
        "train": len(labels),
        "test": len(source.test.labels),
        "image_sizes": [
            {"height": height, "width": width, "images": images}
            for (height, width), images in sorted(sizes.items(), key=lambda entry: (-entry[1], entry[0]))
        ],
        "class_names": list(source.class_names),
        "mean": [round(value, 4) for value in mean],
        "std": [round(value, 4) for value in std],
        "train_by_class": np.bincount(labels, minlength=classes).tolist(),
        "test_by_class": np.bincount(source.test.labels, minlength=classes).tolist(),
        "train_by_centre": None if centres is None else np.bincount(centres).tolist(),
        "partition": experiment.data.partition,
        "alpha": experiment.data.alpha if experiment.data.partition == "dirichlet" else None,
        "seed": seed if experiment.data.partition != "centre" else None,
        "clients_by_class": [np.bincount(labels[part], minlength=classes).tolist() for part in parts],
        "seed_is_set": experiment.federation.seed is not None,
        "max_weight": experiment.aggregation.max_weight,
        "largest_weight": largest_weight(experiment, parts),
    }


def _sizes(source: Source, progress: Progress) -> Counter[tuple[int, int]]:
    sizes: Counter[tuple[int, int]] = Counter()
    for images, what in ((source.train.images, "training"), (source.test.images, "test")):
        sizes.update(progress.track(images.sizes(), total=len(images), description=f"sizes of {what} images"))
    return sizes


def _show(figures: dict[str, Any], console: Console) -> None:
    sizes = figures["image_sizes"]
    ranked = sorted(sizes, key=lambda size: size["height"] * size["width"])
    words = _size(sizes[0]) if len(sizes) == 1 else f"{len(sizes)} sizes from {_size(ranked[0])} to {_size(ranked[-1])}"
    channels = figures["channels"]
    say(
        console,
        f"{figures['source']}: {figures['train']:,} training and {figures['test']:,} test images in "
        f"{len(figures['class_names'])} classes; {channels} channel{'s' * (channels > 1)}; {words}",
    )
    classes = f", classes = {json.dumps(figures['class_names'])}" if len(figures["class_names"]) <= MOST_CLASSES else ""
    say(console, f"for an experiment between hosts: mean = {figures['mean']}, std = {figures['std']}{classes}")
    if figures["train_by_centre"] is not None:
        counts = ", ".join(f"{centre}: {count:,}" for centre, count in enumerate(figures["train_by_centre"]))
        say(console, f"training images by centre: {counts}")
    division = [f"{key} {figures[key]}" for key in ("alpha", "seed") if figures[key] is not None]
    title, clients = ", ".join([figures["partition"], *division]), figures["clients_by_class"]
    names = [f"client-{number + 1}" for number in range(len(clients))]
    say(console, _weight_line(figures))
    if figures["seed"] is not None and not figures["seed_is_set"]:
        say(
            console,
            f"the split below is that of seed {figures['seed']}: the experiment sets no federation.seed, and so each "
            "run draws a split of its own",
        )
    if len(clients) <= MOST_COLUMNS:
        _print_whole(_class_table(figures, dict(zip(names, clients, strict=True)), title), console)
        return
    _print_whole(_class_table(figures, {}, "classes"), console)
    rows = []
    for name, counts in zip(names, clients, strict=True):
        # Its images, its classes, and the one with most images.
        most, total = max(counts), sum(counts)
        largest = figures["class_names"][counts.index(most)]
        rows.append((name, f"{total:,}", str(sum(map(bool, counts))), largest, f"{most / total:.0%}"))
    _print_whole(table(("client", "images", "classes", "most images of", "share"), rows, title=title), console)


def _weight_line(figures: dict[str, Any]) -> str:
    """What the largest client needs of aggregation.max_weight."""
    needed, given = figures["largest_weight"], figures["max_weight"]
    line = f"largest weight of a client: {needed:,}; aggregation.max_weight "
    if not given:
        return f"{line}is not set, and computed from the split of a run"
    return line + (f"= {given} is enough" if given >= needed else f"= {given} is too small: leave it out, or raise it")


def _class_table(figures: dict[str, Any], clients: dict[str, list[int]], title: str) -> Table:
    """A row for each class: training images, test images, training images of each client."""
    columns = {"train": figures["train_by_class"], "test": figures["test_by_class"], **clients}
    rows = zip(figures["class_names"], *columns.values(), strict=True)
    made = table(
        ("class", *columns), ((name, *(f"{count:,}" for count in counts)) for name, *counts in rows), title=title
    )
    made.add_section()
    made.add_row("all", *(f"{sum(column):,}" for column in columns.values()))
    return made


def _print_whole(table: Table, console: Console) -> None:
    """Print at full width: a terminal wraps a line that is too long, but a figure is never cut short."""
    needed = Measurement.get(console, console.options.update(max_width=UNBOUNDED), table).maximum
    console.width = max(console.width, needed)
    console.print(table)


def _size(size: dict[str, int]) -> str:
    return f"{size['height']} x {size['width']}"
