"""Live parties for the kit: our own, with real endpoints, machines and journals, in a thread with a loop of its own.

Only what they learn is made up: a client contributes random values, a server moves a flat model by their mean.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest

import tacit.parties.session.shell
from tacit.parties.links.keys import PartyKeys, generate, save
from tacit.parties.links.roster import write_roster
from tacit.parties.session.client import ClientParty, ClientSettings
from tacit.parties.session.event_log import EventFile, EventLog
from tacit.parties.session.journal import JournalFile
from tacit.parties.session.server import Evaluation, ServerParty, ServerSettings
from tacit.parties.session.task import ServerTask
from tacit.protocol.core.roster import Roster
from tacit.protocol.session.client import TrainingClient
from tacit.protocol.sum.configuration import Configuration
from tacit.protocol.sum.policy import Policy
from tacit.secagg.packing import Total
from tacit.simulate.conformance.peer.own_client import DrawingTask
from tacit.simulate.conformance.peer.play import Addresses, Side, play
from tacit.simulate.conformance.peer.script import PeerVerdict, draw_model
from tacit.simulate.world.federation import small_configuration

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(Path(__file__).parent)
    from live_party import SECONDS, free_address, running

PHASE_SECONDS = 20.0  # One case waits for it; on a busy machine a flood took longer than 1.5.


class FlatKeeper(ServerTask):
    def __init__(self, configuration: Configuration, step: float) -> None:
        self._configuration, self._step = configuration, step
        self._flat = np.frombuffer(draw_model(configuration), "<f4")

    @property
    def bytes(self) -> bytes:
        return self._flat.astype("<f4").tobytes()

    def decode(self, words: Any, contributors: int) -> Total:
        return self._configuration.packing().decode(words, contributors=contributors)

    def apply(self, total: Total, vectors: Any = None, *, round: int = 1) -> None:
        self._flat = (self._flat + self._step * total.mean()[0]).astype(np.float32)


@dataclass
class Bench:
    """A roster, the directory of the kit, and a live party. told: what the kit asked its user to do."""

    directory: Path
    clients: int
    keys: dict[str, PartyKeys] = field(init=False)
    told: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        names = ["server", *(f"client-{number}" for number in range(1, self.clients + 1))]
        self.keys = {name: generate(name) for name in names}
        self.roster = Roster(
            tuple(own.member("server" if name == "server" else "client") for name, own in self.keys.items())
        )
        self.configuration = small_configuration(self.clients, graph="complete", phase_seconds=PHASE_SECONDS)
        self.address = free_address()

    def give_keys(self, *names: str) -> Path:
        kit = self.directory / "kit"
        kit.mkdir()
        write_roster(self.roster, kit / "roster.toml")
        for name in names:
            save(self.keys[name], kit, role=self.roster.member(name).role)
        return kit

    def play(self, side: Side, *names: str) -> dict[str, PeerVerdict]:
        live = self.clients_of_roster[-1] if side == "server" else "server"
        kit = self.give_keys(*(name for name in self.keys if name != live))
        playing = play(Addresses(self.address), side, kit, names=names, wait=SECONDS, tell=self.told.append)
        return {verdict.case: verdict for verdict in asyncio.run(playing).cases}

    @property
    def clients_of_roster(self) -> tuple[str, ...]:
        return self.roster.clients

    @contextlib.contextmanager
    def live_client(
        self, policy: Policy | None = None, *, make_machine: type[TrainingClient] = TrainingClient
    ) -> Iterator[None]:
        """The last client of the roster, started again whenever it ends."""
        name = self.clients_of_roster[-1]
        settings = ClientSettings(
            address=self.address,
            keys=self.keys[name],
            roster=self.roster,
            policy=policy or Policy(),
            journal=JournalFile(self.directory / "journal"),
            patience=SECONDS,
            grace=0.2,
        )
        with running(
            lambda: ClientParty(settings, {"fedavg": DrawingTask()}, self._event_log(), make_machine=make_machine).run()
        ):
            yield

    @contextlib.contextmanager
    def live_server(self, step: float = 1.0) -> Iterator[None]:
        """The server, started again whenever it ends; step: how far it follows the mean of the updates."""
        settings = ServerSettings(
            address=self.address,
            keys=self.keys["server"],
            roster=self.roster,
            configuration=self.configuration,
            rounds=1_000,
            completed=0,
            smallest_cohort=3,
            join_seconds=SECONDS,
            grace=0.2,
        )

        def party() -> ServerParty:
            keeper = FlatKeeper(self.configuration, step)
            return ServerParty(settings, keeper, self._event_log(), on_round=lambda done, total: Evaluation())

        with running(lambda: party().run()):
            yield

    def _event_log(self) -> EventLog:
        return EventLog(EventFile(self.directory / "events", "live"), lambda event: None)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Bench]:
    # A server that is stopped looks up this often.
    monkeypatch.setattr(tacit.parties.session.shell, "ALIVE_SECONDS", 0.05)
    return lambda clients: Bench(Path(mkdtemp(dir=tmp_path)), clients)
