"""A federation on one machine: one process per party, started, watched and ended from here.

The supervisor makes keys and roster, starts the server, and the clients once it listens; it relays what the parties
tell to whoever shows it, and makes the summary from their event logs. It never loads torch.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from tacit.parties.keys import generate
from tacit.protocol.roster import Roster
from tacit.simulate.experiment import Experiment
from tacit.simulate.processes import Exit, Processes
from tacit.simulate.reference import experiment_toml
from tacit.simulate.roles import Role, serve, take_part
from tacit.simulate.run_directory import RunDirectory, RunDirectoryError
from tacit.simulate.summary import summarise, write
from tacit.simulate.verification import verify

SERVER = "server"
GRACE_SECONDS = 5.0
"""How long processes get to end by themselves before they are made to."""

Show = Callable[[str, str, dict[str, Any]], None]
"""Called with party, event and fields for everything that a party tells."""


class SimulationError(Exception):
    """The run could not be held; the message says who failed and why."""


@dataclass(frozen=True)
class Plan:
    """What to run, and where."""

    experiment: Experiment
    run: RunDirectory
    rounds: int
    """Rounds to hold now."""
    completed: int
    """Rounds of the run that are held already."""
    split_seed: int
    device: str = "cpu"
    verify: bool = False
    began: float = field(default_factory=time.monotonic)


def default_directory(name: str) -> Path:
    """runs/<time>-<name>."""
    return Path("runs") / f"{datetime.now():%Y%m%d-%H%M%S}-{name}"


def new_plan(experiment: Experiment, directory: Path, **options: Any) -> Plan:
    """Make the run directory of a new run. RunDirectoryError if it cannot be made."""
    run = RunDirectory.create(directory)
    run.experiment.write_text(experiment_toml(experiment), encoding="utf-8")
    seed = experiment.federation.seed
    # A seed for the split alone reveals nothing that a member does not know; 63 bits, as torch takes them.
    split_seed = seed if seed is not None else secrets.randbits(63)
    return Plan(experiment, run, experiment.federation.rounds, 0, split_seed, **options)


def resumed_plan(experiment: Experiment, run: RunDirectory, **options: Any) -> Plan:
    """Continue a run until it has the rounds of the experiment. RunDirectoryError if it has them, or cannot be read."""
    try:
        with safe_open(run.model, framework="np") as file:
            metadata = file.metadata() or {}
        completed, split_seed = int(metadata["round"]), int(metadata["split_seed"])
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise RunDirectoryError(f"{run.model} is no model of a run ({error!r}): restore it, or start anew") from None
    rounds = experiment.federation.rounds
    if completed >= rounds:
        raise RunDirectoryError(f"{run.path} has its {rounds} rounds: ask for more with --rounds {rounds + 1} or above")
    return Plan(experiment, run, rounds - completed, completed, split_seed, **options)


async def simulate(plan: Plan, show: Show) -> dict[str, Any]:
    """Hold the rounds and return the summary, which is written too.

    SimulationError if the server cannot go on; VerificationError if --verify finds a wrong sum.
    """
    names = [SERVER, *(f"client-{number + 1}" for number in range(plan.experiment.federation.clients))]
    keys = {name: generate(name) for name in names}
    roster = Roster(members=tuple(own.member("server" if name == SERVER else "client") for name, own in keys.items()))
    roles = {
        name: Role(
            experiment=plan.experiment,
            keys=keys[name],
            roster=roster,
            directory=plan.run.path,
            device=plan.device,
            verify=plan.verify,
            split_seed=plan.split_seed,
        )
        for name in names
    }
    async with Processes(plan.run.logs, grace_seconds=GRACE_SECONDS) as processes:
        await processes.start(SERVER, serve, role=roles[SERVER], rounds=plan.rounds, completed=plan.completed)
        ended = await _follow(processes, roles, show)
    summary = summarise(plan.run, plan.experiment, wall_seconds=time.monotonic() - plan.began)
    summary["ended"] = ended
    if plan.verify:
        summary["verified"] = verify(plan.run, summary["aggregation"]["ring_bits"])
    write(summary, plan.run.summary)
    return summary


async def _follow(processes: Processes, roles: dict[str, Role], show: Show) -> str:
    """Start the clients when the server listens, and wait for everybody; returns how the server says it ended."""
    last: dict[str, dict[str, Any]] = {}
    ended = ""
    async for name, message in processes.messages():
        if isinstance(message, Exit):
            reason, failed = _ending(last.get(name, {}), message)
            if name != SERVER:
                show(name, "failed" if failed else "exited", {"reason": reason})
            elif failed:
                raise SimulationError(f"{name}: {reason}")
            else:
                ended = reason
        elif "event" in message:
            event = message.pop("event")
            show(name, event, message)
            if event == "listening":
                for client, role in roles.items():
                    if client != SERVER:
                        await processes.start(client, take_part, role=role, address=message["address"])
        else:
            last[name] = message
    return ended


def _ending(last: dict[str, Any], ended: Exit) -> tuple[str, bool]:
    """How a process ended, in one sentence, and whether that is a failure of its own."""
    if "failed" in last:
        return f"{last['failed']} (details in {os.path.relpath(last['log'])})", True
    result = last.get("finished")
    if result is None:
        return last.get("stopped", f"its process ended unexpectedly: {ended}"), "stopped" not in last
    if "error" in result:
        return str(result["error"]), True
    return str(result["detail"]), False
