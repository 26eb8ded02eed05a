"""One run of a federation under random faults, with real journals and real model files on simulated disks.

Faults happen in the first minutes; operators start again what was killed, or ended with a code. After that nobody does,
and whoever is there must come to an end. The rules hold at every moment, whatever the faults:

- a sum is that of its survivors;
- nobody sends anything of a sum before its journal tells so after any failure of power;
- nobody enters the same round of a session twice;
- the server's disk always holds a whole model, and after a failure of power the last one that it went on from;
- everybody ends.

Where links only delay, or are down for less than the grace, all rounds are run with everybody in their cohorts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from random import Random
from typing import Final

import numpy as np

from tacit.models import checkpoint
from tacit.models.layout import Layout, LayoutEntry
from tacit.parties.session.journal import JournalFile
from tacit.protocol.core.machine import Ended, Output
from tacit.protocol.session.rounds import Journal, JournalEntry, RoundDone
from tacit.protocol.session.states import SUM_TO_SERVER, SessionState, TrainingState
from tacit.simulate.world.disk import SimulatedDisk
from tacit.simulate.world.federation import JOURNAL, MODEL, SERVER, MemoryFederation, small_configuration
from tacit.simulate.world.world import Conduct, Parcel
from tests.campaigns.defects import DEFECTS

CLIENTS: Final = 5
ROUNDS: Final = 3
DISTURBED: Final = 100.0
"""Seconds in which faults begin; without any, all is over then."""
CALM_AFTER: Final = 300.0
"""Seconds after which nobody is killed or started again."""
LAYOUT: Final = Layout((LayoutEntry("weights", (10,)),))


@dataclass(frozen=True, kw_only=True)
class Campaign:
    """Which faults happen. A kill takes the process of a client or of the server, or the power of its host."""

    conduct: Conduct
    cuts: int = 0
    """Links that are down for a while, shorter than the grace."""
    kills: int = 0

    @property
    def bearable(self) -> bool:
        """Whether nothing happens that machines must not bear without loss."""
        return self.conduct == Conduct(most_delay=self.conduct.most_delay) and not self.kills


CAMPAIGNS: Final[Mapping[str, Campaign]] = {
    "slow-links": Campaign(conduct=Conduct(most_delay=0.5), cuts=6),
    "kills": Campaign(conduct=Conduct(most_delay=0.5), cuts=2, kills=8),
    "broken-links": Campaign(
        conduct=Conduct(most_delay=0.5, loss=0.01, repetition=0.01, overtaking=0.01), cuts=2, kills=2
    ),
}


class RuleBroken(Exception):
    """A run breaks a rule; the message says which, and with which command the run is repeated."""


class WatchedDisk(SimulatedDisk):
    def __init__(self, look: Callable[[SimulatedDisk], None]) -> None:
        super().__init__()
        self._look = look

    def _operate(self) -> None:
        self._look(self)
        super()._operate()


class DisturbedFederation(MemoryFederation):
    """A federation with the disturbances of a campaign on its agenda."""

    def __init__(self, campaign: Campaign, seed: int) -> None:
        self._random = Random(seed)
        self._starting: set[str] = set()
        """Who was killed or has ended, and is to be started again."""
        mode = self._random.choice(["active", "semi-honest"])
        super().__init__(
            small_configuration(CLIENTS, mode=mode),
            CLIENTS,
            rounds=ROUNDS,
            seed=seed.to_bytes(8, "little"),
        )
        self.campaign = campaign
        self.network.conduct = campaign.conduct
        self.training_seconds = lambda: self._random.uniform(0.0, 20.0)
        self.sums = 0
        self.saved = False
        """Whether there was ever a model on the server's disk."""
        self._entered: set[tuple[str, bytes, int]] = set()
        """Who entered which round of which session."""
        self.disks[SERVER] = WatchedDisk(self._check_model)
        self._save(0)
        for act, times in ((self._cut, campaign.cuts), (self._strike, campaign.kills)):
            for _ in range(times):
                self.at(self._random.uniform(0.0, DISTURBED), act)
        self.at(CALM_AFTER, self._disarm)
        for name in self.roster.clients:
            self.at(self._random.uniform(0.0, 5.0), partial(self.start_client, name))

    @contextmanager
    def process(self, party: str) -> Iterator[None]:
        with super().process(party):
            yield
        if party in self.dead:
            self._start_again(party)

    def check_ends(self) -> None:
        for name, client in self.clients.items():
            self._require(client.state is TrainingState.ENDED, f"{name} does not end, in {client.state.name}")
        self._require(self.clients.keys() == {*self.roster.clients}, "a client that was killed is not started again")
        self._require(self.server.state is SessionState.ENDED, f"the server does not end, in {self.server.state.name}")
        if self.campaign.bearable:
            held = self.outcome(RoundDone)
            self._require(len(held) == ROUNDS, "not all rounds are done")
            self._require(all(done.survivors == done.cohort for done in held), "a round is run without some")
            codes = {ended.code for ended in self.outcome(Ended)}
            self._require(codes == {None}, f"somebody ends with {codes}")

    def digest(self) -> str:
        """Of everything that was delivered, and of the time at the end: of the whole run."""
        digest = sha256(repr(self.now).encode())
        for parcel in self.log:
            digest.update(repr((parcel.sender, parcel.receiver)).encode() + b"".join(map(bytes, parcel.frames)))
        return digest.hexdigest()

    def carried(self, party: str, output: Output) -> Parcel | None:
        parcel = super().carried(party, output)
        if parcel is not None and parcel.packet.kind in SUM_TO_SERVER:
            envelope = parcel.packet.envelope
            for disk in self.disks[party].aftermaths():
                entered = {
                    (entry.session, entry.round)
                    for entry in JournalFile(JOURNAL, disk).read()
                    if isinstance(entry, JournalEntry)
                }
                self._require(
                    (envelope.session, envelope.round) in entered,
                    f"{parcel.kind} of {party} leaves before its journal is on the disk",
                )
        return parcel

    def act(self, party: str, output: Output) -> None:
        super().act(party, output)
        if isinstance(output, RoundDone) and output.total is not None:
            self.sums += 1
            self._require(np.array_equal(output.total, self.plain_sum(output)), "a sum is not that of its survivors")
        elif isinstance(output, Journal) and isinstance(output.entry, JournalEntry):
            place = (party, output.entry.session, output.entry.round)
            self._require(place not in self._entered, f"{party} enters a round twice")
            self._entered.add(place)
        elif isinstance(output, Ended) and output.code is not None:
            self._start_again(party)

    def apply(self, done: RoundDone) -> str:
        super().apply(done)
        self._save(done.round)
        return ""

    def kill(self, name: str) -> None:
        """What is under way from it is lost or has arrived; the others learn that the link is lost."""
        if name in self.clients and name not in self.network.cut and self._random.random() < 0.5:
            for parcel in self.network.under_way(name, SERVER):
                self.put(parcel)
        super().kill(name)
        if name == SERVER:
            for client in self.clients.values():
                client.server_lost(self.now)
        elif SERVER not in self.dead:
            self.server.link_lost(name, self.now)

    def _save(self, round: int) -> None:
        flat = np.frombuffer(self.model, np.float32)
        disk = self.disks[SERVER]
        checkpoint.save(MODEL, layout=LAYOUT, flat=flat, metadata={"round": str(round)}, files=disk)
        self.saved = True
        for aftermath in disk.aftermaths():
            self._require(self._model_on(aftermath) == (self.model, round), "a model that was gone on from is lost")

    def _check_model(self, disk: SimulatedDisk) -> None:
        for aftermath in disk.aftermaths() if self.saved else ():
            try:
                self._model_on(aftermath)
            except (ValueError, OSError) as error:
                raise RuleBroken("a failure of power leaves no model on the server's disk") from error

    @staticmethod
    def _model_on(disk: SimulatedDisk) -> tuple[bytes, int]:
        flat, metadata = checkpoint.load(MODEL, LAYOUT, disk)
        return flat.tobytes(), int(metadata["round"])

    def _cut(self) -> None:
        name = self._random.choice(self.roster.clients)
        if name not in self.clients or SERVER in self.dead or name in self.network.cut:
            return
        self.network.cut.add(name)
        self.server.link_lost(name, self.now)
        self.clients[name].server_lost(self.now)
        self.at(self.now + self._random.uniform(0.1, 3.0), partial(self._mend, name))

    def _mend(self, name: str) -> None:
        self.network.cut.discard(name)
        if name in self.clients and SERVER not in self.dead:
            self.server.link_back(name)
            self.emit(name, self.clients[name].server_back())

    def _strike(self) -> None:
        """Kill somebody now, or at one of the next operations of its disk."""
        name = self._random.choice([SERVER, *self.roster.clients])
        disk = self.disks[name]
        if self._random.random() < 0.5:
            disk.kill_at = disk.operations + self._random.randrange(12)
        elif name not in self.dead:
            self.kill(name)
            self._start_again(name)

    def _disarm(self) -> None:
        for disk in self.disks.values():
            disk.start_again()

    def _start_again(self, name: str) -> None:
        if self.now < CALM_AFTER and name not in self._starting:
            self._starting.add(name)
            self.at(self.now + self._random.uniform(0.5, 30.0), partial(self._start, name))

    def _start(self, name: str) -> None:
        """With what is on its disk; it may be that the power failed meanwhile."""
        self._starting.discard(name)
        if self._random.random() < 0.5:
            self.disks[name].fail_power(self._random)
        if name != SERVER:
            self.start_client(name)
            return
        self.model, completed = self._model_on(self.disks[SERVER])
        self.rounds_left = max(1, ROUNDS - completed)
        self.start_server(completed=completed)
        # Of the former session nobody hears any more.
        for client in self.roster.clients:
            self._start_again(client)

    @staticmethod
    def _require(holds: bool, rule: str) -> None:
        if not holds:
            raise RuleBroken(rule)


def run(name: str, seed: int, defect: str = "") -> DisturbedFederation:
    """A run of a campaign, with a planted defect if one is named. RuleBroken with the command that repeats it."""
    try:
        with DEFECTS[defect]():
            federation = DisturbedFederation(CAMPAIGNS[name], seed)
            federation.settle()
            federation.check_ends()
    except Exception as error:
        command = f"python -m tests.campaigns {name} --seed {seed}" + (f" --defect {defect}" if defect else "")
        raise RuleBroken(f"{type(error).__name__}: {error}\nrepeat it with: {command}") from error
    return federation
