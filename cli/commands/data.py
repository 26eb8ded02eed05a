"""`tacit data`: inspect a data set, and its division in a simulation, before training.

Slow modules are imported inside the command, so that --help answers at once.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from tacit.cli.output import WRONG_INPUT, complaining, json_option, keep_json, screen, show
from tacit.cli.progress import Progress
from tacit.parties.runs.results import Column, Result, Table, percent, thousands

if TYPE_CHECKING:
    from tacit.models.datasets.samples import Source
    from tacit.parties.runs.experiment import Experiment

MOST_COLUMNS: Final = 5
"""Most clients with their own column on the screen; the JSON file always has the whole table."""
MOST_CLASSES: Final = 20
"""Most classes that are listed in one line."""
app = typer.Typer(no_args_is_help=True, help="Inspect data sets.")


class ImageSize(msgspec.Struct, frozen=True, kw_only=True):
    """Number of images of one size."""

    height: int
    width: int
    images: int

    def __str__(self) -> str:
        return f"{self.height} x {self.width}"


class DataDescription(Result, frozen=True, kw_only=True, tag="tacit.data.1"):
    """A data set, and its division among clients."""

    source: str
    channels: int
    train: int
    test: int
    image_sizes: list[ImageSize]
    """Sizes, the most frequent first."""
    class_names: list[str]
    mean: list[float]
    std: list[float]
    train_by_class: list[int]
    test_by_class: list[int]
    train_by_centre: list[int] | None
    partition: str
    alpha: float | None
    seed: int | None
    clients_by_class: list[list[int]]
    seed_is_set: bool
    """Whether the experiment sets the seed of the split."""
    largest_weight: int
    """Least aggregation.max_weight for the largest client."""
    max_weight: int
    """aggregation.max_weight of the experiment; 0: computed."""
    notes: tuple[str, ...] = ()
    """Lines on skipped files, and on likely mistakes."""

    def view(self) -> Iterator[Table | str]:
        """Facts, and images by class and client."""
        sizes = sorted(self.image_sizes, key=lambda size: size.height * size.width)
        sized = str(sizes[0]) if len(sizes) == 1 else f"{len(sizes)} sizes from {sizes[0]} to {sizes[-1]}"
        yield (
            f"{self.source}: {self.train:,} training and {self.test:,} test images in {len(self.class_names)} classes; "
            f"{self.channels} channel{'s' * (self.channels > 1)}; {sized}"
        )
        classes = f", classes = {json.dumps(self.class_names)}" if len(self.class_names) <= MOST_CLASSES else ""
        yield from self.notes
        yield f"for an experiment between hosts: mean = {self.mean}, std = {self.std}{classes}"
        if self.train_by_centre is not None:
            counts = ", ".join(f"{centre}: {images:,}" for centre, images in enumerate(self.train_by_centre))
            yield f"training images by centre: {counts}"
        if not self.clients_by_class:
            yield self._classes({}, "without training images there is nothing to divide")
            return
        yield f"largest weight of a client: {self.largest_weight:,}; aggregation.max_weight {self._fits()}"
        if self.seed is not None and not self.seed_is_set:
            yield (
                f"the split below is that of seed {self.seed}: the experiment sets no federation.seed, and so each run "
                "draws a split of its own"
            )
        division = [f"{key} {getattr(self, key)}" for key in ("alpha", "seed") if getattr(self, key) is not None]
        title = ", ".join([self.partition, *division])
        clients = {f"client-{number}": images for number, images in enumerate(self.clients_by_class, start=1)}
        if len(clients) <= MOST_COLUMNS:
            yield self._classes(clients, title)
            return
        yield self._classes({}, "classes")
        rows = []
        for name, counts_by_class in clients.items():
            most, total = max(counts_by_class), sum(counts_by_class)
            largest = self.class_names[counts_by_class.index(most)]
            rows.append((name, total, sum(map(bool, counts_by_class)), largest, most / total))
        columns = (
            Column("client"),
            Column("images", thousands),
            Column("classes", thousands),
            Column("most images of"),
            Column("share", percent()),
        )
        yield Table(columns=columns, rows=rows, title=title)

    def _fits(self) -> str:
        if not self.max_weight:
            return "is not set, and computed from the split of a run"
        enough = self.max_weight >= self.largest_weight
        return f"= {self.max_weight} is {'enough' if enough else 'too small: leave it out, or raise it'}"

    def _classes(self, clients: dict[str, list[int]], title: str) -> Table:
        """A row for each class, and for all: training and test images, and training images of each client."""
        columns = {"train": self.train_by_class, "test": self.test_by_class, **clients}
        rows = [*zip(self.class_names, *columns.values(), strict=True), ("all", *map(sum, columns.values()))]
        return Table(columns=[Column("class"), *(Column(name, thousands) for name in columns)], rows=rows, title=title)


@app.command()
def inspect(
    experiment: Annotated[
        Path | None, typer.Argument(metavar="EXPERIMENT.toml", help="Experiment file; without one, the defaults.")
    ] = None,
    source: Annotated[str | None, typer.Option(help="Data set, as data.source of an experiment.")] = None,
    directory: Annotated[Path | None, typer.Option(help="Where its files are.")] = None,
    clients: Annotated[int | None, typer.Option(help="Number of clients.")] = None,
    partition: Annotated[str | None, typer.Option(help="Split: dirichlet, iid or centre.")] = None,
    alpha: Annotated[float | None, typer.Option(help="Dirichlet concentration.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the division; that of the experiment, else 0.")] = None,
    json_file: Annotated[Path | None, json_option("Write the numbers to this file too.")] = None,
) -> None:
    """Show the classes and images of a data set, and the images of every client.

    Downloads nothing and checks every file.

    Exit status: 0 done; 1 the file of --json cannot be written; 2 wrong input.
    """
    given = {
        "source": source,
        "directory": None if directory is None else str(directory),
        "partition": partition,
        "alpha": alpha,
    }
    with complaining(((ValueError, OSError), WRONG_INPUT)), Progress(screen(), "importing") as progress:
        found = _description(_chosen(experiment, given, clients, seed), progress)
    keep_json(json_file, found)
    show(screen(), found)


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
    """Write the images of each party of a simulation into files, to rehearse between hosts.

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
    """The experiment with the command line's overrides. Raises ExperimentError."""
    from tacit.models.configuration import DataConfiguration
    from tacit.parties.runs.experiment import Experiment, ExperimentError, load, refusal, with_overrides

    base = load(path) if path is not None else Experiment()
    section = {**msgspec.to_builtins(base.data), **{key: value for key, value in given.items() if value is not None}}
    try:
        chosen = msgspec.structs.replace(base, data=msgspec.convert(section, DataConfiguration))
    except msgspec.ValidationError as error:
        raise ExperimentError(f"command line: {refusal(error, section, DataConfiguration)}") from error
    # Nothing is run, so that no policy matters.
    more = {} if clients is None else {"policy": {"smallest_cohort": min(clients, base.policy.smallest_cohort)}}
    return with_overrides(chosen, clients=clients, seed=seed, more=more, where="command line")


def _description(experiment: Experiment, progress: Progress) -> DataDescription:
    """Describe a data set by counts only, without any image. Raises ValueError or OSError, naming the file."""
    import numpy as np

    from tacit.models.data import read, statistics
    from tacit.simulate.federation.hosting import largest_weight, shares

    progress.update(f"reading {experiment.data.source}")
    source = read(experiment.data)
    sizes = _sizes(source, progress)
    seed = experiment.federation.seed or 0
    progress.update("mean and standard deviation of the pixels")
    typical = source.train if len(source.train.images) else source.test
    mean, std = statistics(typical.images, image_size=experiment.model.image_size)
    labels, centres, classes = source.train.labels, source.train.centres, len(source.class_names)
    parts = shares(experiment, source, seed) if typical is source.train else []
    return DataDescription(
        source=experiment.data.source,
        channels=typical.images.channels,
        train=len(labels),
        test=len(source.test.labels),
        image_sizes=[
            ImageSize(height=height, width=width, images=images)
            for (height, width), images in sorted(sizes.items(), key=lambda entry: (-entry[1], entry[0]))
        ],
        class_names=list(source.class_names),
        mean=[round(value, 4) for value in mean],
        std=[round(value, 4) for value in std],
        train_by_class=np.bincount(labels, minlength=classes).tolist(),
        test_by_class=np.bincount(source.test.labels, minlength=classes).tolist(),
        train_by_centre=None if centres is None else np.bincount(centres).tolist(),
        partition=experiment.data.partition,
        alpha=experiment.data.alpha if experiment.data.partition == "dirichlet" else None,
        seed=seed if experiment.data.partition != "centre" else None,
        clients_by_class=[np.bincount(labels[part], minlength=classes).tolist() for part in parts],
        seed_is_set=experiment.federation.seed is not None,
        max_weight=experiment.aggregation.max_weight,
        largest_weight=largest_weight(experiment, parts) if parts else 0,
        notes=source.notes,
    )


def _sizes(source: Source, progress: Progress) -> Counter[tuple[int, int]]:
    sizes: Counter[tuple[int, int]] = Counter()
    for images, what in ((source.train.images, "training"), (source.test.images, "test")):
        for number, size in enumerate(images.sizes()):
            progress.update(f"sizes of {what} images: {number:,} of {len(images):,}")
            sizes[size] += 1
    return sizes


PANEL: Final = "On this machine"
COMMANDS: Final = {"data": app}
RESULTS: Final = {
    "data": ("data inspect", "tacit.cli.commands.data:DataDescription"),
}
