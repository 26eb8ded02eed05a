"""The server's process in a simulation: the model of the experiment, evaluated and saved after every round."""

from __future__ import annotations

from typing import Any, Final

import torch

from tacit.models import checkpoint
from tacit.models.data import Dataset, load
from tacit.models.device import resolve_device
from tacit.models.layout import Layout
from tacit.models.stimuli import Stimuli
from tacit.models.training import EVALUATION_BATCH, evaluate
from tacit.parties.learning.keeper import Keeper
from tacit.parties.learning.task import Task, configure
from tacit.parties.protections.protection import Protection
from tacit.parties.runs.directory import Progress, write_arrays, writing
from tacit.parties.session.diary import Diary
from tacit.parties.session.event_log import EventLog
from tacit.parties.session.server import ServerParty, ServerSettings
from tacit.parties.session.stopwatch import Stopwatch
from tacit.protocol.session.rounds import RoundDone
from tacit.protocol.sum.configuration import Configuration
from tacit.secagg.packing import Total
from tacit.simulate.federation.child import Control
from tacit.simulate.federation.roles import USER_ERRORS, Role, explain, server_outcome, tell

LOOPBACK: Final = "tcp://127.0.0.1:*"


async def run_server(control: Control, *, role: Role) -> dict[str, Any]:
    """Build or load the model, run the rounds, evaluate and save after each."""
    torch.set_num_threads(1)
    plan, experiment, run = role.plan, role.plan.experiment, role.plan.run
    try:
        device = resolve_device(plan.device)
        data = load(experiment.data, image_size=experiment.model.image_size)
        task = Task(
            model=experiment.model,
            training=experiment.training,
            protection=experiment.protection,
            encryption=experiment.encryption,
            classes=data.classes,
            channels=data.channels,
            stimuli=prepare_stimuli(experiment.protection, data),
        )
        model = task.build(seed=plan.split_seed)
        layout = Layout.of(model)
        if plan.completed:
            layout.load_into(model, checkpoint.load(run.model, layout)[0])
        configuration = configure(experiment.terms(), task, model, ring_bits=experiment.aggregation.ring_bits or None)
        keeper = Keeper(configuration, model, seed=experiment.federation.seed, device=device)

        def save(round: int) -> None:
            progress = Progress(round=round, split_seed=plan.split_seed)
            with writing(run.model):
                checkpoint.save(run.model, layout=layout, flat=keeper.flat, metadata=progress.metadata())

        def after_round(done: RoundDone, total: Total | None) -> dict[str, Any]:
            if plan.verify and total is not None and done.total is not None:
                bound = configuration.packing().error_bound(len(done.survivors))
                found = {"words": done.total, "values": total.values, "bound": bound, "names": list(done.survivors)}
                write_arrays(run.verification(done.round, "sum"), **found)
            if plan.record_moves and total is not None:
                run.save_moves(done.round, keeper.mean(total)[1])
            if total is not None:
                save(done.round)
            if experiment.evaluated_by_clients:
                return {"accuracy": None, "loss": None}
            judged = evaluate(keeper.model, data.x_test, data.y_test, batch_size=EVALUATION_BATCH, device=device)
            return {"accuracy": judged.accuracy, "loss": judged.loss}

        if not plan.completed:
            save(0)
        settings = ServerSettings(
            address=LOOPBACK,
            keys=role.keys,
            roster=role.roster,
            configuration=configuration,
            rounds=plan.rounds,
            completed=plan.completed,
            smallest_cohort=experiment.policy.smallest_cohort,
            join_seconds=experiment.deadlines.join,
            grace=experiment.deadlines.grace,
        )
        with EventLog(run.events(role.keys.name), role.keys.name) as log:
            diary = Diary(log, tell(control))
            diary.write("configuration", **describe(configuration))
            party = ServerParty(settings, keeper, diary, on_round=after_round, surroundings=role.surroundings())
            with Stopwatch() as stopwatch:
                ended = await party.run()
            diary.write("work", seconds=dict(stopwatch.seconds))
            return server_outcome(ended)
    except USER_ERRORS as error:
        return explain(error)


def prepare_stimuli(protection: Protection, data: Dataset) -> Stimuli | None:
    """Training images that the clients of a simulation do without, if the protection has the server show some.

    ValueError for too few, or more than fit.
    """
    shown = protection.shown(data.y_train.numpy(), data.classes)
    return Stimuli.of(data.share(shown)[0]) if len(shown) else None


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
