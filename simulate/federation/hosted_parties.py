"""The processes of a simulation: they run the same code as hosts, with the hooks of a simulation.

The server has all images, and records the data for --verify. A client process hosts one client, or several that take
turns: each has its own keys, link, machine, journal and log, as in its own process, and its share of the images. All of
them communicate in one event loop, and do long work in one thread, one after the other. A client's results therefore do
not depend on the others.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import torch
import zmq
import zmq.asyncio

from tacit.models.configuration import DataConfiguration, ImagesConfiguration
from tacit.models.data import Dataset, load, read
from tacit.models.datasets.samples import Source
from tacit.models.stimuli import Stimuli
from tacit.models.workload import Labelled
from tacit.parties.hosting.client import ClientHooks, ClientWork
from tacit.parties.hosting.folder import OpenedParty
from tacit.parties.hosting.party_file import ClientFile, ServerFile
from tacit.parties.hosting.running import return_large_pieces, run_party
from tacit.parties.hosting.server import HostedRun, ServerHooks, ServerImages, standing_in
from tacit.parties.learning.keeper import Keeper
from tacit.parties.learning.learner import Learner, Update
from tacit.parties.links.roster import read_roster
from tacit.parties.protections.protection import Protection
from tacit.parties.runs.directory import write_arrays, writing
from tacit.parties.runs.experiment import Experiment
from tacit.parties.runs.reference import experiment_toml
from tacit.parties.session.task import UnusableSumError
from tacit.protocol.core.machine import Ended
from tacit.protocol.core.roster import Roster
from tacit.protocol.session.client import TrainingClient
from tacit.protocol.session.rounds import RoundDone
from tacit.protocol.session.server import TrainingServer
from tacit.protocol.sum.configuration import Configuration
from tacit.secagg.packing import Total
from tacit.simulate.federation import shared_images
from tacit.simulate.federation.child import Control
from tacit.simulate.federation.hosting import shares, weighed
from tacit.simulate.federation.party_files import Surrounded, tell
from tacit.simulate.federation.recording import HeldKey, OpenedSum, OwnWords, Recording
from tacit.simulate.federation.roles import (
    FAILED,
    USER_ERRORS,
    Role,
    client_outcome,
    explain,
    server_outcome,
)

_LOOK_SECONDS = 0.01
"""Polling interval for rounds shown by the supervisor."""
A_VECTOR: Final = 1 << 18
"""Size from which the allocator returns memory to the system at once, so that a client's vectors are freed."""
LEAST_SOCKETS = 64
SOCKETS_PER_CLIENT = 6
"""Its own, and two through which that is watched; while one closes, the next may open."""


async def run_server(control: Control, *, role: Role) -> dict[str, Any]:
    torch.set_num_threads(1)
    try:
        roster = read_roster(role.plan.parties.roster)
        hooks = SimulatedServer(control, role, roster)
        role.write_server()
        outcome = await run_party(role.opened(ServerFile, roster), show=tell(control), hooks=hooks)
        return server_outcome(outcome.ended)
    except USER_ERRORS as error:
        return explain(error)


class SimulatedServer(Surrounded, ServerHooks):
    """The server of a simulation. ValueError and OSError for images that cannot be used."""

    def __init__(self, control: Control, role: Role, roster: Roster) -> None:
        super().__init__()
        plan = role.plan
        self._role = role
        self._control = control
        self._around = role.hooks()
        self._source: Source | None = None
        self._experiment = plan.experiment
        self.sampling = hashlib.sha256(b"sampling %d" % plan.split_seed).digest()
        self.seed = plan.seed
        self.recorded_seed = plan.recorded_seed
        self.command = plan.command
        self.started = plan.started
        self.missing = lambda: control.told.get("missing", {})
        if not plan.experiment.data.factory:
            self._source = read(plan.experiment.data)
            parts = shares(plan.experiment, self._source, plan.split_seed)
            self._experiment = weighed(plan.experiment, parts)
            for client, part in zip(roster.clients, parts, strict=True):
                own = Role(plan, client, role.images)
                with writing(own.indices):
                    np.save(own.indices, part)

    def machine(self) -> Callable[..., TrainingServer]:
        return self._role.server_machine()

    def hosted(self, party: OpenedParty[ServerFile]) -> HostedRun:
        plan = self._role.plan
        return HostedRun(self._experiment, plan.run, plan.completed, plan.split_seed, plan.repeated)

    def summary(self, hosted: HostedRun, ended: Ended) -> None:
        """Do nothing: the supervisor writes the summary after all processes have ended."""

    def images(self, file: ServerFile, experiment: Experiment) -> ServerImages:
        """Return all images, kept for the clients; training images define values that hosts state themselves."""
        wanted: DataConfiguration = experiment.data
        if self._source is None:
            return ServerImages.none()
        if wanted.statistics == "sum":
            wanted = standing_in(wanted, wanted.channels or self._source.train.images.channels)
        data = load(wanted, image_size=experiment.model.image_size, source=self._source)
        shared_images.keep(data.source, self._role.images)
        self._keep_for_hosts(experiment, data)
        stimuli = prepare_stimuli(experiment.protection, data)
        notes = data.source.notes
        return ServerImages(data.source.class_names, *data.normalisation, test=data, stimuli=stimuli, notes=notes)

    def _keep_for_hosts(self, experiment: Experiment, data: Dataset) -> None:
        stated = experiment.data
        if stated.statistics != "sum":
            stated = stated.given(*data.normalisation)
        stated = msgspec.structs.replace(stated, classes=data.source.class_names)
        path = self._role.folder / "experiment.toml"
        with writing(path):
            path.write_text(experiment_toml(msgspec.structs.replace(experiment, data=stated)), encoding="utf-8")

    def opened_sum(self, done: RoundDone, total: Total, keeper: Keeper, configuration: Configuration) -> None:
        plan = self._role.plan
        while plan.step_by_step and self._control.told.get("shown", plan.completed) < done.round - 1:
            if self._control.stopping:
                raise UnusableSumError("the run is stopped")
            time.sleep(_LOOK_SECONDS)
        if plan.verify and done.total is not None:
            bound = configuration.packing().error_bound(len(done.survivors))
            found = {"values": total.values, "bound": bound, "names": list(done.survivors)}
            if configuration.secure:
                found["words"] = done.total
            write_arrays(plan.run.verification(done.round, "sum"), **found)
        if isinstance(self._around, Recording):
            self._around.keep(OpenedSum(done.round, done.survivors, total.values, np.asarray(total.weights)))
        if plan.record_moves:
            plan.run.save_moves(done.round, keeper.mean(total)[1])


def prepare_stimuli(protection: Protection, data: Dataset) -> Stimuli | None:
    """Set aside training images for the server to show, if the protection needs them.

    ValueError for too few, or more than fit.
    """
    shown = protection.shown(data.y_train.numpy(), data.classes)
    return Stimuli.of(data.share(shown)[0]) if len(shown) else None


class Workplace:
    """Resources shared by the clients of one process: the images, the thread for long work, and sockets."""

    def __init__(self, images: Path, clients: int) -> None:
        self.thread = ThreadPoolExecutor(1)
        self.context = zmq.asyncio.Context()
        self.context.set(zmq.MAX_SOCKETS, LEAST_SOCKETS + SOCKETS_PER_CLIENT * clients)
        self._images = images
        self._tests: dict[tuple[Any, ...], Labelled] = {}

    @cached_property
    def source(self) -> Source:
        return shared_images.kept(self._images)

    def test_images(self, data: Dataset) -> Labelled:
        """Return test images and labels, shared by all clients with the same normalisation: they may take most of the
        memory."""
        alike = (data.image_size, data.channels, *data.normalisation)
        if alike not in self._tests:
            self._tests[alike] = (data.x_test, data.y_test)
        return self._tests[alike]


async def run_clients(control: Control, *, roles: Sequence[Role]) -> dict[str, Any]:
    """Run these clients; report the end of each. The status of the process is the worst of theirs."""
    torch.set_num_threads(1)
    if len(roles) > 1:
        # Models and vectors of hundreds of clients, made in one thread and freed in another.
        return_large_pieces(A_VECTOR)
    workplace = Workplace(roles[0].images, len(roles))
    roster = read_roster(roles[0].plan.parties.roster)
    statuses = []

    async def host(role: Role) -> None:
        last: dict[str, Any]
        try:
            last = {"finished": await _run_client(control, role, roster, workplace)}
        except Exception as error:
            last = control.failure(error)
        statuses.append(last.get("finished", {"status": FAILED})["status"])
        control.send({"party": role.name, **last})

    try:
        async with asyncio.TaskGroup() as group:
            for role in roles:
                group.create_task(host(role))
    finally:
        # Let the last messages leave.
        await asyncio.to_thread(workplace.context.term)
    return {"detail": "", "status": max(statuses)}


async def _run_client(control: Control, role: Role, roster: Roster, workplace: Workplace) -> dict[str, Any]:
    try:
        hooks = SimulatedClient(role, roster.index(role.name), workplace)
        hooks.accepted_groups = roster.fingerprint
        outcome = await run_party(role.opened(ClientFile, roster), show=tell(control), hooks=hooks)
        return client_outcome(outcome.ended)
    except USER_ERRORS as error:
        return explain(error)


class SimulatedClient(Surrounded, ClientHooks):
    """A client of a simulation; index: among all clients."""

    def __init__(self, role: Role, index: int, workplace: Workplace) -> None:
        super().__init__(workplace.thread, workplace.context)
        self._role = role
        self._around = role.hooks()
        self._workplace = workplace
        # Its clients are new; the journals hold their privacy spending when a simulation resumes.
        self.spent = 0.0
        seed = role.plan.seed
        self.seed = None if seed is None else client_seed(seed, index)

    def machine(self) -> Callable[..., TrainingClient]:
        """Return the machine; faults strike in the rounds, not in a sum of statistics before them."""
        plan = self._role.plan
        trains = plan.experiment.data.statistics == "given" or plan.run.statistics.is_file()
        return self._role.machine() if trains else TrainingClient

    def source(self, data: ImagesConfiguration) -> Source:
        """Return the images that the server has read, in any process."""
        return self._workplace.source

    def test_images(self, data: Dataset) -> Labelled:
        return self._workplace.test_images(data)

    def contributed(self, round: int, update: Update) -> None:
        plan = self._role.plan
        if plan.verify:
            write_arrays(plan.run.verification(round, self._role.name), words=update.words, values=update.values)
        if isinstance(self._around, Recording):
            self._around.keep(OwnWords(round, update.words.astype(np.uint64)))
            if update.group is not None:
                self._around.keep(HeldKey(round, update.group.key))

    async def ended(self, work: ClientWork, ended: Ended) -> None:
        """Evaluate the last model of a client with layers of its own: no message carries the shared part of the last
        round, but here it is on the disk."""
        learner, run = work.learner, self._role.plan.run

        def judge(learner: Learner) -> None:
            shared = learner.shared(run.model)
            work.judge(learner, learner.plain(shared.astype("<f4").tobytes(), None), None, run.progress().round)

        if learner is not None and learner.personal and ended.code is None:
            await asyncio.get_running_loop().run_in_executor(self._workplace.thread, judge, learner)


def client_seed(seed: int, index: int) -> int:
    return int(np.random.SeedSequence([seed, index]).generate_state(1, np.uint64)[0])
