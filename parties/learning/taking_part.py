"""A client's tasks in a training: it trains, and before that it counts its pixels, if the server asks for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tacit.models.interruption import Proceed
from tacit.models.layout import Flat
from tacit.models.moments import Moments
from tacit.parties.learning.learner import Draft, Learner, Update
from tacit.parties.learning.remembered import Belonging, MemoryFile, Remembered, SetBackError
from tacit.parties.learning.statistics import SCHEME, StatisticsTask, read_statistics_task, statistics_words
from tacit.parties.protections.sides import Group, TaskError
from tacit.parties.session.event_log import EventLog
from tacit.parties.session.events import StateRestored, StatisticsContributed, TrainingFailed
from tacit.parties.session.task import ClientTask, Contribution, RoundWork
from tacit.protocol.group_key.holder import LastModel, Reencrypt
from tacit.protocol.sum.configuration import Configuration

OnModel = Callable[[Learner, Flat, Group | None, int], None]
Count = Callable[[StatisticsTask, Proceed], Moments]


def training_tasks(
    client: str,
    memory: MemoryFile,
    learner: Callable[[Configuration], Learner],
    event_log: EventLog,
    *,
    moments: Count | None = None,
    on_update: Callable[[int, Update], None] = lambda round, update: None,
    on_model: OnModel = lambda learner, model, group, round: None,
) -> Mapping[str, ClientTask]:
    """Make a client's tasks by scheme.

    learner: makes the Learner from the accepted configuration (it may load data); moments: counts the client's own
    pixels, None for one without; on_update: called with every update before it is masked; on_model: called with every
    model of the server that only clients can read, in the clear or with this client's own part, and the number of the
    round that it results from. All are called in the thread of the client's work."""
    learning = LearningTask(client, memory, learner, event_log, on_update, on_model)
    return {"fedavg": learning, "fedsgd": learning, SCHEME: CountingTask(moments, event_log)}


class CountingTask(ClientTask):
    outside = True

    def __init__(self, moments: Count | None, event_log: EventLog) -> None:
        self._moments = moments
        self._event_log = event_log

    def contribute(self, work: RoundWork, proceed: Proceed) -> Contribution:
        task = read_statistics_task(work.configuration)
        if self._moments is None:
            raise TaskError("the server asks for statistics of pixels, and this client has none")
        return Contribution(statistics_words(work.configuration, self._moments(task, proceed)))

    def summed(self) -> None:
        self._event_log.write(StatisticsContributed())


class LearningTask(ClientTask):
    def __init__(
        self,
        client: str,
        memory: MemoryFile,
        learner: Callable[[Configuration], Learner],
        event_log: EventLog,
        on_update: Callable[[int, Update], None],
        on_model: OnModel,
    ) -> None:
        self._client = client
        self._memory = memory
        self._make_learner = learner
        self._event_log = event_log
        self._on_update = on_update
        self._on_model = on_model
        self._fixed: bytes | None = None
        """The fixed part of the model, until the learner has it."""
        self._made: tuple[Configuration, Learner] | None = None
        """The learner, and the configuration that it was made for."""
        self._owner: Belonging | None = None
        """Owner of the persisted state, if there is any."""
        self._written: Remembered | None = None
        """State that the file holds."""

    def take_fixed(self, data: bytes) -> None:
        self._fixed = data

    def contribute(self, work: RoundWork, proceed: Proceed) -> Contribution:
        learner = self._learner(work.configuration)
        group = None if work.key is None else Group(work.key, self._client)
        if learner.reads_alone:
            plain = learner.plain(work.state, work.key)
            self._on_model(learner, plain, group, work.round - 1)
            if group is not None:
                learner.keep_model(work.round - 1, plain)
                self.save()
        try:
            draft = learner.learn(work.round, work.state, group, proceed=proceed)
        except SetBackError as error:
            raise TaskError(
                f"{self._memory.path}: {error}; give the server its newer run again, or delete the file, and this "
                "client goes on as one that is new"
            ) from error
        update = learner.encode(draft)
        proceed()
        self._on_update(work.round, update)
        return Contribution(update.words, lambda: self._keep(learner, draft, update))

    def reencrypt(self, configuration: Configuration, order: Reencrypt) -> bytes:
        return self._learner(configuration).reencrypt(order)

    def read_last(self, configuration: Configuration, round: int, last: LastModel) -> None:
        learner = self._learner(configuration)
        plain = learner.plain(last.model, last.key)
        self._on_model(learner, plain, Group(last.key, self._client), round)
        if learner.remembers:
            # Another session may start from this model.
            learner.keep_model(round, plain)
            self.save()

    def save(self) -> None:
        if self._owner is not None and self._made is not None and self._made[1].remembered is not self._written:
            self._written = self._made[1].remembered
            self._memory.write(self._owner, self._written)
        self.unsaved = False

    def finish(self) -> None:
        if self._owner is not None:
            self._memory.remove()

    def _keep(self, learner: Learner, draft: Draft, update: Update) -> None:
        """Persist a draft that is still wanted; discarded ones never get here."""
        if update.failure:
            self._event_log.write(TrainingFailed(detail=update.failure))
            self.failure = update.failure
        learner.keep(draft)
        self.unsaved = True

    def _learner(self, configuration: Configuration) -> Learner:
        """The learner, made by the first work in the thread, since it may load data. A server that restarted with
        another task needs another one."""
        if self._made is None or self._made[0] != configuration:
            self._owner = self._written = None
            learner = self._make_learner(configuration)
            if learner.remembers:
                self._take_up(learner, Belonging(client=self._client, run=learner.run, layout=configuration.layout))
            self._made = configuration, learner
        if self._fixed is not None:
            self._made[1].take_fixed(self._fixed)
            self._fixed = None
        return self._made[1]

    def _take_up(self, learner: Learner, owner: Belonging) -> None:
        remembered = self._memory.read(owner)
        if remembered is not None:
            try:
                learner.take_up(remembered)
            except TaskError as error:
                raise TaskError(
                    f"{self._memory.path}: {error}; restore it, or delete it, and this client goes on as one that is "
                    "new"
                ) from error
            self._event_log.write(StateRestored(round=remembered.round))
        self._owner = owner
