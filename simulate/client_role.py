"""A client's process in a simulation: its share of the experiment's data."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tacit.models.data import load
from tacit.models.device import resolve_device
from tacit.models.partition import divide
from tacit.parties.client import ClientParty, ClientSettings
from tacit.parties.diary import Diary
from tacit.parties.event_log import EventLog
from tacit.parties.journal import Journal
from tacit.parties.stopwatch import Stopwatch
from tacit.parties.task import Learner, Update
from tacit.protocol.configuration import Configuration
from tacit.simulate.child import Control
from tacit.simulate.roles import USER_ERRORS, Role, client_outcome, explain, tell
from tacit.simulate.run_directory import RunDirectory


async def run_client(control: Control, *, role: Role, address: str) -> dict[str, Any]:
    """Join at the address, and train on this client's share of the data in every round."""
    torch.set_num_threads(1)
    run = RunDirectory(role.directory)
    experiment, name = role.experiment, role.keys.name
    index = role.roster.index(name)
    seed = experiment.federation.seed

    def learner(configuration: Configuration) -> Learner:
        data = load(experiment.data, image_size=experiment.model.image_size)
        labels = data.y_train.numpy()
        clients = len(role.roster.clients)
        shares = divide(labels, experiment.data, clients=clients, seed=role.split_seed, centres=data.centres)
        x, y = data.share(shares[index])
        return Learner(
            configuration,
            x,
            y,
            seed=None if seed is None else client_seed(seed, index),
            device=resolve_device(role.device),
        )

    def keep(round: int, update: Update) -> None:
        if role.verify:
            run.save_update(round, name, words=update.words, values=update.values)

    try:
        settings = ClientSettings(
            address=address,
            keys=role.keys,
            roster=role.roster,
            policy=experiment.policy,
            journal=Journal(run.journal(name)),
            patience=experiment.deadlines.join + experiment.deadlines.train,
            grace=experiment.deadlines.grace,
        )
        with EventLog(run.events(name), name) as log:
            diary = Diary(log, tell(control))
            party = ClientParty(settings, learner, diary, on_update=keep, surroundings=role.surroundings())
            stopwatch = Stopwatch().install()
            ended = await party.run()
            diary.write("work", seconds=dict(stopwatch.seconds))
            return client_outcome(ended)
    except USER_ERRORS as error:
        return explain(error)


def client_seed(seed: int, index: int) -> int:
    """A seed for one client that no other client has."""
    return int(np.random.SeedSequence([seed, index]).generate_state(1, np.uint64)[0])
