"""`tacit simulate`: from arguments to a plan, from events to lines, from the outcome to an exit status."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from tacit.cli.outcome import ABORTED, FAILED, INTERRUPTED, SERVER_LOST, WRONG_INPUT, complain
from tacit.cli.screen import Screen
from tacit.parties.session.event_log import EventLogError
from tacit.simulate.federation.faults import FaultError, Faults, read_faults
from tacit.simulate.federation.processes import ProcessError
from tacit.simulate.federation.run import (
    Plan,
    default_directory,
    kept,
    new_plan,
    party_names,
    resumed_plan,
    simulate,
)
from tacit.simulate.federation.supervision import InputError, ServerLostError, SimulationError
from tacit.simulate.federation.verification import VerificationError
from tacit.simulate.runs.directory import RunDirectory, RunDirectoryError, write_json
from tacit.simulate.runs.experiment import Experiment, ExperimentError, load, with_overrides

Result = TypeVar("Result")


class UsageError(Exception):
    """Arguments that do not go together."""


def run_simulation(
    *,
    experiment: Path | None,
    clients: int | None,
    rounds: int | None,
    seed: int | None,
    device: str,
    out: Path | None,
    json_file: Path | None,
    verify: bool,
    resume: Path | None,
    drop: Sequence[str],
    stall: Sequence[str],
    restart: Sequence[str],
    slow: Sequence[str],
    quiet: bool,
    began: float,
) -> int:
    """Run it; returns the exit status."""
    console, errors = Console(highlight=False, quiet=quiet), Console(stderr=True, highlight=False)

    def faults(chosen: Experiment) -> Faults:
        parties = party_names(chosen.federation.clients)
        return read_faults(drop=drop, stall=stall, restart=restart, slow=slow, parties=parties)

    try:
        options = {"device": device, "verify": verify, "began": began}
        if device not in ("cpu", "cuda"):
            raise UsageError(f"--device {device}: choose cpu or cuda")
        if resume is not None:
            given = {"an experiment file": experiment, "--clients": clients, "--seed": seed, "--out": out}
            if surplus := [name for name, value in given.items() if value is not None]:
                raise UsageError(f"--resume continues a run as it is: leave out {', '.join(surplus)}")
            run = RunDirectory.open(resume)
            chosen = with_overrides(load(run.experiment), rounds=rounds, where="--rounds")
            plan = resumed_plan(chosen, run, faults=faults(chosen), **options)
        else:
            base = load(experiment) if experiment is not None else Experiment()
            chosen = with_overrides(base, clients=clients, rounds=rounds, seed=seed, where="command line")
            plan = new_plan(chosen, out or default_directory(chosen.name), faults=faults(chosen), **options)
    except (ExperimentError, RunDirectoryError, UsageError, FaultError) as error:
        return complain(errors, error, WRONG_INPUT)
    except OSError as error:
        return complain(errors, error, FAILED)
    try:
        screen = Screen(console, plan)
        summary = asyncio.run(interruptible(_shown(plan, screen)))
        if json_file is not None:
            write_json(summary, json_file)
    except KeyboardInterrupt:
        if remedy := kept(plan):
            return complain(errors, f"interrupted; {remedy}", INTERRUPTED)
        plan.run.discard()
        return complain(errors, "interrupted before the first round; nothing is kept", INTERRUPTED)
    except InputError as error:
        if resume is None:
            plan.run.discard()
        return complain(errors, error, WRONG_INPUT)
    except ServerLostError as error:
        return complain(errors, f"{error}; {kept(plan) or 'no model is kept'}", SERVER_LOST)
    except (SimulationError, VerificationError, ProcessError, EventLogError, OSError) as error:
        return complain(errors, error, FAILED)
    screen.finish(summary)
    statuses = [entry["status"] for entry in summary["rounds"]]
    return 0 if statuses.count("completed") == plan.experiment.federation.rounds else ABORTED


async def _shown(plan: Plan, screen: Screen) -> dict[str, Any]:
    # In here: whoever interrupts what the screen has announced finds a loop that runs.
    with screen:
        return await simulate(plan, screen.show)


async def interruptible(work: Coroutine[Any, Any, Result]) -> Result:
    """Await the work; SIGTERM ends it as Ctrl-C does."""
    task = asyncio.current_task()
    if task is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        return await work
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
