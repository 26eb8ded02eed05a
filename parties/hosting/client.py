"""A client on its own host, and its work in any federation: it reads images, trains, and evaluates models.

With `stay` a client joins one session after the other, and retries with growing delays. It waits for a server that is
not reachable yet. A wrong server, or one that refuses this client, ends a client without `stay`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

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
from tacit.parties.learning.policy import ClientPolicy
from tacit.parties.learning.remembered import MemoryFile
from tacit.parties.learning.statistics import StatisticsTask
from tacit.parties.learning.taking_part import training_tasks
from tacit.parties.learning.task import Task, check_classes, model_description, read_task
from tacit.parties.links.client_endpoint import CopyError, NotAdmittedError, UnreachableError
from tacit.parties.links.endpoint import EndpointError
from tacit.parties.links.keys import PartyKeys
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


@dataclass(frozen=True)
class ClientImages:
    train: tuple[Any, torch.Tensor | None] = field(repr=False)
    """Images float32 [N, C, S, S] in the task's format, and labels int64 [N]; or custom data, and None."""
    test: Callable[[], Labelled] | None = field(default=None, repr=False)
    """Test images for models that the server cannot evaluate; None if there are none."""
    class_names: tuple[str, ...] = ()
    client: int = 0


@dataclass(frozen=True, kw_only=True)
class ClientJob:
    address: str
    keys: PartyKeys
    roster: Roster
    policy: ClientPolicy
    journal: Path
    tokens: Path | None
    """File of link tokens; None: copies of the folder are not detected."""
    spending: Path
    memory: Path
    fixed: Path | None
    plain_model: Path
    patience: float
    grace: float
    connect_seconds: float
    device: str = "cpu"
    start: str = ""
    workload: Workload | None = None
    """The client's own functions, whatever the task names; None imports the task's."""
    accepted_groups: str = ""
    """Fingerprint of a roster in which this client may change its group."""
    spent: float | None = None
    keep_roster: Callable[[Roster], None] = lambda roster: None
    """Called with every later version of the roster that it adopts, before the session is over."""


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
    def __init__(
        self,
        job: ClientJob,
        images: Callable[[Task], ClientImages],
        moments: Callable[[StatisticsTask, Proceed], Moments],
        event_log: EventLog,
        hooks: ClientHooks,
    ) -> None:
        self._job = job
        self._make_images = images
        self._moments = moments
        self._event_log = event_log
        self._hooks = hooks
        self._test: Callable[[], Labelled] | None = None
        self._class_names: tuple[str, ...] = ()
        self.learner: Learner | None = None
        """None until it begins to work."""

    async def run(self) -> Ended:
        """Join and take part; returns how the session ended. Another session follows if it was `first`. ValueError,
        OSError, JournalError and EndpointError carry a remedy for the owner."""
        job = self._job
        tokens = TokenFile(job.tokens) if job.tokens else None
        settings = ClientSettings(
            address=job.address,
            keys=job.keys,
            roster=job.roster,
            policy=job.policy,
            journal=JournalFile(job.journal, tokens=tokens),
            tokens=tokens,
            spending=SpendingFile(job.spending),
            spent=job.spent,
            patience=job.patience,
            grace=job.grace,
            connect_seconds=job.connect_seconds,
            fixed=job.fixed,
            accepted_groups=job.accepted_groups,
            keep_roster=job.keep_roster,
        )
        tasks = training_tasks(
            job.keys.name,
            MemoryFile(job.memory),
            self._learner,
            self._event_log,
            moments=self._moments,
            on_update=self._keep,
            on_model=self.judge,
        )
        party = ClientParty(
            settings,
            tasks,
            self._event_log,
            hooks=self._hooks,
            make_machine=self._hooks.machine(),
        )
        with Stopwatch() as stopwatch:
            ended = await party.run()
        self._event_log.write(WorkMeasured(seconds=dict(stopwatch.seconds)))
        return ended

    def first(self, ended: Ended) -> bool:
        """Return whether this session was a sum of statistics, which the same server follows with the training."""
        return self._event_log.outside and ended.code is None

    def judge(self, learner: Learner, model: Flat, group: Group | None, round: int) -> None:
        """Evaluate a model that the server does not have: each client its own. Under a common key the first member
        evaluates the model, and saves it."""
        if group is not None and self._job.keys.name != group.key.members[0]:
            return
        if group is not None:
            # Written before the event, so that a reader of the event finds the file.
            place = self._job.plain_model
            with writing(place):
                layout, flat = learner.whole(model)
                metadata = {
                    "round": str(round),
                    **model_description(learner.task, learner.layout, self._class_names).metadata(),
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

    def _learner(self, configuration: Configuration) -> Learner:
        task, own = read_task(configuration), self._job.workload
        if own is not None:
            own.check(task.model, task.training)
        images = self._make_images(task)
        self._test, self._class_names = images.test, images.class_names
        self.learner = Learner(
            configuration,
            *images.train,
            seed=self._hooks.seed,
            device=resolve_device(self._job.device),
            workload=own,
            tripwire=self._job.policy.tripwire,
            start=self._job.start,
            client=images.client,
        )
        return self.learner

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


CONNECT_SECONDS: Final = 10.0
SHORTEST_PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 60.0
"""Longest delay in seconds before a client with `stay` retries; delays double while sessions fail."""


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
            sessions = _Sessions(party, source, log, tell, hooks)
            ended = await sessions.follow()
            await hooks.ended(sessions.work, ended)
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


class _Sessions:
    def __init__(
        self,
        party: OpenedParty[ClientFile],
        source: Source | None,
        log: EventFile,
        tell: Tell,
        hooks: ClientHooks,
    ) -> None:
        file = party.file
        self._hooks = hooks
        self.work: ClientWork
        """The work of the last session."""
        self._job = ClientJob(
            address=file.connect,
            keys=party.keys,
            roster=party.roster,
            policy=file.policy,
            journal=party.folder.journal(party.name),
            tokens=None if party.folder.shared else party.folder.tokens,
            spending=party.folder.spending,
            memory=party.folder.memory(party.name),
            plain_model=party.folder.plain_model,
            fixed=party.folder.fixed(party.name),
            patience=file.patience,
            grace=file.grace,
            connect_seconds=min(CONNECT_SECONDS, file.patience),
            device=file.device,
            start=file.start,
            accepted_groups=hooks.accepted_groups,
            spent=None if hooks.spent is None else cost_within(hooks.spent, file.policy.delta),
            workload=hooks.workload,
            keep_roster=self._keep_roster,
        )
        self._roster_file = Path(file.roster)
        self._keep_taken = party.folder.keep_roster
        self._source = source
        self._data = file.data.factory
        self._log = log
        self._tell = tell

    async def follow(self) -> Ended:
        pause, said, give_up = SHORTEST_PAUSE, "", time.monotonic() + self._job.patience
        while True:
            # An event log counts the traffic of one session.
            event_log = EventLog(self._log, self._tell)
            try:
                held = self._job.roster
                self.work = work = ClientWork(self._job, self._images, self._moments, event_log, self._hooks)
                ended = await work.run()
                said = ""
                if self._job.roster is not held:
                    # The server continues at once.
                    pause, give_up = SHORTEST_PAUSE, time.monotonic() + self._job.patience
                    continue
                if work.first(ended):
                    give_up = time.monotonic() + self._job.patience
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
                tokens, server, key = self._job.tokens, self._job.roster.server, self._job.keys.signing_public
                if isinstance(error, NotAdmittedError) and tokens and TokenFile(tokens).admitted(server, key):
                    # The server's roster had its key and no longer has it: another key needs another process.
                    raise
                if not self._hooks.stay and (not waited_for or time.monotonic() >= give_up):
                    raise
                pause = SHORTEST_PAUSE if waited_for else min(2 * pause, LONGEST_PAUSE)
            await asyncio.sleep(pause)

    def _keep_roster(self, roster: Roster) -> None:
        self._keep_taken(roster)
        write_roster(roster, self._roster_file, replace=True)
        self._job = replace(self._job, roster=roster)

    def _moments(self, task: StatisticsTask, proceed: Proceed) -> Moments:
        if self._source is None:
            raise TaskError("the server asks for statistics of pixels, and this client has none")
        check_classes(task, self._source.class_names)
        images = self._source.train.images
        return moments(images, channels=task.channels, image_size=task.image_size, proceed=proceed)

    def _images(self, task: Task) -> ClientImages:
        if self._source is None:
            roster, name = self._job.roster, self._job.keys.name
            own = self._job.workload or Workload.named(task.model, task.training, self._data)
            client = roster.index(name)
            return ClientImages(own.share(client, len(roster.clients)), client=client)
        if len(task.mean) != task.channels:
            raise TaskError(
                "the server's task does not say by which mean and deviation images are normalised: it is one for data "
                "of the clients' own; name a data.factory"
            )
        check_classes(task, self._source.class_names)
        data = normalise(self._source, image_size=task.model.image_size, mean=task.mean, std=task.std)
        tests = partial(self._hooks.test_images, data) if len(self._source.test.images) else None
        return ClientImages((data.x_train, data.y_train), tests, tuple(self._source.class_names))
