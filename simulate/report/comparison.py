"""Several runs on one page: what differs in their experiments, their curves, how they ended, what they cost.

Made as the report is, from experiment files and event logs; a run may go on, or have been killed.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path
from statistics import median
from typing import Final

import msgspec

from tacit.parties.runs.directory import RunDirectory, RunDirectoryError
from tacit.parties.runs.experiment import Experiment, holds, keys, literal, load
from tacit.parties.runs.reading import read_state
from tacit.parties.runs.state import RunState
from tacit.simulate.report.figures import compared_curves
from tacit.simulate.report.outputs import ComparedRun, Comparison, KeyDifference
from tacit.simulate.report.page import rendered

MOST_RUNS: Final = 16
"""Lines that a figure has room for."""


def compare(directories: Sequence[Path]) -> Comparison:
    """The figures of these runs, in their order.

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
    return {"runs": runs, "differences": _differences(experiments)}


def comparison_page(comparison: Comparison) -> str:
    """The page of these figures: self-contained, as the report is."""
    runs = comparison["runs"]
    curves = [
        compared_curves(
            {run["run"]: [(at["round"], at[metric]) for at in run["curve"] if at[metric] is not None] for run in runs},
            metric=metric,
        )
        for metric in ("accuracy", "loss")
        if any(at[metric] is not None for run in runs for at in run["curve"])
    ]
    differences = [
        {
            "key": entry["key"],
            "values": ["\N{EN DASH}" if value is None else literal(value) for value in entry["values"]],
        }
        for entry in comparison["differences"]
    ]
    title = f"{len(runs)} runs \N{EN DASH} Tacit comparison"
    return rendered("comparison.html.j2", {"title": title, "runs": runs, "curves": curves, "differences": differences})


def _run(label: str, directory: Path, state: RunState) -> ComparedRun:
    curve = [(round.number, round.result) for round in state.completed if round.result]
    last = curve[-1][1] if curve else None
    server = state.parties.get(state.server or "")
    trained = [client.trained for client in state.clients if client.trained]
    return {
        "run": label,
        "directory": str(directory),
        "completed": len(state.completed),
        "aborted": sum(round.status == "aborted" for round in state.rounds),
        "lost_clients": len({name for round in state.rounds for name in round.drops}),
        "final_accuracy": last.accuracy if last else None,
        "final_balanced_accuracy": last.balanced_accuracy if last else None,
        "final_loss": last.loss if last else None,
        "best_accuracy": max((result.accuracy for _, result in curve if result.accuracy is not None), default=None),
        "wall_seconds": state.wall_seconds,
        "round_seconds": median(round.seconds for round in state.completed) if state.completed else None,
        "payload_bytes": sum((server.sent + server.received).values()) if server else 0,
        "server_computing_seconds": sum(server.work.values()) if server else 0.0,
        "client_training_seconds": median(trained) if trained else None,
        "seed": state.seed.value if state.seed else None,
        "curve": [
            {
                "round": number,
                "accuracy": one.accuracy,
                "balanced_accuracy": one.balanced_accuracy,
                "loss": one.loss,
            }
            for number, one in curve
        ],
    }


def _differences(experiments: Sequence[Experiment]) -> list[KeyDifference]:
    """The keys in which these are not all the same."""
    found: list[KeyDifference] = []
    for key in keys(Experiment):
        if not key.is_section:
            get = attrgetter(key.path)
            values = [msgspec.to_builtins(get(one)) if holds(one, key) else None for one in experiments]
            if any(value != values[0] for value in values):
                found.append({"key": key.path, "values": values})
    return found
