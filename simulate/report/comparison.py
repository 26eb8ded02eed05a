"""Several runs on one page: differences of their experiments, curves, ends and costs.

Made like the report, from experiment files and event logs; a run may be running, or have been killed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from statistics import fmean, median, stdev
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tacit.parties.runs.directory import RunDirectory, RunDirectoryError, writing
from tacit.parties.runs.experiment import Experiment, holds, keys, literal, load
from tacit.parties.runs.reading import read_state
from tacit.parties.runs.results import (
    Column,
    Result,
    Table,
    byte_count,
    decimals,
    duration,
    plain,
    prose,
    thousands,
    write_csv,
)
from tacit.parties.runs.state import RunState

if TYPE_CHECKING:
    from tacit.simulate.report.figures import Points

MOST_RUNS: Final = 16
"""Lines that a figure has room for."""
_CURVE: Final = ("accuracy", "balanced_accuracy", "loss")


class ComparedRound(msgspec.Struct, frozen=True, kw_only=True):
    """A completed round of a run, on the server's test images."""

    round: int
    accuracy: float | None
    balanced_accuracy: float | None
    loss: float | None


class ComparedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run beside others; counts and costs are of all its rounds."""

    run: str
    directory: str
    completed: int
    aborted: int
    lost_clients: int
    final_accuracy: float | None
    final_balanced_accuracy: float | None
    final_loss: float | None
    best_accuracy: float | None
    wall_seconds: float
    round_seconds: float | None
    """Median of the completed rounds."""
    payload_bytes: int
    """Through the server."""
    server_computing_seconds: float
    """Seconds of computing the protocol."""
    client_training_seconds: float | None
    """Median of the clients."""
    seed: int | None
    curve: list[ComparedRound]


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """A quantity over runs that differ only in the seed."""

    mean: float
    deviation: float | None
    """Standard deviation of a sample; None for one run."""


class ComparedGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Runs of one experiment, which differ only in name and seed."""

    name: str
    runs: list[str]
    final_accuracy: Spread | None
    final_balanced_accuracy: Spread | None
    best_accuracy: Spread | None
    final_loss: Spread | None


class KeyDifference(msgspec.Struct, frozen=True, kw_only=True):
    """A key of the experiment with its value in each run; null in runs without such a key."""

    key: str
    values: list[Any]


_RESULTS: Final = {
    "run": Column("Run"),
    "final_accuracy": Column("Final accuracy", decimals(3)),
    "final_balanced_accuracy": Column("Balanced accuracy", decimals(3)),
    "best_accuracy": Column("Best accuracy", decimals(3), minor=3),
    "final_loss": Column("Final loss", decimals(3)),
    "completed": Column("Rounds", thousands),
    "aborted": Column("Aborted", thousands),
    "lost_clients": Column("Clients lost", thousands, minor=1),
    "seed": Column("Seed", plain, minor=2),
}
_COSTS: Final = {
    "run": Column("Run"),
    "wall_seconds": Column("Wall time", duration),
    "round_seconds": Column("Round", duration),
    "payload_bytes": Column("Payload", byte_count),
    "client_training_seconds": Column("Training", duration),
    "server_computing_seconds": Column("Protocol", duration),
}


def _spread(found: Spread) -> str:
    return f"{found.mean:.3f}" + ("" if found.deviation is None else f" ± {found.deviation:.3f}")


_GROUPS: Final = {
    "name": Column("Runs"),
    "final_accuracy": Column("Final accuracy", _spread),
    "final_balanced_accuracy": Column("Balanced accuracy", _spread),
    "best_accuracy": Column("Best accuracy", _spread, minor=1),
    "final_loss": Column("Final loss", _spread),
}


class Comparison(Result, frozen=True, kw_only=True, tag="tacit.comparison.1"):
    """Several runs, and the differences of their experiments."""

    runs: list[ComparedRun]
    differences: list[KeyDifference]
    """Without the seed."""
    groups: list[ComparedGroup]

    def view(self) -> Iterator[Table | str]:
        yield self.difference_table if self.differences else f"the experiments are the same{self._seeds}"
        if self.repeated:
            yield self.group_table
        yield self.result_table
        yield self.cost_table

    @property
    def difference_table(self) -> Table:
        rows = [
            (one.key, *("not there" if value is None else literal(value) for value in one.values))
            for one in self.differences
        ]
        return Table(columns=[Column("Key"), *(Column(run.run, prose) for run in self.runs)], rows=rows)

    @property
    def repeated(self) -> bool:
        return len(self.groups) < len(self.runs)

    @property
    def _seeds(self) -> str:
        return " but for their seeds" if len({run.seed for run in self.runs}) > 1 else ""

    @property
    def group_table(self) -> Table:
        return self._table(_GROUPS, "Mean and standard deviation over runs of one experiment", self.groups)

    def lines(self, metric: str) -> dict[str, list[Points]]:
        """Return the runs' curves by the name of their group; empty for runs without the metric."""
        curves: dict[str, Points] = {
            run.run: [(one.round, getattr(one, metric)) for one in run.curve] for run in self.runs
        }
        found = {group.name: [curves[name] for name in group.runs] for group in self.groups}
        known = any(value is not None for points in curves.values() for _, value in points)
        return found if known else {}

    @property
    def curve_table(self) -> Table:
        named = {name: group.name for group in self.groups for name in group.runs}
        columns = [Column(name) for name in ("group", "run", "seed", "round", *_CURVE)]
        rows = [
            (named[run.run], run.run, run.seed, one.round, *(getattr(one, key) for key in _CURVE))
            for run in self.runs
            for one in run.curve
        ]
        return Table(columns=columns, rows=rows)

    @property
    def result_table(self) -> Table:
        return self._table(_RESULTS, "Rounds completed, and the model after the last", self.runs)

    @property
    def cost_table(self) -> Table:
        return self._table(_COSTS, "Medians of rounds and of client training; server's payload and protocol", self.runs)

    def _table(self, columns: dict[str, Column], title: str, found: Sequence[ComparedRun | ComparedGroup]) -> Table:
        rows = [[getattr(one, field) for field in columns] for one in found]
        return Table(columns=list(columns.values()), rows=rows, title=title)


def compare(directories: Sequence[Path]) -> Comparison:
    """Compare these runs, in their order.

    RunDirectoryError for a directory that is no run, duplicates, or too many; ExperimentError, EventLogError.
    """
    resolved = [directory.resolve() for directory in directories]
    for number, directory in enumerate(directories):
        RunDirectory.of_a_run(directory)
        if resolved[number] in resolved[:number]:
            raise RunDirectoryError(f"{directory} is named twice; name every run once")
    experiments = [load(RunDirectory(directory).experiment, numbered=False) for directory in directories]
    names = [path.name for path in resolved]
    labels = [str(given) if names.count(name) > 1 else name for given, name in zip(directories, names, strict=True)]
    runs = [
        _run(label, directory, read_state(directory / "events"))
        for label, directory in zip(labels, directories, strict=True)
    ]
    groups = _groups(runs, experiments, resolved)
    if len(groups) > MOST_RUNS:
        raise RunDirectoryError(f"{len(groups)} experiments: at most {MOST_RUNS} fit onto one page; name fewer")
    return Comparison(runs=runs, differences=_differences(experiments), groups=groups)


def export(comparison: Comparison, folder: Path) -> list[Path]:
    """Write curves as SVG and PNG, and rounds and results as CSV, into a folder; return the files. OSError."""
    from tacit.simulate.report.figures import save_compared

    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / "rounds.csv", folder / "results.csv"]
    for table, path in zip((comparison.curve_table, comparison.result_table), files, strict=True):
        with writing(path):
            write_csv(table, path)
    for metric in ("accuracy", "loss"):
        if lines := comparison.lines(metric):
            drawn = [folder / f"{metric}{suffix}" for suffix in (".svg", ".png")]
            save_compared(lines, drawn, metric=metric)
            files += drawn
    return files


def comparison_page(comparison: Comparison) -> str:
    """Return the self-contained page of a comparison."""
    # Imported here: drawing takes half a second to load.
    from tacit.simulate.report.figures import compared_curves
    from tacit.simulate.report.page import rendered

    drawn = {metric: comparison.lines(metric) for metric in ("accuracy", "loss")}
    curves = [compared_curves(lines, metric=metric) for metric, lines in drawn.items() if lines]
    title = f"{len(comparison.runs)} runs \N{EN DASH} Tacit comparison"
    return rendered("comparison.html.j2", {"title": title, "comparison": comparison, "curves": curves})


def _run(label: str, directory: Path, state: RunState) -> ComparedRun:
    completed, server = state.completed, state.parties.get(state.server or "")
    curve = [
        ComparedRound(
            round=done.number,
            accuracy=done.result.accuracy,
            balanced_accuracy=done.result.balanced_accuracy,
            loss=done.result.loss,
        )
        for done in completed
        if done.result
    ]
    last = curve[-1] if curve else None
    trained = [client.trained for client in state.clients if client.trained]
    return ComparedRun(
        run=label,
        directory=str(directory),
        completed=len(completed),
        aborted=sum(round.status == "aborted" for round in state.rounds),
        lost_clients=len({name for round in state.rounds for name in round.drops}),
        final_accuracy=last.accuracy if last else None,
        final_balanced_accuracy=last.balanced_accuracy if last else None,
        final_loss=last.loss if last else None,
        best_accuracy=max((one.accuracy for one in curve if one.accuracy is not None), default=None),
        wall_seconds=state.wall_seconds,
        round_seconds=median(round.seconds for round in completed) if completed else None,
        payload_bytes=sum((server.sent + server.received).values()) if server else 0,
        server_computing_seconds=sum(server.work.values()) if server else 0.0,
        client_training_seconds=median(trained) if trained else None,
        seed=state.seed.value if state.seed else None,
        curve=curve,
    )


def _groups(
    runs: Sequence[ComparedRun], experiments: Sequence[Experiment], places: Sequence[Path]
) -> list[ComparedGroup]:
    """Group runs that differ only in name and seed, named by their common folder if they have one."""
    found: dict[bytes, list[int]] = {}
    for number, one in enumerate(experiments):
        federation = msgspec.structs.replace(one.federation, seed=None)
        same = msgspec.json.encode(msgspec.structs.replace(one, name="-", federation=federation))
        found.setdefault(same, []).append(number)
    groups = []
    for members in found.values():
        names = [runs[number].run for number in members]
        folders = {places[number].parent for number in members}
        others = {places[number].parent for number in range(len(runs)) if number not in members}
        name = names[0]
        if len(names) > 1:
            name = (
                folders.pop().name
                if len(folders) == 1 and not folders & others
                else f"{name} and {len(names) - 1} more"
            )
        spreads = {key: _over([getattr(runs[number], key) for number in members]) for key in list(_GROUPS)[1:]}
        groups.append(ComparedGroup(name=name, runs=names, **spreads))
    names = [group.name for group in groups]
    return [
        group
        if names.count(group.name) == 1
        else msgspec.structs.replace(group, name=f"{group.name} ({group.runs[0]})")
        for group in groups
    ]


def _over(values: Sequence[float | None]) -> Spread | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    return Spread(mean=fmean(known), deviation=stdev(known) if len(known) > 1 else None)


def _differences(experiments: Sequence[Experiment]) -> list[KeyDifference]:
    """Return the differing keys, without the seed. A key that several schemes have is one."""
    found: dict[str, list[Any]] = {}
    for key in keys(Experiment):
        if not key.is_section and key.path != "federation.seed":
            get, values = attrgetter(key.path), found.setdefault(key.path, [None] * len(experiments))
            for number, one in enumerate(experiments):
                if holds(one, key):
                    values[number] = msgspec.to_builtins(get(one))
    return [
        KeyDifference(key=path, values=values)
        for path, values in found.items()
        if any(value != values[0] for value in values)
    ]
