"""What a server does beside the protocol, on a host of its own as in a simulation: the model of an experiment, which it
evaluates and saves after every round, and the run directory that tells of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec
import torch

from tacit.models import checkpoint
from tacit.models.configuration import DataConfiguration
from tacit.models.data import Dataset
from tacit.models.device import resolve_device
from tacit.models.layout import Layout
from tacit.models.stimuli import Stimuli
from tacit.models.training import EVALUATION_BATCH, evaluate
from tacit.parties.learning.keeper import Keeper
from tacit.parties.learning.statistics import (
    Statistics,
    StatisticsKeeper,
    StatisticsTask,
    configure_statistics,
)
from tacit.parties.learning.task import LOSS_UNIT, Task, class_digest, configure
from tacit.parties.links.keys import PartyKeys
from tacit.parties.runs.classes import TestClasses, described
from tacit.parties.runs.directory import Progress, RunDirectory, writing
from tacit.parties.runs.evaluations import FIGURES
from tacit.parties.runs.experiment import Experiment
from tacit.parties.runs.provenance import Seed, provenance
from tacit.parties.runs.sections import LONGEST_SECONDS
from tacit.parties.session.diary import Diary, Tell
from tacit.parties.session.event_log import EventLog
from tacit.parties.session.server import ServerParty, ServerSettings, StatisticsServerParty
from tacit.parties.session.shell import Surroundings
from tacit.parties.session.stopwatch import Stopwatch
from tacit.protocol.core.errors import Code
from tacit.protocol.core.machine import Ended
from tacit.protocol.core.roster import Roster
from tacit.protocol.session.rounds import RoundDone
from tacit.protocol.session.server import TrainingServer
from tacit.protocol.sum.configuration import Configuration
from tacit.secagg.packing import Total


@dataclass(frozen=True)
class ServerImages:
    """What a server knows of the images of its federation."""

    class_names: Sequence[str]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    test: Dataset | None = field(default=None, repr=False)
    """With test images to evaluate the model on; None: accuracy comes from the secure sum."""
    stimuli: Stimuli | None = None

    @classmethod
    def none(cls) -> ServerImages:
        """Where clients have data of their own, of which nothing needs to be known."""
        return cls((), (), ())


@dataclass(frozen=True, kw_only=True)
class ServerJob:
    """What a server is to run."""

    experiment: Experiment
    run: RunDirectory
    keys: PartyKeys
    roster: Roster
    address: str
    rounds: int
    """Rounds to run now."""
    completed: int
    """Rounds of the run that are done already."""
    weights_seed: int
    """Seeds the initial weights."""
    seed: int | None = None
    """Of the server's own training, if it trains; None draws from the operating system's randomness."""
    recorded_seed: Seed | None = None
    """What the run says of its seed."""
    command: str = ""
    """The command line that it was started with."""
    device: str = "cpu"
    newer_roster: Callable[[Roster], Roster | None] = lambda roster: None
    """A later version of this roster, by which the rounds that are left are to go."""
    missing: Callable[[], Mapping[str, str]] | None = None
    """Clients that will not come, and why, where somebody starts them all and tells: others are then waited for,
    however long they take."""


STATISTICS_ATTEMPTS: Final = 3
"""Rounds in which a sum of pixels is tried before the server gives up."""

OnSum = Callable[[RoundDone, Total, Keeper, Configuration], None]


async def serve(
    job: ServerJob,
    images: Callable[[DataConfiguration], ServerImages],
    tell: Tell,
    *,
    on_sum: OnSum = lambda done, total, keeper, configuration: None,
    surroundings: Surroundings | None = None,
    make_machine: Callable[..., TrainingServer] = TrainingServer,
) -> Ended:
    """Build or load the model, run the rounds, evaluate and save after each; returns how the session ended. Before the
    rounds the clients sum up statistics, where the experiment asks for it and the run does not know them yet.

    images: what is known of them, where the experiment has this section; on_sum: called in a thread with every sum
    that was applied, before the model is saved; make_machine: as of ServerParty. ValueError, OSError and EndpointError
    say what the owner can mend.
    """
    experiment, run = job.experiment, job.run
    device, known = resolve_device(job.device), images(experiment.data)
    # Made before the clients are asked for anything, so that after the first sum they find the server at once.
    model = task_of(experiment, known, job.weights_seed).build(seed=job.weights_seed)
    layout = Layout.of(model)
    if job.completed:
        layout.load_into(model, checkpoint.load(run.model, layout)[0])
    if experiment.data.statistics == "sum":
        found, address, ended = await summed_statistics(job, known, tell)
        if found is None:
            return ended
        job, known = replace(job, address=address), images(experiment.data.given(found.mean, found.std))
    task = task_of(experiment, known, job.weights_seed)
    configuration = configure(experiment.terms(), task, model, ring_bits=experiment.aggregation.ring_bits or None)
    keeper = Keeper(configuration, model, seed=job.seed, device=device)
    if job.completed and keeper.velocity is not None:
        keeper.velocity = checkpoint.load(run.velocity(job.completed), layout)[0]

    def save(round: int) -> None:
        progress = Progress(round=round, split_seed=job.weights_seed)
        with writing(run.model):
            # A file for each round: whenever the process is killed, that of the model's round is there.
            if keeper.velocity is not None:
                checkpoint.save(run.velocity(round), layout=layout, flat=keeper.velocity, metadata={})
            checkpoint.save(run.model, layout=layout, flat=keeper.flat, metadata=progress.metadata())
            run.forget_velocities(but=round)

    judged_last: TestClasses | None = None

    def judge(round: int, total: Total | None) -> dict[str, Any]:
        nonlocal judged_last
        unknown: dict[str, Any] = dict.fromkeys(FIGURES)
        if experiment.evaluated_by_clients:
            return unknown
        if known.test is not None:
            judged = evaluate(
                keeper.model, known.test.x_test, known.test.y_test, batch_size=EVALUATION_BATCH, device=device
            )
            judged_last = described(round, known.class_names, judged.confusion)
            return {
                "accuracy": judged.accuracy,
                "balanced_accuracy": judged.balanced_accuracy,
                "loss": judged.loss,
            }
        # Of a training step of one's own nothing is known.
        if total is None or not total.metrics["samples"] or experiment.training.factory:
            return unknown
        # What the clients' own images say, over all of them: nobody tells it of its own.
        samples = total.metrics["samples"]
        correct, loss = total.metrics["correct"], total.metrics["loss"]
        return unknown | {"accuracy": correct / samples, "loss": loss * LOSS_UNIT / samples}

    def after_round(done: RoundDone, total: Total | None) -> dict[str, Any]:
        if total is not None:
            on_sum(done, total, keeper, configuration)
            save(done.round)
        return judge(done.round, total)

    if not job.completed:
        save(0)
    settings: ServerSettings | None = replace(
        _settings(job, configuration, rounds=job.rounds, completed=job.completed), newer_roster=job.newer_roster
    )
    place = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    origin = msgspec.to_builtins(provenance(job.command, device=place, seed=job.recorded_seed))
    with EventLog(run.events(job.keys.name), job.keys.name) as log:
        while settings is not None:
            # A diary counts the traffic of one session.
            diary = Diary(log, tell)
            diary.write("configuration", **describe(configuration), evaluates="images" if known.test else "sums")
            diary.write("provenance", **origin)
            party = ServerParty(
                settings, keeper, diary, on_round=after_round, surroundings=surroundings, make_machine=make_machine
            )
            with Stopwatch() as stopwatch:
                ended = await party.run()
            diary.write("work", seconds=dict(stopwatch.seconds))
            settings = party.successor
        if judged_last is not None:
            log.write("classes", **msgspec.to_builtins(judged_last))
        return ended


async def summed_statistics(job: ServerJob, known: ServerImages, tell: Tell) -> tuple[Statistics | None, str, Ended]:
    """Mean and deviation of the clients' pixels, as the run knows them or from a session of their own, which is kept
    before anybody goes on; where the server listened; how that session ended. None if there is no sum."""
    address, run = job.address, job.run
    if (kept := run.kept_statistics()) is not None:
        return kept, address, Ended(None, "")
    configuration = first_configuration(job.experiment, known)
    keeper = StatisticsKeeper(configuration)

    def note(done: RoundDone, total: Total | None) -> dict[str, Any]:
        if total is None or keeper.found is None:
            return {}
        run.keep_statistics(keeper.found)
        return {"pixels": keeper.found.pixels, "mean": list(keeper.found.mean), "std": list(keeper.found.std)}

    def follow(event: str, fields: dict[str, Any]) -> None:
        nonlocal address
        if event == "listening":
            # The clients come back to where they were.
            address = str(fields["address"])
        tell(event, fields)

    settings = _settings(job, configuration, rounds=STATISTICS_ATTEMPTS)
    with EventLog(run.events(job.keys.name), job.keys.name) as log:
        ended = await StatisticsServerParty(settings, keeper, Diary(log, follow), on_round=note).run()
    if keeper.found is None and ended.code is None:
        ended = Ended(Code.THRESHOLD, f"none of {STATISTICS_ATTEMPTS} rounds had a sum of the clients' pixels")
    return keeper.found, address, ended


def _settings(job: ServerJob, configuration: Configuration, *, rounds: int, completed: int = 0) -> ServerSettings:
    return ServerSettings(
        address=job.address,
        keys=job.keys,
        roster=job.roster,
        configuration=configuration,
        rounds=rounds,
        completed=completed,
        smallest_cohort=job.experiment.policy.smallest_cohort,
        join_seconds=job.experiment.deadlines.join if job.missing is None else LONGEST_SECONDS,
        grace=job.experiment.deadlines.grace,
        missing=job.missing or dict,
    )


def first_configuration(experiment: Experiment, known: ServerImages) -> Configuration:
    """Of the sum of statistics; known says classes, and how many channels."""
    task = StatisticsTask(
        image_size=experiment.model.image_size,
        channels=len(known.mean),
        classes=len(known.class_names),
        class_digest=class_digest(known.class_names),
    )
    return configure_statistics(experiment.terms(), task)


def standing_in(data: DataConfiguration, channels: int) -> DataConfiguration:
    """The section with values that any images could have, until the clients' sum tells them."""
    return data.given((0.5,) * channels, (0.5,) * channels)


def task_of(experiment: Experiment, known: ServerImages, weights_seed: int = 0) -> Task:
    """What all parties work on in a run that began from this seed, where the server knows this of the images."""
    return Task(
        model=experiment.model,
        training=experiment.training,
        protection=experiment.protection,
        encryption=experiment.encryption,
        # Where nothing is known of them, there are functions that do not ask.
        classes=len(known.class_names) or 1,
        channels=len(known.mean) or 1,
        mean=known.mean,
        std=known.std,
        class_digest=class_digest(known.class_names) if known.class_names else b"",
        # The seed is the run's own, and on hosts nobody chose it.
        run=hashlib.sha256(b"%d" % weights_seed).digest(),
        stimuli=known.stimuli,
    )


def describe(configuration: Configuration) -> dict[str, Any]:
    """The figures of a configuration that a report wants to show."""
    packing = configuration.packing()
    parameters = configuration.parameters(configuration.clients)
    return {
        "parameters": packing.values_length,
        "ring_bits": packing.ring.bits,
        "vector_bytes": packing.length * packing.ring.wire_bytes,
        "step": packing.quantiser.step,
        "max_weight": configuration.max_weight,
        "threshold": parameters.threshold,
        "neighbours": parameters.neighbours,
        "configuration_hash": configuration.hash().hex(),
    }
