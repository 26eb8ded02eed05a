"""A server on a host of its own: it runs an experiment with the clients of the roster, in a run directory.

The same command again goes on after the last finished round, and does nothing where all are done; only then comes the
next experiment. What a simulation knows because it has all images, the experiment says here: mean and deviation of the
pixels, and the classes.
"""

from __future__ import annotations

import os
import secrets
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tacit.models.configuration import DataConfiguration
from tacit.models.data import normalise, read
from tacit.models.stimuli import Stimuli
from tacit.parties.hosting.folder import PartyFolder
from tacit.parties.hosting.opening import OpenedParty, at_work
from tacit.parties.hosting.party_schema import ServerFile
from tacit.parties.hosting.resources import open_many_files
from tacit.parties.hosting.roster_watch import RosterWatch
from tacit.parties.hosting.server import ServerImages, ServerJob, serve, standing_in
from tacit.parties.hosting.state import Status
from tacit.parties.runs.directory import RunDirectory, RunDirectoryError
from tacit.parties.runs.experiment import Experiment, load
from tacit.parties.runs.provenance import command_line
from tacit.parties.runs.reference import experiment_toml
from tacit.parties.runs.summary import summarise
from tacit.parties.runs.tables import keep_summary
from tacit.parties.session.diary import Tell
from tacit.protocol.core.roster import Roster


@dataclass(frozen=True)
class HostedRun:
    """What a server is to run now."""

    experiment: Experiment
    run: RunDirectory
    completed: int
    """Rounds that are done already."""
    weights_seed: int


def choose_run(folder: PartyFolder, experiment: Experiment | None) -> HostedRun:
    """The run of `begun_run`, or a new one. RunDirectoryError as there, or if there is nothing to run; OSError.

    The folder must be held. Nobody chooses the seed of the weights: a new run draws its own.
    """
    if (begun := begun_run(folder, experiment)) is not None:
        return begun
    if experiment is None:
        raise RunDirectoryError(f"{folder.path} has no run to go on with: name an experiment file")
    new = folder.new_run(experiment.name)
    new.keep_experiment(experiment_toml(experiment))
    return HostedRun(experiment, new, 0, secrets.randbits(63))


def begun_run(folder: PartyFolder, experiment: Experiment | None) -> HostedRun | None:
    """The last run, if it was not finished or is of this very experiment. RunDirectoryError if it is not finished and
    of another experiment, or cannot go on; ExperimentError, OSError."""
    run = folder.last_run()
    last = None if run is None else _begun(run)
    if last is not None:
        rounds = last.experiment.federation.rounds
        if experiment is None or experiment == last.experiment:
            return last
        if last.completed < rounds:
            raise RunDirectoryError(
                f"{last.run.path} has {last.completed} of {rounds} rounds, of another experiment: finish it by the "
                "same command without an experiment file, or move it away"
            )
    return None


def _begun(run: RunDirectory) -> HostedRun | None:
    """A run as it was left; None if not even its experiment was written."""
    if not run.experiment.is_file():
        return None
    experiment = load(run.experiment)
    if not run.model.is_file():
        return HostedRun(experiment, run, 0, secrets.randbits(63))
    progress = run.progress()
    return HostedRun(experiment, run, progress.round, progress.split_seed)


def without_seed(experiment: Experiment) -> Experiment:
    """The experiment as hosts run it."""
    return msgspec.structs.replace(experiment, federation=msgspec.structs.replace(experiment.federation, seed=None))


def check_roster(experiment: Experiment, roster: Roster) -> None:
    """Raise ValueError, naming the key, if the clients of this roster cannot begin the experiment."""
    clients, there = experiment.federation.clients, len(roster.clients)
    if clients > there:
        raise ValueError(
            f"federation.clients = {clients}: the roster has {there}; set it to {there}, or add the others"
        )
    check_changed(experiment, roster)


def check_changed(experiment: Experiment, roster: Roster) -> None:
    """Raise ValueError if the experiment cannot go on with this roster; it may have lost clients since it began."""
    if experiment.protection.facts().single_vectors:
        raise ValueError(
            f'protection.scheme = "{experiment.protection.scheme}": its server works with the update of every client, '
            'which is for `tacit simulate` only; between hosts take "fedsplit"'
        )
    clients = experiment.federation.clients
    if experiment.federation.group_size and not roster.groups:
        raise ValueError(
            f"federation.group_size = {experiment.federation.group_size}: between hosts the roster has the groups, and "
            "this one has none; make it with --group-size"
        )
    cohort = len(roster.gather(roster.clients, clients))
    experiment.terms().check_groups([len(group) for group in roster.groups], cohort, experiment.policy.smallest_cohort)


def server_images(file: ServerFile, experiment: Experiment) -> ServerImages:
    """What this server knows of images. ValueError, naming the key, for what the experiment must say; OSError.

    Where the clients are to sum up statistics, others stand in their place.
    """
    agreed, own = experiment.data, file.data
    if agreed.factory:
        return ServerImages.none()
    if agreed.statistics == "sum":
        agreed = standing_in(agreed, agreed.channels or _own_channels(file))
    if not agreed.mean:
        raise ValueError(
            "data.mean and data.std are missing in the experiment: hosts do not see each other's images, and all must "
            'normalise alike; `tacit data inspect` says those of a data set, and data.statistics = "sum" has the '
            "clients sum them up"
        )
    names, test, stimuli = agreed.classes, None, None
    if own is not None:
        source = read(own if own.classes else msgspec.structs.replace(own, classes=agreed.classes))
        if not len(source.test.images):
            raise ValueError(f"data.source {own.source!r} of the server holds no test images")
        if names and source.class_names != names:
            raise ValueError("data.classes of the server's own file is another list than that of the experiment")
        names = source.class_names
        test = normalise(source, image_size=experiment.model.image_size, mean=agreed.mean, std=agreed.std)
    if not names:
        raise ValueError(
            "data.classes is missing in the experiment: a server without images does not know the classes; "
            "`tacit data inspect` lists those of a data set"
        )
    protection = experiment.protection
    if len(protection.shown(np.arange(len(names)), len(names))):
        if test is None:
            raise ValueError(
                f'protection.scheme = "{protection.scheme}" shows images of the server to all clients: give the server '
                "some, in [data] of its own file"
            )
        shown = protection.shown(test.source.test.labels, len(names))
        stimuli = Stimuli.of(test.normalised(test.source.test.images, shown))
    return ServerImages(names, agreed.mean, agreed.std, test=test, stimuli=stimuli)


def _own_channels(file: ServerFile) -> int:
    if file.data is None:
        raise ValueError(
            'data.channels is missing in the experiment: with data.statistics = "sum" a server without images must be '
            "told how many channels they have, 1 for grey images and 3 for coloured ones"
        )
    return read(file.data).test.images.channels


async def run_server(
    party: OpenedParty[ServerFile], experiment: Experiment | None, *, show: Tell
) -> tuple[RunDirectory, dict[str, Any]]:
    """Run an experiment, or go on with one, and return its run directory and summary, which is written too.

    ValueError and RunDirectoryError for what cannot start; OSError, EndpointError, EventLogError.
    """
    # Whoever reaches the port can hold a descriptor for as long as a handshake may take.
    open_many_files()
    began = time.monotonic()
    status = Status(name=party.name, role="server", process=os.getpid(), since=time.time())
    with at_work(party, status, show) as tell:
        if experiment is not None:
            check_roster(experiment, party.roster)
            # Looked at before there is a run, and once more by it.
            server_images(party.file, experiment)
            experiment = without_seed(experiment)
        hosted = choose_run(party.folder, experiment)
        experiment, run = hosted.experiment, hosted.run
        check_changed(experiment, party.roster)
        watch = RosterWatch(Path(party.file.roster), party.name, partial(check_changed, experiment), tell)
        status.experiment, status.rounds = experiment.name, experiment.federation.rounds
        status.round = hosted.completed
        tell("run", {"directory": str(run.path), "completed": hosted.completed, "rounds": status.rounds})
        job = ServerJob(
            experiment=experiment,
            run=run,
            keys=party.keys,
            roster=party.roster,
            address=party.file.bind,
            rounds=experiment.federation.rounds - hosted.completed,
            completed=hosted.completed,
            weights_seed=hosted.weights_seed,
            command=command_line(),
            device=party.file.device,
            newer_roster=watch.newer,
        )
        ended = "all rounds were done before"
        if job.rounds > 0:

            def images(data: DataConfiguration) -> ServerImages:
                return server_images(party.file, msgspec.structs.replace(experiment, data=data))

            ended = (await serve(job, images, tell)).detail
        summary = summarise(run, experiment, wall_seconds=time.monotonic() - began)
        summary["ended"] = ended
        keep_summary(run, summary)
    return run, summary
