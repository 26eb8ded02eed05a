"""What a client does beside the protocol, on a host of its own as in a simulation: it takes its images as the task
says, trains on them, and evaluates models that only clients can read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import torch

from tacit.models import checkpoint
from tacit.models.device import resolve_device
from tacit.models.interruption import Proceed
from tacit.models.layout import Flat
from tacit.models.moments import Moments
from tacit.models.training import EVALUATION_BATCH
from tacit.models.workload import Labelled, Workload
from tacit.parties.learning.learner import Learner, Update
from tacit.parties.learning.policy import ClientPolicy
from tacit.parties.learning.statistics import StatisticsTask
from tacit.parties.learning.task import Task, read_task
from tacit.parties.links.keys import PartyKeys
from tacit.parties.protections.sides import Group
from tacit.parties.runs.directory import writing
from tacit.parties.session.client import ClientParty, ClientSettings
from tacit.parties.session.diary import Diary
from tacit.parties.session.journal import JournalFile
from tacit.parties.session.memory_file import MemoryFile
from tacit.parties.session.shell import Surroundings
from tacit.parties.session.stopwatch import Stopwatch
from tacit.protocol.core.machine import Ended
from tacit.protocol.core.roster import Roster
from tacit.protocol.session.client import TrainingClient
from tacit.protocol.sum.configuration import Configuration

REJOIN_SECONDS: Final = 1.0
"""How long a client leaves its server alone after a sum of statistics, until it comes with the training."""


@dataclass(frozen=True)
class ClientImages:
    """A client's own images."""

    train: tuple[Any, torch.Tensor | None] = field(repr=False)
    """Images float32 [N, C, S, S], as the task wants them, and labels int64 [N]; or data of one's own, and None."""
    test: Callable[[], Labelled] | None = field(default=None, repr=False)
    """To evaluate models on that the server cannot evaluate; None if there are none."""


@dataclass(frozen=True, kw_only=True)
class ClientJob:
    """What a client is given."""

    address: str
    keys: PartyKeys
    roster: Roster
    policy: ClientPolicy
    journal: Path
    memory: Path
    """Where what the client remembers goes."""
    plain_model: Path
    """Where a model goes that is encrypted for the server."""
    patience: float
    grace: float
    connect_seconds: float | None = None
    """How long to try to reach the server; None: as long as its patience."""
    seed: int | None = None
    """Of batches and rounding; None draws from the operating system's randomness."""
    device: str = "cpu"
    workload: Workload | None = None
    """What is the client's own, whatever the task names; None imports what the task names."""
    accepted_groups: str = ""
    """The fingerprint of a roster in which it may be in another group than before."""
    keep_roster: Callable[[Roster], None] = lambda roster: None
    """Called with every later version of the roster that it takes up, before the session is over."""


class ClientWork:
    """One client for one session."""

    def __init__(
        self,
        job: ClientJob,
        images: Callable[[Task], ClientImages],
        moments: Callable[[StatisticsTask, Proceed], Moments],
        diary: Diary,
        *,
        on_update: Callable[[int, Update], None] = lambda round, update: None,
        surroundings: Surroundings | None = None,
        make_machine: Callable[..., TrainingClient] = TrainingClient,
    ) -> None:
        self._job = job
        self._make_images = images
        self._moments = moments
        self._diary = diary
        self._on_update = on_update
        self._surroundings = surroundings
        self._make_machine = make_machine
        self._test: Callable[[], Labelled] | None = None
        self.learner: Learner | None = None
        """Once it has begun to work."""

    async def run(self) -> Ended:
        """Join and take part; returns how the session ended, after which another one follows where it was `first`.
        ValueError, OSError, JournalError and EndpointError say what the owner can mend."""
        job = self._job
        settings = ClientSettings(
            address=job.address,
            keys=job.keys,
            roster=job.roster,
            policy=job.policy,
            journal=JournalFile(job.journal),
            memory=MemoryFile(job.memory),
            patience=job.patience,
            grace=job.grace,
            connect_seconds=job.connect_seconds,
            accepted_groups=job.accepted_groups,
            keep_roster=job.keep_roster,
        )
        party = ClientParty(
            settings,
            self._learner,
            self._diary,
            moments=self._moments,
            on_update=self._keep,
            on_model=self.judge,
            surroundings=self._surroundings,
            make_machine=self._make_machine,
        )
        with Stopwatch() as stopwatch:
            ended = await party.run()
        self._diary.write("work", seconds=dict(stopwatch.seconds))
        return ended

    def first(self, ended: Ended) -> bool:
        """Whether what ended so was a sum of statistics, after which the same server comes with the training."""
        return self._diary.outside and ended.code is None

    def judge(self, learner: Learner, model: Flat, group: Group | None, round: int) -> None:
        """Evaluate a model that the server has not: each client its own; of one under a common key the first member,
        who also keeps it."""
        if group is not None and self._job.keys.name != group.key.members[0]:
            return
        if self._test is not None:
            judged = learner.evaluate(model, *self._test(), batch_size=EVALUATION_BATCH)
            self._diary.write(
                "evaluated",
                round=round,
                accuracy=judged.accuracy,
                balanced_accuracy=judged.balanced_accuracy,
                loss=judged.loss,
            )
        if group is None:
            return
        place = self._job.plain_model
        with writing(place):
            checkpoint.save(place, layout=learner.layout, flat=model, metadata={"round": str(round)})

    def _learner(self, configuration: Configuration) -> Learner:
        task, own = read_task(configuration), self._job.workload
        if own is not None:
            own.check(task.model, task.training)
        images = self._make_images(task)
        self._test = images.test
        self.learner = Learner(
            configuration,
            *images.train,
            seed=self._job.seed,
            device=resolve_device(self._job.device),
            workload=own,
            tripwire=self._job.policy.tripwire,
        )
        return self.learner

    def _keep(self, round: int, update: Update) -> None:
        self._on_update(round, update)
        self._diary.write("update", round=round, **asdict(update.local))
