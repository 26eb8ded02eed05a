"""What a server does beside the protocol, on a host of its own as in a simulation: the model of an experiment, which it
evaluates and saves after every round, and the run directory that tells of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tacit.models import checkpoint
from tacit.models.data import Dataset
from tacit.models.device import resolve_device
from tacit.models.layout import Layout
from tacit.models.stimuli import Stimuli
from tacit.models.training import EVALUATION_BATCH, evaluate
from tacit.parties.learning.keeper import Keeper
from tacit.parties.learning.task import LOSS_UNIT, Task, class_digest, configure
from tacit.parties.links.keys import PartyKeys
from tacit.parties.runs.directory import Progress, RunDirectory, writing
from tacit.parties.runs.experiment import Experiment
from tacit.parties.session.diary import Diary, Tell
from tacit.parties.session.event_log import EventLog
from tacit.parties.session.server import ServerParty, ServerSettings
from tacit.parties.session.shell import Surroundings
from tacit.parties.session.stopwatch import Stopwatch
from tacit.protocol.core.outputs import Ended
from tacit.protocol.core.roster import Roster
from tacit.protocol.session.rounds import RoundDone
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
    device: str = "cpu"
    newer_roster: Callable[[Roster], Roster | None] = lambda roster: None
    """A later version of this roster, by which the rounds that are left are to go."""


OnSum = Callable[[RoundDone, Total, Keeper, Configuration], None]


async def serve(
    job: ServerJob,
    images: Callable[[], ServerImages],
    tell: Tell,
    *,
    on_sum: OnSum = lambda done, total, keeper, configuration: None,
    surroundings: Surroundings | None = None,
) -> Ended:
    """Build or load the model, run the rounds, evaluate and save after each; returns how the session ended.

    on_sum: called in a thread with every sum that was applied, before the model is saved. ValueError, OSError and
    EndpointError say what the owner can mend.
    """
    experiment, run = job.experiment, job.run
    device, known = resolve_device(job.device), images()
    task = task_of(experiment, known, job.weights_seed)
    model = task.build(seed=job.weights_seed)
    layout = Layout.of(model)
    if job.completed:
        layout.load_into(model, checkpoint.load(run.model, layout)[0])
    configuration = configure(experiment.terms(), task, model, ring_bits=experiment.aggregation.ring_bits or None)
    keeper = Keeper(configuration, model, seed=job.seed, device=device)

    def save(round: int) -> None:
        progress = Progress(round=round, split_seed=job.weights_seed)
        with writing(run.model):
            checkpoint.save(run.model, layout=layout, flat=keeper.flat, metadata=progress.metadata())

    def judge(total: Total | None) -> dict[str, Any]:
        if experiment.evaluated_by_clients:
            return {"accuracy": None, "loss": None}
        if known.test is not None:
            judged = evaluate(
                keeper.model, known.test.x_test, known.test.y_test, batch_size=EVALUATION_BATCH, device=device
            )
            return {"accuracy": judged.accuracy, "loss": judged.loss}
        if total is None or not total.metrics["samples"]:
            return {"accuracy": None, "loss": None}
        # What the clients' own images say, over all of them: nobody tells it of its own.
        samples = total.metrics["samples"]
        return {"accuracy": total.metrics["correct"] / samples, "loss": total.metrics["loss"] * LOSS_UNIT / samples}

    def after_round(done: RoundDone, total: Total | None) -> dict[str, Any]:
        if total is not None:
            on_sum(done, total, keeper, configuration)
            save(done.round)
        return judge(total)

    if not job.completed:
        save(0)
    settings: ServerSettings | None = ServerSettings(
        address=job.address,
        keys=job.keys,
        roster=job.roster,
        configuration=configuration,
        rounds=job.rounds,
        completed=job.completed,
        smallest_cohort=experiment.policy.smallest_cohort,
        join_seconds=experiment.deadlines.join,
        grace=experiment.deadlines.grace,
        newer_roster=job.newer_roster,
    )
    with EventLog(run.events(job.keys.name), job.keys.name) as log:
        while settings is not None:
            # A diary counts the traffic of one session.
            diary = Diary(log, tell)
            diary.write("configuration", **describe(configuration), evaluates="images" if known.test else "sums")
            party = ServerParty(settings, keeper, diary, on_round=after_round, surroundings=surroundings)
            with Stopwatch() as stopwatch:
                ended = await party.run()
            diary.write("work", seconds=dict(stopwatch.seconds))
            settings = party.successor
        return ended


def task_of(experiment: Experiment, known: ServerImages, weights_seed: int = 0) -> Task:
    """What all parties work on in a run that began from this seed, where the server knows this of the images."""
    return Task(
        model=experiment.model,
        training=experiment.training,
        protection=experiment.protection,
        encryption=experiment.encryption,
        classes=len(known.class_names),
        channels=len(known.mean),
        mean=known.mean,
        std=known.std,
        class_digest=class_digest(known.class_names),
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
        "threshold": parameters.threshold,
        "neighbours": parameters.neighbours,
        "configuration_hash": configuration.hash().hex(),
    }
