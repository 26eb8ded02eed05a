"""`tacit simulate`: from arguments to a plan, from events to lines, from the outcome to an exit status."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tacit.simulate.experiment import Experiment, ExperimentError, load, with_overrides
from tacit.simulate.processes import ProcessError
from tacit.simulate.run import Plan, SimulationError, default_directory, new_plan, resumed_plan, simulate
from tacit.simulate.run_directory import RunDirectory, RunDirectoryError
from tacit.simulate.summary import write
from tacit.simulate.verification import VerificationError

FAILED, WRONG_INPUT, ABORTED, INTERRUPTED = 1, 2, 3, 130


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
    began: float,
) -> int:
    """Run it; returns the exit status."""
    console, errors = Console(highlight=False), Console(stderr=True, highlight=False)
    try:
        options = {"device": device, "verify": verify, "began": began}
        if device not in ("cpu", "cuda"):
            raise UsageError(f"--device {device}: choose cpu or cuda")
        if resume is not None:
            given = {"an experiment file": experiment, "--clients": clients, "--seed": seed, "--out": out}
            if surplus := [name for name, value in given.items() if value is not None]:
                raise UsageError(f"--resume continues a run as it is: leave out {', '.join(surplus)}")
            run = RunDirectory.open(resume)
            plan = resumed_plan(with_overrides(load(run.experiment), rounds=rounds, where="--rounds"), run, **options)
        else:
            base = load(experiment) if experiment is not None else Experiment()
            chosen = with_overrides(base, clients=clients, rounds=rounds, seed=seed, where="command line")
            plan = new_plan(chosen, out or default_directory(chosen.name), **options)
    except (ExperimentError, RunDirectoryError, UsageError) as error:
        errors.print(f"tacit: {error}", style="red", markup=False, soft_wrap=True)
        return WRONG_INPUT
    screen = Screen(console, plan)
    try:
        with console.status("starting the processes") as status:
            screen.status = status
            summary = asyncio.run(_interruptible(plan, screen))
        if json_file is not None:
            write(summary, json_file)
    except KeyboardInterrupt:
        errors.print(f"interrupted; finished rounds are kept: tacit simulate --resume {plan.run.path}")
        return INTERRUPTED
    except (SimulationError, VerificationError, ProcessError, OSError) as error:
        errors.print(f"tacit: {error}", style="red", markup=False, soft_wrap=True)
        return FAILED
    screen.finish(summary)
    held = [entry["status"] for entry in summary["rounds"]]
    return 0 if held.count("completed") == plan.experiment.federation.rounds else ABORTED


async def _interruptible(plan: Plan, screen: Screen) -> dict[str, Any]:
    """SIGTERM ends the run as Ctrl-C does."""
    task = asyncio.current_task()
    if task is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        return await simulate(plan, screen.show)
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


class Screen:
    """The run as lines on a terminal, with one line that follows the phase."""

    def __init__(self, console: Console, plan: Plan) -> None:
        self._console = console
        self._plan = plan
        self._bytes = 0
        self._round = ""
        self.status: Any = None

    def show(self, party: str, event: str, fields: dict[str, Any]) -> None:
        """One event of a party."""
        total = self._plan.experiment.federation.rounds
        if event == "traffic":
            self._bytes += fields["sent"]
        elif event == "listening":
            self._console.print(f"{party} listens at {fields['address']}; run directory {self._plan.run.path}")
        elif event == "configuration":
            self._console.print(
                f"{fields['parameters']:,} parameters, vectors of {fields['vector_bytes']:,} bytes in a "
                f"{fields['ring_bits']}-bit ring, threshold {fields['threshold']} of "
                f"{self._plan.experiment.federation.clients}, {self._plan.experiment.aggregation.mode} mode"
            )
        elif event == "opened":
            self.status.update(f"{self._round}: {fields['phase'].lower().replace('_', ' ')}")
        elif event == "round":
            self._round = f"round {fields['round']} of {total}"
            self.status.update(f"{self._round}: train")
        elif event == "round-done":
            self._console.print(_round_line(fields, total, self._bytes))
            self._bytes = 0
        elif event in ("dropped", "refused", "stranger", "complaint") and party == "server":
            details = ", ".join(f"{key} {value}" for key, value in fields.items() if value)
            self._console.print(f"  {event}: {details}", style="yellow", markup=False)
        elif event == "failed":
            self._console.print(f"  {party}: {fields['reason']}", style="red", markup=False)

    def finish(self, summary: dict[str, Any]) -> None:
        """The figures of the whole run."""
        table = Table(title=f"{summary['name']}: {summary['ended']}")
        for heading in ("party", "sent", "received", "training", "protocol"):
            table.add_column(heading, justify="left" if heading == "party" else "right")
        for name, party in summary["parties"].items():
            phases = party["phases"]
            sent = sum(phase["bytes_sent"] for phase in phases.values())
            received = sum(phase["bytes_received"] for phase in phases.values())
            training = phases.get("TRAIN", {}).get("seconds", 0.0)
            protocol = sum(
                phase["seconds"] for key, phase in phases.items() if key not in ("TRAIN", "ADVERTISE_KEYS", "SESSION")
            )
            table.add_row(name, _megabytes(sent), _megabytes(received), f"{training:.1f} s", f"{protocol:.2f} s")
        self._console.print(table)
        for entry in summary.get("verified", ()):
            self._console.print(
                f"round {entry['round']}: ring sum exact over {entry['clients']} clients; float sum off by at most "
                f"{entry['largest_error']:.3g}, allowed {entry['bound']:.3g}"
            )
        accuracy = summary["final_accuracy"]
        self._console.print(
            f"test accuracy {'unknown' if accuracy is None else f'{accuracy:.3f}'} after "
            f"{summary['wall_seconds']:.1f} s; "
            f"everything is in {self._plan.run.path}"
        )


def _round_line(fields: dict[str, Any], total: int, moved: int) -> str:
    line = f"round {fields['round']:>3} of {total}  {fields['status']}"
    if fields["status"] == "completed":
        line += (
            f"  accuracy {fields['accuracy']:.3f}  loss {fields['loss']:.3f}  "
            f"{len(fields['survivors'])} of {len(fields['cohort'])} clients"
        )
    else:
        line += f": {fields['detail']}"
    clipped = f"  {fields['clipped']:,} coordinates clipped" if fields["clipped"] else ""
    return f"{line}  {fields['seconds']:.1f} s  {_megabytes(moved)}{clipped}"


def _megabytes(count: float) -> str:
    return f"{count / 1e6:.2f} MB"
