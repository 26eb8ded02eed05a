"""A client's process in a simulation: its share of the experiment's data, which all processes can read."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import torch

from tacit.models import checkpoint
from tacit.models.data import normalise, read
from tacit.models.datasets.samples import Indices, Source
from tacit.models.interruption import Proceed
from tacit.models.moments import Moments, moments
from tacit.models.partition import divide
from tacit.models.workload import Workload
from tacit.parties.hosting.client import REJOIN_SECONDS, ClientImages, ClientJob, ClientWork
from tacit.parties.learning.learner import Learner, Update
from tacit.parties.learning.statistics import StatisticsTask
from tacit.parties.learning.task import Task
from tacit.parties.runs.directory import write_arrays
from tacit.parties.session.diary import Diary
from tacit.parties.session.event_log import EventLog
from tacit.protocol.session.client import TrainingClient
from tacit.simulate.federation.child import Control
from tacit.simulate.federation.roles import USER_ERRORS, Role, client_outcome, explain, tell


async def run_client(control: Control, *, role: Role, address: str) -> dict[str, Any]:
    """Join at the address, and train on this client's share of the data in every round."""
    torch.set_num_threads(1)
    plan, experiment, run, name = role.plan, role.plan.experiment, role.plan.run, role.keys.name
    index = role.roster.index(name)
    seed = experiment.federation.seed

    def share(source: Source) -> Indices:
        labels, clients = source.train.labels, len(role.roster.clients)
        shares = divide(labels, experiment.data, clients=clients, seed=plan.split_seed, centres=source.train.centres)
        # Without what the server shows to everybody.
        return np.setdiff1d(shares[index], experiment.protection.shown(labels, len(source.class_names)))

    def images(task: Task) -> ClientImages:
        if experiment.data.factory:
            own = Workload.named(task.model, task.training, experiment.data.factory)
            return ClientImages(own.share(index, len(role.roster.clients)))
        source = read(experiment.data)
        data = normalise(source, image_size=task.model.image_size, mean=task.mean, std=task.std)
        return ClientImages(data.share(share(source)), lambda: (data.x_test, data.y_test))

    def count(task: StatisticsTask, proceed: Proceed) -> Moments:
        source = read(experiment.data)
        options: dict[str, Any] = {"image_size": task.image_size, "indices": share(source), "proceed": proceed}
        return moments(source.train.images, channels=task.channels, **options)

    def record(round: int, update: Update) -> None:
        if plan.verify:
            write_arrays(run.verification(round, name), words=update.words, values=update.values)

    job = ClientJob(
        address=address,
        keys=role.keys,
        roster=role.roster,
        policy=experiment.policy,
        journal=run.journal(name),
        memory=run.memory(name),
        plain_model=run.plain_model,
        patience=experiment.deadlines.join + experiment.deadlines.train,
        grace=experiment.deadlines.grace,
        seed=None if seed is None else client_seed(seed, index),
        device=plan.device,
        # A resumed run gives everybody new keys, and so every client a group with other ones than its journal has.
        accepted_groups=role.roster.fingerprint,
    )
    try:
        with EventLog(run.events(name), name) as log:
            while True:
                # What is to go wrong goes wrong in the rounds.
                trains = experiment.data.statistics == "given" or run.statistics.is_file()
                work = ClientWork(
                    job,
                    images,
                    count,
                    Diary(log, tell(control)),
                    on_update=record,
                    surroundings=role.surroundings() if trains else None,
                    make_machine=role.machine() if trains else TrainingClient,
                )
                ended = await work.run()
                if not work.first(ended):
                    break
                await asyncio.sleep(REJOIN_SECONDS)

            def judge_last(learner: Learner) -> None:
                """The shared part of the last round is sent to nobody any more, but here it is on the disk."""
                shared, _ = checkpoint.load(run.model, learner.layout)
                work.judge(learner, learner.plain(shared.astype("<f4").tobytes(), None), None, run.progress().round)

            if work.learner is not None and work.learner.personal and ended.code is None:
                await asyncio.to_thread(judge_last, work.learner)
            return client_outcome(ended)
    except USER_ERRORS as error:
        return explain(error)


def client_seed(seed: int, index: int) -> int:
    """A seed for one client that no other client has."""
    return int(np.random.SeedSequence([seed, index]).generate_state(1, np.uint64)[0])
