"""Parties with fresh keys on the loopback interface, a way to wait for an event, and a whole small federation."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pytest
import torch

from tacit.models.configuration import ModelConfiguration, TrainingConfiguration
from tacit.models.interruption import Proceed
from tacit.models.moments import Moments
from tacit.parties.learning.keeper import Keeper
from tacit.parties.learning.learner import Learner, Update
from tacit.parties.learning.policy import ClientPolicy
from tacit.parties.learning.remembered import MemoryFile
from tacit.parties.learning.statistics import StatisticsTask
from tacit.parties.learning.taking_part import OnModel, training_tasks
from tacit.parties.learning.task import Task, configure
from tacit.parties.links.endpoint import Endpoint, Event
from tacit.parties.links.keys import PartyKeys, generate
from tacit.parties.protections.catalogue import read_protection
from tacit.parties.protections.encryption import Encryption
from tacit.parties.protections.none import NoProtection
from tacit.parties.protections.protection import Protection
from tacit.parties.runs.experiment import Aggregation, Deadlines, Experiment
from tacit.parties.runs.experiment import FederationSection as Cohort
from tacit.parties.session.client import ClientParty, ClientSettings
from tacit.parties.session.event_log import EventFile, EventLog, EventT
from tacit.parties.session.events import ListeningStarted
from tacit.parties.session.journal import JournalFile
from tacit.parties.session.server import Evaluation, OnRound, ServerParty, ServerSettings
from tacit.parties.session.spending import SpendingFile
from tacit.protocol.core.events import Event as LoggedEvent
from tacit.protocol.core.machine import Ended
from tacit.protocol.core.roster import Roster
from tacit.protocol.session.rounds import RoundDone
from tacit.protocol.sum.configuration import Configuration
from tacit.secagg.packing import Total

# Only how long a broken test hangs; no test passes or fails by it otherwise.
PATIENCE_SECONDS = 30

Kind = TypeVar("Kind", bound=Event)
Until = Callable[[Endpoint, type[Kind]], Awaitable[Kind]]


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Sums in a fixed order; threads that wait for each other make small models slow."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def keys() -> dict[str, PartyKeys]:
    return {name: generate(name) for name in ("server", "alice", "bob", "stranger")}


@pytest.fixture(scope="session")
def roster(keys: dict[str, PartyKeys]) -> Roster:
    return Roster((keys["server"].member("server"), keys["alice"].member("client"), keys["bob"].member("client")))


@pytest.fixture
def until() -> Until:
    """until(endpoint, kind) receives until an event of that kind comes, and returns it."""

    async def until(endpoint: Endpoint, kind: type[Kind]) -> Kind:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not isinstance(event := await endpoint.receive(), kind):
                pass
            return event

    return until


CLIENTS = ("client-1", "client-2", "client-3", "client-4")
SECONDS = 180.0  # Deadlines that no test reaches.
GRACE = 0.2
SAMPLES = 6
OnUpdate = Callable[[int, Update], None]


def accepting(protection: Protection) -> ClientPolicy:
    return ClientPolicy(uncoordinated_weights=protection.contributors_vary)


TRAINING = TrainingConfiguration(epochs=1, batch_size=6)


def proposal(
    protection: Protection,
    encryption: Encryption | None,
    width: int,
    train: tuple[str, ...] = (),
    training: TrainingConfiguration = TRAINING,
) -> tuple[Configuration, torch.nn.Module]:
    experiment = Experiment(
        federation=Cohort(clients=len(CLIENTS)),
        model=ModelConfiguration(image_size=8, patch_size=4, width=width, depth=1, heads=2, train=train),
        training=training,
        protection=protection,
        encryption=encryption,
        aggregation=Aggregation(graph="complete", clip=0.5, max_weight=SAMPLES),
        deadlines=Deadlines(train=SECONDS, phase=SECONDS),
        policy=accepting(protection),
    )
    task = Task(
        model=experiment.model.architecture,
        training=experiment.training,
        protection=protection,
        encryption=encryption,
        classes=3,
        channels=1,
    )
    model = task.build(seed=3)
    return configure(experiment.terms(), task, model), model


@dataclass
class Federation:
    """Starts parties as tasks of this process, and knows what they said."""

    directory: Path
    protection: Protection = NoProtection()  # noqa: RUF009
    encryption: Encryption | None = None
    clients: ClassVar = CLIENTS
    samples: ClassVar = SAMPLES
    seconds: ClassVar = SECONDS
    grace: float = GRACE
    regather: float = 0.0
    participants: int | None = None
    """Clients of whom every round draws its cohort."""
    width: int = 8
    """Of the model."""
    train: tuple[str, ...] = ()
    """Patterns of what is trained of it."""
    training: TrainingConfiguration = TRAINING
    keys: dict[str, PartyKeys] = field(default_factory=lambda: {n: generate(n) for n in ("server", *CLIENTS)})
    told: dict[str, list[LoggedEvent]] = field(default_factory=dict)
    news: dict[tuple[str, type[LoggedEvent]], asyncio.Event] = field(default_factory=dict)
    rounds: list[tuple[RoundDone, Total | None]] = field(default_factory=list)
    keeper: Keeper = field(init=False)
    address: str = ""

    def __post_init__(self) -> None:
        self.roster = Roster(
            tuple(own.member("server" if name == "server" else "client") for name, own in self.keys.items())
        )
        self.configuration, model = proposal(self.protection, self.encryption, self.width, self.train, self.training)
        self.keeper = Keeper(self.configuration, model)

    async def serve(self, *, rounds: int, completed: int = 0, on_round: OnRound | None = None) -> Any:
        task = asyncio.create_task(self.server_party(rounds=rounds, completed=completed, on_round=on_round).run())
        await self.event("server", ListeningStarted)
        self.address = self.events("server", ListeningStarted)[-1].address
        return task

    def server_party(self, *, rounds: int, completed: int = 0, on_round: OnRound | None = None) -> Any:
        settings = ServerSettings(
            address="tcp://127.0.0.1:*",
            keys=self.keys["server"],
            roster=self.roster,
            configuration=self.configuration,
            rounds=rounds,
            completed=completed,
            smallest_cohort=3,
            join_seconds=SECONDS,
            grace=self.grace,
            regather_seconds=self.regather,
            spending=SpendingFile(self.directory / "server.spending"),
            participants=self.participants,
        )

        def note(done: RoundDone, total: Total | None) -> Evaluation:
            self.rounds.append((done, total))
            return Evaluation(accuracy=0.5)

        return ServerParty(settings, self.keeper, self.event_log("server"), on_round=on_round or note)

    def join(self, name: str, **options: Any) -> asyncio.Task[Ended]:
        return asyncio.create_task(self.client_party(name, **options).run())

    def client_party(
        self,
        name: str,
        *,
        keys: PartyKeys | None = None,
        roster: Roster | None = None,
        policy: ClientPolicy | None = None,
        patience: float = SECONDS,
        spent: float | None = None,
        on_update: OnUpdate = lambda round, update: None,
        on_model: OnModel = lambda learner, model, group, round: None,
        make: Callable[[Configuration], Learner] | None = None,
        moments: Callable[[StatisticsTask, Proceed], Moments] | None = None,
    ) -> Any:
        settings = ClientSettings(
            address=self.address,
            keys=keys or self.keys[name],
            roster=roster or self.roster,
            policy=policy or accepting(self.protection),
            journal=JournalFile(self.journal(name)),
            patience=patience,
            spent=spent,
            spending=SpendingFile(self.directory / f"{name}.spending"),
            grace=self.grace,
            fixed=self.directory / f"{name}.fixed",
        )
        event_log, own = self.event_log(name), make or self.learner
        memory = MemoryFile(self.memory(name))
        tasks = training_tasks(name, memory, own, event_log, moments=moments, on_update=on_update, on_model=on_model)
        return ClientParty(settings, tasks, event_log)

    def event_log(self, name: str) -> EventLog:
        said = self.told.setdefault(name, [])

        def tell(event: LoggedEvent) -> None:
            said.append(event)
            self._flag(name, type(event)).set()

        return EventLog(EventFile(self.directory / f"{name}.events", name), tell)

    def journal(self, name: str) -> Path:
        return self.directory / f"{name}.journal"

    def memory(self, name: str) -> Path:
        return self.directory / "memory" / f"{name}.safetensors"

    async def event(self, name: str, kind: type[LoggedEvent]) -> None:
        async with asyncio.timeout(SECONDS):
            await self._flag(name, kind).wait()

    def events(self, name: str, kind: type[EventT]) -> list[EventT]:
        return [event for event in self.told[name] if isinstance(event, kind)]

    def _flag(self, name: str, kind: type[LoggedEvent]) -> asyncio.Event:
        return self.news.setdefault((name, kind), asyncio.Event())

    @staticmethod
    def learner(configuration: Configuration) -> Learner:
        x = torch.randn(SAMPLES, 1, 8, 8, generator=torch.Generator().manual_seed(1))
        return Learner(configuration, x, torch.arange(SAMPLES) % 3, seed=None, device=torch.device("cpu"))

    @staticmethod
    async def all_of(*tasks: asyncio.Task[Ended]) -> list[Ended]:
        async with asyncio.timeout(SECONDS):
            return await asyncio.gather(*tasks)

    @staticmethod
    async def vanish(task: asyncio.Task[Ended]) -> None:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    return Federation(tmp_path)


@pytest.fixture
def protected(tmp_path: Path) -> Callable[..., Federation]:
    """protected(encryption, scheme=, ...) is a federation with this [protection], in a directory of its own."""

    def protected(
        encryption: Encryption | None = None,
        *,
        width: int = 8,
        train: tuple[str, ...] = (),
        training: TrainingConfiguration = TRAINING,
        **protection: Any,
    ) -> Federation:
        directory = tmp_path / str(len(list(tmp_path.iterdir())))
        directory.mkdir()
        return Federation(
            directory, read_protection(protection), encryption, width=width, train=train, training=training
        )

    return protected
