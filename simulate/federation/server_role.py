"""The server's process in a simulation: it has all images, and records what --verify compares."""

from __future__ import annotations

import hashlib
from typing import Any

import torch

from tacit.models.configuration import DataConfiguration
from tacit.models.data import Dataset, load, read
from tacit.models.datasets.samples import Source
from tacit.models.stimuli import Stimuli
from tacit.parties.hosting.server import ServerImages, ServerJob, serve, standing_in
from tacit.parties.learning.keeper import Keeper
from tacit.parties.protections.protection import Protection
from tacit.parties.runs.directory import write_arrays
from tacit.protocol.session.rounds import RoundDone
from tacit.protocol.sum.configuration import Configuration
from tacit.secagg.packing import Total
from tacit.simulate.federation import shared_images
from tacit.simulate.federation.child import Control
from tacit.simulate.federation.hosting import shares, weighed
from tacit.simulate.federation.roles import USER_ERRORS, Role, explain, server_outcome, tell


async def run_server(control: Control, *, role: Role) -> dict[str, Any]:
    """Build or load the model, run the rounds, evaluate and save after each."""
    torch.set_num_threads(1)
    plan, experiment = role.plan, role.plan.experiment
    source: Source | None = None
    recording = role.recording()
    if not experiment.data.factory:
        try:
            source = read(experiment.data)
            experiment = weighed(experiment, shares(experiment, source, plan.split_seed))
        except USER_ERRORS as error:
            return explain(error)

    def images(wanted: DataConfiguration) -> ServerImages:
        if source is None:
            return ServerImages.none()
        if wanted.statistics == "sum":
            wanted = standing_in(wanted, wanted.channels or source.train.images.channels)
        data = load(wanted, image_size=experiment.model.image_size, source=source)
        shared_images.keep(data.source, role.images)
        stimuli = prepare_stimuli(experiment.protection, data)
        return ServerImages(data.source.class_names, *data.normalisation, test=data, stimuli=stimuli)

    def record(done: RoundDone, total: Total, keeper: Keeper, configuration: Configuration) -> None:
        if plan.verify and done.total is not None:
            bound = configuration.packing().error_bound(len(done.survivors))
            found = {"values": total.values, "bound": bound, "names": list(done.survivors)}
            if configuration.secure:
                found["words"] = done.total
            write_arrays(plan.run.verification(done.round, "sum"), **found)
        if recording is not None:
            recording.keep_sum(done, total)
        if plan.record_moves:
            plan.run.save_moves(done.round, keeper.mean(total)[1])

    job = ServerJob(
        experiment=experiment,
        run=plan.run,
        keys=role.keys,
        roster=role.roster,
        address=f"tcp://{plan.host}:*",
        rounds=plan.rounds,
        completed=plan.completed,
        repeated=plan.repeated,
        weights_seed=plan.split_seed,
        sampling=hashlib.sha256(b"sampling %d" % plan.split_seed).digest(),
        seed=plan.seed,
        recorded_seed=plan.recorded_seed,
        command=plan.command,
        started=plan.started,
        device=plan.device,
        missing=lambda: control.told.get("missing", {}),
    )
    try:
        return server_outcome(
            await serve(
                job,
                images,
                tell(control),
                on_sum=record,
                surroundings=recording or role.surroundings(),
                make_machine=role.server_machine(),
            )
        )
    except USER_ERRORS as error:
        return explain(error)


def prepare_stimuli(protection: Protection, data: Dataset) -> Stimuli | None:
    """Training images that the clients of a simulation do without, if the protection has the server show some.

    ValueError for too few, or more than fit.
    """
    shown = protection.shown(data.y_train.numpy(), data.classes)
    return Stimuli.of(data.share(shown)[0]) if len(shown) else None
