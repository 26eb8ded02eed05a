"""A client on its own host, and its work in any federation: it reads images, trains, and evaluates models.

With `stay` a client joins one session after the other, and retries with growing delays. It waits for a server that is
not reachable yet. A wrong server, or one that refuses this client, ends a client without `stay`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from tacit.models import checkpoint
from tacit.models.configuration import ImagesConfiguration
from tacit.models.data import Dataset, normalise, read
from tacit.models.datasets.samples import Source
from tacit.models.interruption import Proceed
from tacit.models.layout import Flat
from tacit.models.moments import Moments, moments
from tacit.models.training import EVALUATION_BATCH, resolve_device
from tacit.models.workload import Labelled, Workload, load
from tacit.parties.hosting.folder import OpenedParty, at_work
from tacit.parties.hosting.party_file import ClientFile
from tacit.parties.hosting.running import PartyOutcome
from tacit.parties.learning.learner import Learner, Update
from tacit.parties.learning.remembered import MemoryFile
from tacit.parties.learning.statistics import StatisticsTask
from tacit.parties.learning.taking_part import training_tasks
from tacit.parties.learning.task import Task, check_classes, model_description, read_task
from tacit.parties.links.client_endpoint import CopyError, NotAdmittedError, UnreachableError
from tacit.parties.links.endpoint import EndpointError
from tacit.parties.links.roster import write_roster
from tacit.parties.links.tokens import TokenFile
from tacit.parties.protections.gaussian_noise import cost_within
from tacit.parties.protections.sides import Group, TaskError
from tacit.parties.runs.directory import writing
from tacit.parties.session.client import ClientParty, ClientSettings
from tacit.parties.session.event_log import EventFile, EventLog, Tell
from tacit.parties.session.events import (
    ConnectionFailed,
    InputNoted,
    ModelEvaluated,
    RetryScheduled,
    UpdateComputed,
    WorkMeasured,
)
from tacit.parties.session.journal import JournalFile
from tacit.parties.session.shell import Hooks, Stopwatch
from tacit.parties.session.spending import SpendingFile
from tacit.protocol.core.machine import Ended
from tacit.protocol.core.roster import Roster
from tacit.protocol.session.client import TrainingClient
from tacit.protocol.sum.configuration import Configuration

REJOIN_SECONDS: Final = 1.0
"""Delay before rejoining after a sum of statistics, until the server starts the training."""
CONNECT_SECONDS: Final = 10.0
SHORTEST_PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 60.0
"""Longest delay in seconds before a client with `stay` retries; delays double while sessions fail."""


class ClientHooks(Hooks):
    """Points at which a simulation or an audit changes or records a client; the defaults are those of hosts."""

    seed: int | None = None
    """Seed of batches and rounding; None draws from the operating system's randomness."""
    stay: bool = False
    """Join one session after the other until stopped."""
    accepted_groups: str = ""
    """Fingerprint of a roster in which this client may change its group."""
    spent: float | None = None
    """Privacy spending stated by the owner: epsilon of all former updates, for the delta of its policy."""
    workload: Workload | None = None
    """Custom model, data and training; None: as configured by its file and the server's task."""

    def machine(self) -> Callable[..., TrainingClient]:
        """Factory of the state machine for the next session."""
        return TrainingClient

    def source(self, data: ImagesConfiguration) -> Source:
        """Find the images. ValueError and OSError, naming what is wrong with them."""
        return read(data)

    def test_images(self, data: Dataset) -> Labelled:
        """Prepare the test images of the data set; called in the thread that trains."""
        return data.x_test, data.y_test

    def contributed(self, round: int, update: Update) -> None:
        """The client has computed this update; called in the thread that trains."""

    async def ended(self, work: ClientWork, ended: Ended) -> None:
        """The last session is over."""


class ClientWork:
    """A client's sessions, one after the other, and its part in each."""

    def __init__(
        self, party: OpenedParty[ClientFile], source: Source | None, log: EventFile, tell: Tell, hooks: ClientHooks
    ) -> None:
        self._party = party
        self._source = source
        """Its images; None for custom data."""
        self._roster = party.roster
        self._log = log
        self._tell = tell
        self._hooks = hooks
        self._tokens = None if party.folder.shared else party.folder.tokens
        self._event_log: EventLog
        """Event log of the present session."""
        self._test: Callable[[], Labelled] | None = None
        """Test images for models that the server cannot evaluate; None if there are none."""
        self.learner: Learner | None = None
        """None until it begins to work in the present session."""

    async def follow(self) -> Ended:
        """Take part in sessions until the last one; returns how that ended. ValueError, OSError, JournalError and
        EndpointError carry a remedy for the owner."""
        patience = self._party.file.patience
        pause, said, give_up = SHORTEST_PAUSE, "", time.monotonic() + patience
        while True:
            # An event log counts the traffic of one session.
            self._event_log = event_log = EventLog(self._log, self._tell)
            try:
                held = self._roster
                ended = await self._session()
                said = ""
                if self._roster is not held:
                    # The server continues at once.
                    pause, give_up = SHORTEST_PAUSE, time.monotonic() + patience
                    continue
                if event_log.outside and ended.code is None:
                    # It was a sum of statistics, which the same server follows with the training.
                    give_up = time.monotonic() + patience
                    await asyncio.sleep(REJOIN_SECONDS)
                    continue
                if ended.final or not self._hooks.stay:
                    return ended
                pause = SHORTEST_PAUSE if ended.code is None else min(2 * pause, LONGEST_PAUSE)
                event_log.write(RetryScheduled(seconds=pause))
            except EndpointError as error:
                if str(error) != said:
                    said = str(error)
                    event_log.write(ConnectionFailed(reason=said))
                waited_for = isinstance(error, UnreachableError)
                if isinstance(error, CopyError) and not error.server:
                    raise
                tokens, server, key = self._tokens, self._roster.server, self._party.keys.signing_public
                if isinstance(error, NotAdmittedError) and tokens and TokenFile(tokens).admitted(server, key):
                    # The server's roster had its key and no longer has it: another key needs another process.
                    raise
                if not self._hooks.stay and (not waited_for or time.monotonic() >= give_up):
                    raise
                pause = SHORTEST_PAUSE if waited_for else min(2 * pause, LONGEST_PAUSE)
            await asyncio.sleep(pause)

    async def _session(self) -> Ended:
        """Join one session and take part; returns how it ended."""
        party, hooks, tokens = self._party, self._hooks, TokenFile(self._tokens) if self._tokens else None
        file, folder = party.file, party.folder
        self.learner = self._test = None
        settings = ClientSettings(
            address=file.connect,
            keys=party.keys,
            roster=self._roster,
            policy=file.policy,
            journal=JournalFile(folder.journal(party.name), tokens=tokens),
            tokens=tokens,
            spending=SpendingFile(folder.spending),
            spent=None if hooks.spent is None else cost_within(hooks.spent, file.policy.delta),
            patience=file.patience,
            grace=file.grace,
            connect_seconds=min(CONNECT_SECONDS, file.patience),
            fixed=folder.fixed(party.name),
            accepted_groups=hooks.accepted_groups,
            keep_roster=self._keep_roster,
        )
        tasks = training_tasks(
            party.name,
            MemoryFile(folder.memory(party.name)),
            self._learner,
            self._event_log,
            moments=self._moments,
            on_update=self._keep,
            on_model=self.judge,
        )
        client = ClientParty(settings, tasks, self._event_log, hooks=hooks, make_machine=hooks.machine())
        with Stopwatch() as stopwatch:
            ended = await client.run()
        self._event_log.write(WorkMeasured(seconds=dict(stopwatch.seconds)))
        return ended

    def judge(self, learner: Learner, model: Flat, group: Group | None, round: int) -> None:
        """Evaluate a model that the server does not have: each client its own. Under a common key the first member
        evaluates the model, and saves it."""
        if group is not None and self._party.name != group.key.members[0]:
            return
        if group is not None:
            # Written before the event, so that a reader of the event finds the file.
            place = self._party.folder.plain_model
            with writing(place):
                layout, flat = learner.whole(model)
                metadata = {
                    "round": str(round),
                    **model_description(learner.task, learner.layout, self._class_names()).metadata(),
                }
                checkpoint.save(place, layout=layout, flat=flat, metadata=metadata)
        if self._test is not None:
            judged = learner.evaluate(model, *self._test(), batch_size=EVALUATION_BATCH)
            self._event_log.write(
                ModelEvaluated(
                    round=round,
                    accuracy=judged.accuracy,
                    balanced_accuracy=judged.balanced_accuracy,
                    loss=judged.loss,
                )
            )

    def _class_names(self) -> Sequence[str]:
        return () if self._source is None else self._source.class_names

    def _learner(self, configuration: Configuration) -> Learner:
        task, own, file = read_task(configuration), self._hooks.workload, self._party.file
        if own is not None:
            own.check(task.model, task.training)
        client = 0
        if self._source is None:
            client = self._roster.index(self._party.name)
            sharing = own or Workload.named(task.model, task.training, file.data.factory)
            images, labels = sharing.share(client, len(self._roster.clients))
        else:
            data = _normalised(self._source, task)
            images, labels = data.x_train, data.y_train
            if len(self._source.test.images):
                self._test = partial(self._hooks.test_images, data)
        self.learner = Learner(
            configuration,
            images,
            labels,
            seed=self._hooks.seed,
            device=resolve_device(file.device),
            workload=own,
            tripwire=file.policy.tripwire,
            start=file.start,
            client=client,
        )
        return self.learner

    def _moments(self, task: StatisticsTask, proceed: Proceed) -> Moments:
        if self._source is None:
            raise TaskError("the server asks for statistics of pixels, and this client has none")
        check_classes(task, self._source.class_names)
        images = self._source.train.images
        return moments(images, channels=task.channels, image_size=task.image_size, proceed=proceed)

    def _keep_roster(self, roster: Roster) -> None:
        self._party.folder.keep_roster(roster)
        write_roster(roster, Path(self._party.file.roster), replace=True)
        self._roster = roster

    def _keep(self, round: int, update: Update) -> None:
        self._hooks.contributed(round, update)
        did = update.local
        self._event_log.write(
            UpdateComputed(
                round=round,
                kept=did.kept,
                layers=list(did.layers),
                training_seconds=did.training_seconds,
                choosing_seconds=did.choosing_seconds,
                uncounted=did.uncounted,
            )
        )


async def run_client(party: OpenedParty[ClientFile], *, show: Tell, hooks: ClientHooks | None = None) -> PartyOutcome:
    """Take part in one session or, with `stay`, in all until the last one.

    ValueError and OSError for images that cannot be read; EndpointError, JournalError, EventLogError,
    RosterFileError."""
    hooks, file = hooks or ClientHooks(), party.file
    with at_work(party, show, address=file.connect) as tell:
        if hooks.workload is None and file.data.factory:
            # Checked before there is a session.
            load("data.factory", file.data.factory)
        own_data = hooks.workload is not None or file.data.factory
        source = None if own_data else own_images(file, hooks.source)
        with EventFile(party.folder.events(party.name), party.name) as log:
            for note in source.notes if source else ():
                EventLog(log, tell).write(InputNoted(detail=note))
            work = ClientWork(party, source, log, tell, hooks)
            ended = await work.follow()
            await hooks.ended(work, ended)
            return PartyOutcome(ended)


def own_images(file: ClientFile, find: Callable[[ImagesConfiguration], Source] = read) -> Source:
    """Find this host's images. ValueError and OSError, naming what is wrong with them."""
    source, chosen = find(file.data), file.data.indices
    if not len(source.train.images):
        raise ValueError(f"data.source {file.data.source!r} holds no training images")
    if not chosen:
        return source
    count = len(source.train.images)
    try:
        with open(chosen, "rb") as file_of_indices:
            # Not numpy.load, which also opens zip files and reports a damaged one by errors of its own.
            indices = np.lib.format.read_array(file_of_indices, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise ValueError(f"data.indices {chosen!r} is no list of int64 ({error}): write one with numpy.save") from None
    if indices.ndim != 1 or indices.dtype != np.int64 or not len(indices):
        raise ValueError(f"data.indices {chosen!r} is no list of int64: write one with numpy.save")
    if not 0 <= int(indices.min()) <= int(indices.max()) < count:
        raise ValueError(f"data.indices {chosen!r} names images that {file.data.source!r} lacks: it has {count}")
    return replace(source, train=source.train.part(indices))


def _normalised(source: Source, task: Task) -> Dataset:
    """The images in the format of the task. TaskError if it is not for images of these classes."""
    if len(task.mean) != task.channels:
        raise TaskError(
            "the server's task does not say by which mean and deviation images are normalised: it is one for data "
            "of the clients' own; name a data.factory"
        )
    check_classes(task, source.class_names)
    return normalise(source, image_size=task.model.image_size, mean=task.mean, std=task.std)
