"""A client's process in a simulation: its share of the experiment's data."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from tacit.models import checkpoint
from tacit.models.data import load
from tacit.models.device import resolve_device
from tacit.models.layout import Flat
from tacit.models.partition import divide
from tacit.models.training import EVALUATION_BATCH
from tacit.parties.learning.learner import Learner, Update
from tacit.parties.protections.sides import Group
from tacit.parties.runs.directory import write_arrays, writing
from tacit.parties.session.client import ClientParty, ClientSettings
from tacit.parties.session.diary import Diary
from tacit.parties.session.event_log import EventLog
from tacit.parties.session.journal import JournalFile
from tacit.parties.session.stopwatch import Stopwatch
from tacit.protocol.sum.configuration import Configuration
from tacit.simulate.federation.child import Control
from tacit.simulate.federation.roles import USER_ERRORS, Role, client_outcome, explain, tell


async def run_client(control: Control, *, role: Role, address: str) -> dict[str, Any]:
    """Join at the address, and train on this client's share of the data in every round."""
    torch.set_num_threads(1)
    plan, experiment, run, name = role.plan, role.plan.experiment, role.plan.run, role.keys.name
    index = role.roster.index(name)
    seed = experiment.federation.seed
    learners: list[Learner] = []

    def learner(configuration: Configuration) -> Learner:
        data = load(experiment.data, image_size=experiment.model.image_size)
        labels = data.y_train.numpy()
        clients = len(role.roster.clients)
        shares = divide(labels, experiment.data, clients=clients, seed=plan.split_seed, centres=data.centres)
        # Without what the server shows to everybody.
        x, y = data.share(np.setdiff1d(shares[index], experiment.protection.shown(labels, data.classes)))
        learners.append(
            Learner(
                configuration,
                x,
                y,
                seed=None if seed is None else client_seed(seed, index),
                device=resolve_device(plan.device),
            )
        )
        return learners[-1]

    def keep(round: int, update: Update) -> None:
        if plan.verify:
            write_arrays(run.verification(round, name), words=update.words, values=update.values)
        diary.write("update", round=round, **asdict(update.local))

    def judge(learner: Learner, model: Flat, group: Group | None, round: int) -> None:
        """Evaluate a model that the server has not: each client its own; of one under a common key the first member,
        who also keeps it."""
        if group is not None and name != group.key.members[0]:
            return
        data = load(experiment.data, image_size=experiment.model.image_size)
        judged = learner.evaluate(model, data.x_test, data.y_test, batch_size=EVALUATION_BATCH)
        diary.write("evaluated", round=round, accuracy=judged.accuracy, loss=judged.loss)
        if group is None:
            return
        with writing(run.plain_model):
            checkpoint.save(run.plain_model, layout=learner.layout, flat=model, metadata={"round": str(round)})

    def judge_last(learner: Learner) -> None:
        """The shared part of the last round is sent to nobody any more, but in a simulation it is on the disk."""
        shared, _ = checkpoint.load(run.model, learner.layout)
        judge(learner, learner.plain(shared.astype("<f4").tobytes(), None), None, run.progress().round)

    try:
        settings = ClientSettings(
            address=address,
            keys=role.keys,
            roster=role.roster,
            policy=experiment.policy,
            journal=JournalFile(run.journal(name)),
            patience=experiment.deadlines.join + experiment.deadlines.train,
            grace=experiment.deadlines.grace,
        )
        with EventLog(run.events(name), name) as log:
            diary = Diary(log, tell(control))
            party = ClientParty(
                settings, learner, diary, on_update=keep, on_model=judge, surroundings=role.surroundings()
            )
            with Stopwatch() as stopwatch:
                ended = await party.run()
            if learners and learners[0].personal and ended.code is None:
                await asyncio.to_thread(judge_last, learners[0])
            diary.write("work", seconds=dict(stopwatch.seconds))
            return client_outcome(ended)
    except USER_ERRORS as error:
        return explain(error)


def client_seed(seed: int, index: int) -> int:
    """A seed for one client that no other client has."""
    return int(np.random.SeedSequence([seed, index]).generate_state(1, np.uint64)[0])
