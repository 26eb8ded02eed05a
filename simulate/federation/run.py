"""A federation on one machine: starting, watching and ending its processes, and the checks of --verify.

The supervisor never loads torch. After a run, --verify checks that the clients' quantised vectors add up in the ring,
exactly, to the words that the server unmasked, and that the float sum of their weighted updates lies within the bound
that stochastic rounding allows (Packing.error_bound); without secure aggregation it must be equal, exactly.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from itertools import chain, count
from multiprocessing.util import get_temp_dir
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from msgspec import structs

from tacit.parties.hosting.folder import open_many_files
from tacit.parties.runs.directory import RunDirectory, RunDirectoryError, RunInUseError, writing
from tacit.parties.runs.experiment import Experiment, ExperimentError, load
from tacit.parties.runs.kept_functions import find
from tacit.parties.runs.own_functions import differences
from tacit.parties.runs.reading import set_aside
from tacit.parties.runs.reference import experiment_toml
from tacit.parties.runs.summary import Summary, VerifiedRound, summarise
from tacit.secagg.ring import Ring
from tacit.simulate.federation import hosting
from tacit.simulate.federation.actors import Actors
from tacit.simulate.federation.processes import (
    SERVER,
    InputError,
    ProcessError,
    Processes,
    Show,
    SimulationError,
    Supervisor,
)
from tacit.simulate.federation.relay import Shaping, relaying
from tacit.simulate.federation.roles import Plan, Role, enrol


class VerificationError(Exception):
    """A sum is wrong; the message names the round and the values."""


def verify(run: RunDirectory, ring_bits: int) -> list[VerifiedRound]:
    return [_verify_round(path, Ring(ring_bits)) for path in run.verified_rounds() if (path / "sum.npz").exists()]


def _verify_round(path: Path, ring: Ring) -> VerifiedRound:
    with np.load(path / "sum.npz", allow_pickle=False) as recorded:
        values, bound = recorded["values"], float(recorded["bound"])
        words = recorded["words"] if "words" in recorded else np.zeros(0, ring.word)
        names = [str(name) for name in recorded["names"]]
    expected_words, expected_values = np.zeros_like(words), np.zeros_like(values)
    for name in names:
        with np.load(path / f"{name}.npz", allow_pickle=False) as update:
            if words.size:
                ring.add_into(expected_words, update["words"])
            expected_values += update["values"]
    if different := int(np.count_nonzero(expected_words != words)):
        raise VerificationError(f"round {path.name}: {different} of {words.size} words of the secure sum are wrong")
    error = float(np.abs(expected_values - values).max())
    if error > bound:
        raise VerificationError(f"round {path.name}: the sum is off by {error:g}; quantisation allows {bound:g}")
    return VerifiedRound(round=int(path.name), clients=len(names), largest_error=error, bound=bound)


GRACE_SECONDS = 5.0
"""Grace period before processes are ended by force."""


def party_names(clients: int) -> tuple[str, ...]:
    return (SERVER, *(f"client-{number + 1}" for number in range(clients)))


def default_directory(name: str) -> Path:
    """Return runs/<time>-<name>, with a number appended where another run began in the same second."""
    first = Path("runs") / f"{datetime.now():%Y%m%d-%H%M%S}-{name}"
    numbered = (first.with_name(f"{first.name}-{number}") for number in count(2))
    return next(path for path in chain([first], numbered) if not path.exists())


def new_plan(experiment: Experiment, directory: Path, **options: Any) -> Plan:
    """Make the run directory of a new run. RunDirectoryError if it cannot be made, OSError if the disk is full;
    ExperimentError if the model does not fit into memory."""
    hosting.check(experiment)
    run = RunDirectory.create(directory)
    try:
        run.keep_experiment(experiment_toml(experiment))
    except OSError:
        run.discard()
        raise
    seed = experiment.federation.seed
    # It may be recorded (Plan.seed); 53 bits, which every reader of JSON keeps.
    split_seed = seed if seed is not None else secrets.randbits(53)
    return Plan(experiment, run, experiment.federation.rounds, 0, split_seed, **options)


def resumed_plan(experiment: Experiment, run: RunDirectory, **options: Any) -> Plan:
    """Continue a run until it has the rounds of the experiment. RunDirectoryError if it has them, cannot be read, or is
    running; EventLogError if a log cannot be read, OSError if the disk is full; ExperimentError as `new_plan`."""
    hosting.check(experiment)
    with run.alone():
        return _resumed_plan(experiment, run, set_aside(run), **options)


def _resumed_plan(experiment: Experiment, run: RunDirectory, unread: list[str], **options: Any) -> Plan:
    done = run.progress()
    rounds_left = experiment.federation.rounds + done.repeated - done.round
    counted = done.round - done.repeated
    if rounds_left <= 0:
        raise RunDirectoryError(
            f"{run.path} has {counted} rounds already: ask for more with --rounds {counted + 1} or above"
        )
    memories = [run.memory(name) for name in party_names(experiment.clients)[1:]]
    if experiment.remembers and done.round and not any(map(Path.is_file, memories)):
        kept = f' from {run.plain_model} (model.checkpoint, with encryption.initial_model = "server")'
        raise RunDirectoryError(
            f"{run.path} cannot be resumed: its clients removed what they remembered when its rounds were done; start "
            f"anew{kept if run.plain_model.exists() else ''}"
        )
    run.keep_experiment(experiment_toml(experiment))
    return Plan(
        experiment,
        run,
        rounds_left,
        done.round,
        done.split_seed,
        repeated=done.repeated,
        unread=tuple(unread),
        **options,
    )


def check_unedited(run: RunDirectory) -> None:
    """Raise RunDirectoryError, naming the keys, if experiment.toml was edited since the run's last session began."""
    if not run.started.is_file():
        return
    try:
        changed = differences(load(run.started, numbered=False), load(run.experiment, numbered=False))
    except ExperimentError as error:
        raise RunDirectoryError(f"{run.experiment} was edited since the run began: {error}") from None
    if changed:
        raise RunDirectoryError(
            f"{run.experiment} was edited since the run began: {'; '.join(changed)}; undo that, or start a new run"
        )


def kept(plan: Plan) -> str:
    """Describe the stored state of a run that ended early, and how to resume it; "" if there is none."""
    run = plan.run
    return f"finished rounds are kept: tacit simulate --resume {run.path}" if run.model.exists() else ""


async def simulate(plan: Plan, show: Show) -> Summary:
    """Run the rounds, write the summary, and return it.

    RunDirectoryError if another process has begun to write there since the plan was made; InputError if the server
    cannot start, SimulationError if it cannot continue; VerificationError if --verify finds a wrong sum; OSError if
    summary or report cannot be written.
    """
    find(plan.run.path)
    with plan.run.alone():
        if plan.run.model.exists() and plan.run.progress().round != plan.completed:
            raise RunInUseError(f"{plan.run.path} was continued by another process just now: give the command again")
        return await _simulate(plan, show)


async def _simulate(plan: Plan, show: Show) -> Summary:
    try:
        failure, ended = await _hold(plan, show)
    except (InputError, ProcessError):
        raise
    except (asyncio.CancelledError, Exception) as error:
        # Ctrl-C, or a callback: the finished rounds still have a summary.
        if plan.run.model.exists():
            stopped = isinstance(error, asyncio.CancelledError)
            reason = "interrupted" if stopped else " ".join(f"stopped by a callback: {error}".split())
            with suppress(OSError, RunDirectoryError):
                summary = summarise(plan.run, plan.experiment, ended=reason)
                summary.keep_tables(plan.run)
                if not stopped:
                    summary.keep(plan.run)
                    await asyncio.to_thread(_report, plan.run)
        raise
    return await _summed_up(plan, failure, ended)


async def _hold(plan: Plan, show: Show) -> tuple[SimulationError | None, str]:
    names = party_names(plan.experiment.clients)
    enrol(plan, names)
    # A few for every process.
    open_many_files()
    failure: SimulationError | None = None
    # In a folder that is removed with this process; or where other machines find it.
    with TemporaryDirectory(dir=plan.run.path.resolve() if plan.ray else get_temp_dir()) as images:
        async with _engine(plan) as processes:
            hosts = hosting.choose(plan.experiment, names[1:], plan.faults.named, ray_cores=processes.cores)
            if hosts.reason:
                show(structs.replace(hosts.event(plan.experiment), time=time.time(), party=SERVER))
            await processes.prepare(hosts.processes)
            patient = replace(plan, experiment=hosts.patient(plan.experiment), host=processes.host)
            roles = {name: Role(patient, name, Path(images)) for name in names}
            try:
                with relaying(Shaping(), plan.wire) as relay:
                    ended = await Supervisor(processes, roles, hosts, show, relay).follow()
            except InputError:
                raise
            except SimulationError as error:
                failure, ended = error, str(error)
    return failure, ended


async def _summed_up(plan: Plan, failure: SimulationError | None, ended: str) -> Summary:
    summary = summarise(plan.run, plan.experiment, ended=ended)
    if plan.verify and failure is None and summary.aggregation is not None:
        verified = verify(plan.run, summary.aggregation.ring_bits)
        summary = structs.replace(summary, verified=verified)
    try:
        summary.keep(plan.run)
        if plan.report:
            await asyncio.to_thread(_report, plan.run)
    except OSError:
        if failure is None:
            raise
    if failure is not None:
        failure.summary = summary
        raise failure
    return summary


def _engine(plan: Plan) -> Processes:
    if plan.ray is None:
        return Processes(plan.run.logs, grace_seconds=GRACE_SECONDS)
    alone = {SERVER, *plan.faults.named}
    return Actors(plan.run.logs, address=plan.ray, alone=alone, grace_seconds=GRACE_SECONDS)


def _report(run: RunDirectory) -> None:
    # Imported here: drawing takes a second to load, and only the end of the run needs it.
    from tacit.simulate.report.page import write_report

    with writing(run.path / "report.html"):
        write_report(run)
