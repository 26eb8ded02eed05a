"""A whole federation in memory: a server and its clients, with their journals and the model on simulated disks.

Clients can be killed, cut off and restarted, and the server restarted. Instead of training, a client draws its vector,
and the server adds 1 to every parameter of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from tacit.parties.protections.encryption import EncryptionLabel
from tacit.parties.session import journal
from tacit.protocol.core.blob import StateLayout
from tacit.protocol.core.codec import Frame
from tacit.protocol.core.machine import Ended, Output, Transmit
from tacit.protocol.core.messages import Message, Resume
from tacit.protocol.core.primitives import SigningKey
from tacit.protocol.core.roster import Role, Roster
from tacit.protocol.group_key.agreement import GroupKey
from tacit.protocol.group_key.holder import Reencrypt
from tacit.protocol.session.client import TrainingClient
from tacit.protocol.session.messages import Hello
from tacit.protocol.session.rounds import (
    Journal,
    JournalLine,
    NewModel,
    RosterChanged,
    RoundDone,
    SpendingHeld,
    Train,
)
from tacit.protocol.session.server import TrainingServer
from tacit.protocol.session.states import TrainingState
from tacit.protocol.sum.configuration import Configuration, share
from tacit.protocol.sum.policy import Policy
from tacit.secagg.packing import WeightForm
from tacit.secagg.plain import AnyPacking, PlainPacking, PlainSum
from tacit.secagg.ring import Words
from tacit.simulate.world.world import Parcel, Streams, Timer, World, new_members, written

SERVER: Final = "server"
PATIENCE, GRACE, JOIN_SECONDS = 3600.0, 10.0, 60.0
JOURNAL: Final = Path("/journal/own.jsonl")
MODEL: Final = Path("/run/model.safetensors")


def small_configuration(clients: int, /, *, parameters: int = 10, **changes: Any) -> Configuration:
    """Return a valid configuration for a model of that many parameters."""
    settings: dict[str, Any] = {
        "scheme": "fedavg", "mode": "active", "graph": "auto", "colluders": share(0.33, clients), "dropout": 0.33,
        "threshold": 0, "clients": clients, "clip": 1.0, "value_bits": 16, "max_weight": 100, "ring_bits": 32,
        "form": WeightForm.SCALAR, "tensor_sizes": (parameters,), "metrics": (), "layout": bytes(32), "task": b"",
        "train_seconds": 100.0, "phase_seconds": 10.0,
    }  # fmt: skip
    settings |= changes
    settings.setdefault("state", StateLayout(type="float32", count=sum(settings["tensor_sizes"])))
    return Configuration(**settings)


def added(packing: AnyPacking, vectors: Sequence[Words]) -> npt.NDArray[Any]:
    """Return the sum of contributions, which keepers decode."""
    if isinstance(packing, PlainPacking):
        plain = PlainSum(packing, len(vectors))
        for place, words in enumerate(vectors):
            plain.add(place, words)
        return plain.total
    total = np.zeros(packing.length, packing.ring.word)
    for words in vectors:
        packing.ring.add_into(total, words)
    return total


def plain_words(packing: PlainPacking, words: Words) -> Words:
    """Return a contribution without secure aggregation, derived from any words: values in -1..1, and weights."""
    values = words[: packing.values_length].view("<i4") * 2.0**-31
    weights = 1 + words[:1].astype(np.int64) % packing.max_weight
    given: Any = int(weights[0]) if packing.form is WeightForm.SCALAR else np.repeat(weights, packing.weights_length)
    return packing.encode(values, given, dict.fromkeys(packing.metrics, 1)).words


class MemoryFederation(World[Parcel]):
    """rounds: number after which the server finishes; fixed: the part of the model that is not trained; policies: of
    clients without the default one; members: a roster and keys that replace new ones; groups: of the clients, by
    number, if any; participants, sampling: as in TrainingServer.

    Every party draws keys and secrets from the stream of its name, and updates from another one.
    """

    def __init__(
        self,
        configuration: Configuration,
        clients_in_roster: int,
        *,
        rounds: int = 1,
        seed: bytes = b"federation",
        policies: Mapping[str, Policy] | None = None,
        smallest_cohort: int = 3,
        model: bytes = b"",
        fixed: bytes = b"",
        members: tuple[Roster, Mapping[str, SigningKey]] | None = None,
        groups: Sequence[int] = (),
        participants: int | None = None,
        sampling: bytes = b"",
    ) -> None:
        super().__init__(Streams(seed))
        self.configuration = configuration
        self.participants, self.sampling = participants, sampling
        self.policies = policies or {}
        self.smallest_cohort = smallest_cohort
        roles: dict[str, Role] = {SERVER: "server"}
        roles |= {f"client-{number}": "client" for number in range(clients_in_roster)}
        numbers = {f"client-{number}": group for number, group in enumerate(groups)}
        self.roster, self.signing = members or new_members(roles, self.streams, numbers)
        self.host = self.roster.server.name
        # As many colluders as are configured, and no more than a third.
        bound = min(0.33, (configuration.colluders + 0.5) / len(self.roster.clients))
        self.policy = Policy(modes=(configuration.mode,), least_corrupt=bound)
        self.model = model or np.arange(configuration.state.count, dtype="<f4").tobytes()
        self.fixed = fixed
        self.vectors: dict[tuple[str, int], npt.NDArray[Any]] = {}
        """The clients' contributions, by name and round."""
        self.clients: dict[str, TrainingClient] = {}
        self._journals: dict[str, journal.JournalFile] = {}
        self.idle: set[str] = set()
        """Clients whose training never ends."""
        self.training_seconds: Callable[[], float] = lambda: 0.0
        self.paused = False
        """Whether the server's shell leaves it at the end of a round."""
        self.client_grace = GRACE
        """Seconds in which a client's link may come back."""
        self.rounds_left = rounds
        self._done: RoundDone | None = None
        self.rosters: dict[str, Roster] = {}
        """Clients' rosters that differ from the server's."""
        self.accepted_groups = ""
        """Fingerprint of a roster whose groups all clients accept."""
        self.spending: dict[str, dict[bytes, bytes]] = {}
        """Keyed by party: its persisted statements of clients' spending."""
        self.stated: dict[str, float] = {}
        """Spending as stated by owners of clients."""
        self.start_server()

    @property
    def journals(self) -> dict[str, list[JournalLine]]:
        return {name: self.journal(name).read() for name in self.roster.clients}

    def journal(self, name: str) -> journal.JournalFile:
        return journal.JournalFile(JOURNAL, self.disks[name])

    def start_server(
        self, *, completed: int = 0, enough_seconds: float | None = None, regather_seconds: float = 0.0
    ) -> None:
        """Start, or after a crash restart, the server with the present model; messages in transit are lost."""
        self.kill(self.host)
        self.dead.discard(self.host)
        self.disks[self.host].start_again()
        # Transcripts have values that are not the default.
        chosen: dict[str, Any] = {"regather_seconds": regather_seconds} if regather_seconds else {}
        if self.participants:
            chosen |= {"participants": self.participants, "sampling": self.sampling}
        if self.spending.get(self.host):
            chosen["held"] = list(self.spending[self.host].items())
        self.server = self.make(
            self.host,
            TrainingServer,
            self.roster,
            self.configuration,
            self.model,
            fixed=self.fixed,
            entropy=self.streams.of(self.host),
            smallest_cohort=self.smallest_cohort,
            join_seconds=JOIN_SECONDS,
            grace=GRACE,
            now=self.now,
            completed=completed,
            enough_seconds=enough_seconds,
            **chosen,
        )

    def start_client(self, name: str) -> TrainingClient:
        """Start, or after a crash restart, a client with its journal; its hello is in transit."""
        self.kill(name)
        self.dead.discard(name)
        self.disks[name].start_again()
        self._journals[name] = self.journal(name)
        chosen: dict[str, Any] = {"held": list(self.spending[name].items())} if self.spending.get(name) else {}
        if name in self.stated:
            chosen["spent"] = self.stated[name]
        client = self.make(
            name,
            TrainingClient,
            name,
            self.rosters.get(name, self.roster),
            signing=self.signing[name],
            policy=self.policies.get(name, self.policy),
            journal=self._journals[name].open(name),
            entropy=self.streams.of(name),
            patience=PATIENCE,
            grace=self.client_grace,
            accepted_groups=self.accepted_groups,
            **chosen,
        )
        self.clients[name] = client
        self.emit(name, client.start(self.now))
        return client

    def start(self, *names: str) -> None:
        for name in names or self.roster.clients:
            self.start_client(name)
        self.advance()

    def kill(self, name: str) -> None:
        super().kill(name)
        if name == self.host:
            self._done = None
        self.clients.pop(name, None)

    def change_roster(self, roster: Roster) -> None:
        """Give the server a later version at the end of a round, to announce and start with; clients keep theirs."""
        done, self._done = self._done, None
        if done is not None:
            self.rounds_left -= 1
            self.apply(done)
        self.rosters |= {name: self.roster for name in self.clients if name not in self.rosters}
        self.emit(self.host, self.server.change_roster(roster, self.model, self.now))
        self.advance()
        self.roster = roster
        self.start_server(completed=self.server.round)

    def lose_link(self, name: str) -> None:
        """Break the link between a client and the server, with all messages in transit; both notice."""
        self.network.forget(lambda link: set(link) == {self.host, name})
        self.network.cut.add(name)
        self.server.link_lost(name, self.now)
        if name in self.clients:
            self.clients[name].server_lost(self.now)

    def restore_link(self, name: str) -> None:
        """Restore the link. The client's messages since then are in transit, the server's are lost."""
        self.network.forget(lambda link: link == (self.host, name))
        self.network.cut.discard(name)
        self.server.link_back(name)
        if name in self.clients:
            self.emit(name, self.clients[name].server_back())

    def run(self) -> Self:
        self.start()
        return self.settle()

    def timers(self) -> Iterator[Timer]:
        if self.host not in self.dead:
            yield self.server.next_deadline, partial(self.tell_time, self.host, self.server)
        rests = self.paused and self._done is not None
        for name, client in self.clients.items():
            # A client that retries an absent server would keep the world running for ever.
            if not (rests and client.state is TrainingState.AWAIT_ROUND and not client.lost):
                yield client.next_deadline, partial(self.tell_time, name, client)

    def work(self) -> bool:
        """Let the server apply the sum of the round and continue."""
        done = self._done
        if done is None or self.paused:
            return False
        self._done = None
        self.rounds_left -= not done.missed
        with self.process(self.host):
            unusable = "" if done.total is None else self.apply(done)
            following = self.server.next_round if self.rounds_left > 0 else self.server.finish
            self.emit(self.host, following(self.model, self.now, unusable=unusable))
        return True

    def apply(self, done: RoundDone) -> str:
        """Make the next model from a sum; return the reason if that is impossible."""
        self.model = (np.frombuffer(self.model, "<f4") + 1).astype("<f4").tobytes()
        return ""

    def hand_over(self, item: Parcel) -> list[Output]:
        if item.receiver == self.host:
            return self.emit(self.host, self.server.feed(item.sender, item.frames, self.now))
        if item.receiver not in self.clients:
            return []
        return self.emit(item.receiver, self.clients[item.receiver].feed(item.frames, self.now))

    def carried(self, party: str, output: Output) -> Parcel | None:
        if not isinstance(output, Transmit):
            return None
        return Parcel(party, output.to, tuple(bytes(frame) for frame in output.frames))

    def act(self, party: str, output: Output) -> None:
        """Write the journal, train, encrypt, or store the model."""
        match output:
            case Journal(entry=entry):
                self._journals[party].write(entry)
            case SpendingHeld(statements=statements):
                self.spending.setdefault(party, {}).update(statements)
            case Train(round=round):
                self._later(party, lambda client: client.contribute(round, self.draw(party, round), self.now))
            case RosterChanged(roster=roster):
                self.rosters[party] = roster
            case RoundDone():
                self._done = output
            case NewModel(model=model):
                self.model = model
            case Reencrypt(key=key) if party not in self.idle:
                self.emit(party, self.clients[party].provide(key.epoch, self.encrypt(output), self.now))

    def forge(
        self,
        sender: str,
        receiver: str,
        message: Message,
        *,
        round: int,
        payload: Frame | None = None,
        **changes: Any,
    ) -> Parcel:
        """Make the next message on that link, as if that party had sent it; changes: fields of the envelope."""
        client = receiver if sender == self.host else sender
        asks = (
            parcel
            for parcel in reversed(self.log)
            if parcel.sender == client and parcel.kind in (Hello.TYPE, Resume.TYPE)
        )
        link = next((parcel.packet.envelope.link for parcel in asks), 0)
        since_hello = [
            (parcel.sender, parcel.receiver)
            for parcel in takewhile(
                lambda parcel: (parcel.sender, parcel.packet.kind) != (client, Hello), reversed(self.log)
            )
        ]
        fields: dict[str, Any] = {
            "session": self.server.session,
            "link": link,
            "round": round,
            "sequence": since_hello.count((sender, receiver)),
            "received": since_hello.count((receiver, sender)),
        }
        fields |= changes
        return written(sender, receiver, message, payload=payload, **fields)

    def encrypt(self, order: Reencrypt) -> bytes:
        """Return a client's result for the order: the model, plus a number that only the members know."""
        model = np.frombuffer(order.model or self.model, "<f4")
        former = shift(order.former) if order.former is not None else 0
        return (model - np.float32(former) + np.float32(shift(order.key))).astype("<f4").tobytes()

    def draw(self, name: str, round: int) -> npt.NDArray[Any]:
        """Draw uniform ring words as the client's update; without secure aggregation, floats with a weight."""
        packing = self.configuration.packing()
        words = packing.ring.unpack(self.streams.of(f"{name} update")(packing.length * packing.ring.wire_bytes))
        self.vectors[name, round] = plain_words(packing, words) if isinstance(packing, PlainPacking) else words
        return self.vectors[name, round]

    def ended(self, party: str) -> Ended | None:
        return next(iter(self.outcome(Ended, party)[-1:]), None)

    def plain_sum(self, done: RoundDone) -> npt.NDArray[Any]:
        """Return the expected total of a round: the sum of the survivors' vectors, in the ring if there is one."""
        return added(self.configuration.packing(), [self.vectors[name, done.round] for name in done.survivors])

    def _later(self, party: str, answer: Callable[[TrainingClient], list[Output]]) -> None:
        """Let a client answer after its training, if its process is still the same."""
        client, seconds = self.clients[party], self.training_seconds()

        def finish() -> None:
            if self.clients.get(party) is client:
                self.emit(party, answer(client))

        if party in self.idle:
            return
        if seconds:
            self.at(self.now + seconds, finish)
        else:
            finish()


def shift(key: GroupKey) -> int:
    """Return a placeholder for the encryption of a model: a number that follows from the key."""
    return 16 * int.from_bytes(key.derive(EncryptionLabel.MODEL_KEY)[:2], "little") + 1
