"""Several runs on one page: what differs in their experiments, their curves, how they ended, what they cost.

Made as the report is, from experiment files and event logs; a run may go on, or have been killed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from statistics import median
from typing import Any, Final

import msgspec

from tacit.parties.runs.directory import RunDirectory, RunDirectoryError
from tacit.parties.runs.experiment import Experiment, holds, keys, literal, load
from tacit.parties.runs.reading import read_state
from tacit.parties.runs.results import Column, Result, Table, byte_count, decimals, duration, plain, prose, thousands
from tacit.parties.runs.state import RunState

MOST_RUNS: Final = 16
"""Lines that a figure has room for."""


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


class KeyDifference(msgspec.Struct, frozen=True, kw_only=True):
    """A key of the experiment with the value in each run; null where a run has no such key."""

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
"""By field of a run."""
_COSTS: Final = {
    "run": Column("Run"),
    "wall_seconds": Column("Wall time", duration),
    "round_seconds": Column("Round", duration),
    "payload_bytes": Column("Payload", byte_count),
    "client_training_seconds": Column("Training", duration),
    "server_computing_seconds": Column("Protocol", duration),
}
"""By field of a run."""


class Comparison(Result, frozen=True, kw_only=True, tag="tacit.comparison.1"):
    """Several runs, and what differs in their experiments."""

    runs: list[ComparedRun]
    differences: list[KeyDifference]

    def view(self) -> Iterator[Table | str]:
        """Differing keys, and the results and costs of all runs."""
        yield self.difference_table if self.differences else "the experiments are the same"
        yield self.result_table
        yield self.cost_table

    @property
    def difference_table(self) -> Table:
        """Differing keys with the value in each run, as an experiment file has it."""
        rows = [
            (one.key, *("not there" if value is None else literal(value) for value in one.values))
            for one in self.differences
        ]
        return Table(columns=[Column("Key"), *(Column(run.run, prose) for run in self.runs)], rows=rows)

    @property
    def result_table(self) -> Table:
        """What each run learned."""
        return self._table(_RESULTS, "Rounds completed, and the model after the last")

    @property
    def cost_table(self) -> Table:
        """Time and payload of each run."""
        return self._table(_COSTS, "Medians of rounds and of client training; server's payload and protocol")

    def _table(self, columns: dict[str, Column], title: str) -> Table:
        rows = [[getattr(run, field) for field in columns] for run in self.runs]
        return Table(columns=list(columns.values()), rows=rows, title=title)


def compare(directories: Sequence[Path]) -> Comparison:
    """Compare these runs, in their order.

    RunDirectoryError for a directory that is no run, twice the same, or too many; ExperimentError, EventLogError.
    """
    if len(directories) > MOST_RUNS:
        raise RunDirectoryError(f"{len(directories)} runs: at most {MOST_RUNS} fit onto one page; name fewer")
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
    return Comparison(runs=runs, differences=_differences(experiments))


def comparison_page(comparison: Comparison) -> str:
    """The page of a comparison: self-contained, as the report is."""
    # Imported here: what draws takes half a second to load.
    from tacit.simulate.report.figures import compared_curves
    from tacit.simulate.report.page import rendered

    def points(run: ComparedRun, metric: str) -> list[tuple[int, float | None]]:
        return [(one.round, getattr(one, metric)) for one in run.curve if getattr(one, metric) is not None]

    drawn = {metric: {run.run: points(run, metric) for run in comparison.runs} for metric in ("accuracy", "loss")}
    curves = [compared_curves(runs, metric=metric) for metric, runs in drawn.items() if any(runs.values())]
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


def _differences(experiments: Sequence[Experiment]) -> list[KeyDifference]:
    """The keys in which these are not all the same."""
    found = []
    for key in keys(Experiment):
        if not key.is_section:
            get = attrgetter(key.path)
            values = [msgspec.to_builtins(get(one)) if holds(one, key) else None for one in experiments]
            if any(value != values[0] for value in values):
                found.append(KeyDifference(key=key.path, values=values))
    return found
