"""A process of a simulation that hosts clients: one, or several that take turns.

Each client has its own keys, link, machine, journal and log, as in a process of its own, and its share of the images.
All of them talk in one event loop; what takes long they do in one thread, one after the other. So what a client
computes does not depend on who else is there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import zmq
import zmq.asyncio

from tacit.models.data import Dataset, normalise
from tacit.models.datasets.samples import Indices, Source
from tacit.models.interruption import Proceed
from tacit.models.moments import Moments, moments
from tacit.models.workload import Workload
from tacit.parties.hosting.client import REJOIN_SECONDS, ClientImages, ClientJob, ClientWork
from tacit.parties.learning.learner import Learner, Update
from tacit.parties.learning.statistics import StatisticsTask
from tacit.parties.learning.task import Task
from tacit.parties.runs.directory import write_arrays
from tacit.parties.session.event_log import EventFile, EventLog
from tacit.parties.session.shell import Surroundings
from tacit.protocol.session.client import TrainingClient
from tacit.simulate.federation.child import Control
from tacit.simulate.federation.hosting import shares
from tacit.simulate.federation.roles import FAILED, USER_ERRORS, Plan, Role, client_outcome, explain, tell
from tacit.simulate.federation.shared_images import kept

LEAST_SOCKETS = 64
SOCKETS_PER_CLIENT = 6
"""Its own, and two through which that is watched; while one closes, the next may open."""


class Household:
    """What the clients of one process share: the images, the thread in which they take turns, and sockets."""

    def __init__(self, plan: Plan, images: Path, clients: int) -> None:
        self.thread = ThreadPoolExecutor(1)
        self.context = zmq.asyncio.Context()
        self.context.set(zmq.MAX_SOCKETS, LEAST_SOCKETS + SOCKETS_PER_CLIENT * clients)
        self._plan = plan
        self._images = images
        self._data: tuple[Task, Dataset] | None = None

    @cached_property
    def source(self) -> Source:
        """All images."""
        return kept(self._images)

    @cached_property
    def shares(self) -> list[Indices]:
        """The training images of every client of the roster."""
        return shares(self._plan.experiment, self.source, self._plan.split_seed)

    def data(self, task: Task) -> Dataset:
        """The images as the task wants them."""
        if self._data is None or self._data[0] != task:
            size = task.model.image_size
            self._data = task, normalise(self.source, image_size=size, mean=task.mean, std=task.std)
        return self._data[1]


async def run_clients(control: Control, *, roles: Sequence[Role], address: str) -> dict[str, Any]:
    """Have each of these clients join at the address and take part; tells how each of them ended. The status of the
    process is the worst of theirs."""
    torch.set_num_threads(1)
    household = Household(roles[0].plan, roles[0].images, len(roles))
    statuses = []

    async def host(role: Role) -> None:
        ended: dict[str, Any]
        try:
            ended = {"finished": await _run_client(control, role, address, household)}
        except Exception as error:
            ended = control.failure(error)
        statuses.append(ended.get("finished", {"status": FAILED})["status"])
        control.send({"party": role.keys.name, **ended})

    try:
        async with asyncio.TaskGroup() as group:
            for role in roles:
                group.create_task(host(role))
    finally:
        # The last messages leave.
        await asyncio.to_thread(household.context.term)
    return {"detail": "", "status": max(statuses)}


async def _run_client(control: Control, role: Role, address: str, household: Household) -> dict[str, Any]:
    """Join at the address, and train on this client's share of the data in every round."""
    plan, experiment, run, name = role.plan, role.plan.experiment, role.plan.run, role.keys.name
    index = role.roster.index(name)
    recording = role.recording()
    surroundings = recording or Surroundings()
    surroundings.bench, surroundings.context = household.thread, household.context

    def images(task: Task) -> ClientImages:
        if experiment.data.factory:
            own = Workload.named(task.model, task.training, experiment.data.factory)
            return ClientImages(own.share(index, len(role.roster.clients)))
        data = household.data(task)
        return ClientImages(data.share(household.shares[index]), lambda: (data.x_test, data.y_test))

    def count(task: StatisticsTask, proceed: Proceed) -> Moments:
        options: dict[str, Any] = {
            "image_size": task.image_size,
            "indices": household.shares[index],
            "proceed": proceed,
        }
        return moments(household.source.train.images, channels=task.channels, **options)

    def record(round: int, update: Update) -> None:
        if plan.verify:
            write_arrays(run.verification(round, name), words=update.words, values=update.values)
        if recording is not None:
            recording.keep_own(round, update.words)
            if update.group is not None:
                recording.keep_key(round, update.group.key)

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
        seed=None if plan.seed is None else client_seed(plan.seed, index),
        device=plan.device,
        # A resumed run gives everybody new keys, and so every client a group with other ones than its journal has.
        accepted_groups=role.roster.fingerprint,
    )
    try:
        with EventFile(run.events(name), name) as log:
            while True:
                # What is to go wrong goes wrong in the rounds.
                trains = experiment.data.statistics == "given" or run.statistics.is_file()
                work = ClientWork(
                    job,
                    images,
                    count,
                    EventLog(log, tell(control)),
                    on_update=record,
                    surroundings=(trains and role.surroundings()) or surroundings,
                    make_machine=role.machine() if trains else TrainingClient,
                )
                ended = await work.run()
                if not work.first(ended):
                    break
                await asyncio.sleep(REJOIN_SECONDS)

            def judge_last(learner: Learner) -> None:
                """The shared part of the last round is sent to nobody any more, but here it is on the disk."""
                shared = learner.shared(run.model)
                work.judge(learner, learner.plain(shared.astype("<f4").tobytes(), None), None, run.progress().round)

            if work.learner is not None and work.learner.personal and ended.code is None:
                await asyncio.get_running_loop().run_in_executor(household.thread, judge_last, work.learner)
            return client_outcome(ended)
    except USER_ERRORS as error:
        return explain(error)


def client_seed(seed: int, index: int) -> int:
    """A seed for one client that no other client has."""
    return int(np.random.SeedSequence([seed, index]).generate_state(1, np.uint64)[0])
