"""A whole federation in memory: the real machines of server and clients, joined by queues of frames.

It serves tests and benchmarks, as memory.py does for one secure sum. A hook sees every message before it is delivered
and may drop, repeat or replace it; clients can be killed, cut off and started again, the server restarted. Time passes
only when nothing is under way, and then to the next deadline. Instead of training a client draws its vector, and
instead of learning the server adds 1 to every parameter of the model.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from tacit.protocol.core.codec import VERSION, Envelope, Frame, Packet, decode, encode
from tacit.protocol.core.machine import Entropy, Output
from tacit.protocol.core.messages import Message
from tacit.protocol.core.outputs import Ended, Transmit
from tacit.protocol.core.primitives import KEY_BYTES, Label, SigningKey
from tacit.protocol.core.roster import Member, Roster
from tacit.protocol.group_key.agreement import GroupKey
from tacit.protocol.group_key.holder import Reencrypt
from tacit.protocol.session.client import TrainingClient
from tacit.protocol.session.messages import MESSAGES, Hello
from tacit.protocol.session.rounds import Limit, NewModel, RoundDone, Train
from tacit.protocol.session.server import TrainingServer
from tacit.protocol.sum import counting
from tacit.protocol.sum.configuration import Configuration, Policy
from tacit.protocol.sum.results import Contribution, Journal
from tacit.secagg.packing import WeightForm

SERVER = "server"
PATIENCE, GRACE, JOIN_SECONDS = 3600.0, 10.0, 60.0
Kind = TypeVar("Kind")


def stream(seed: bytes) -> Entropy:
    """Randomness that repeats: SHAKE-256 over the seed and a counter. For memory only, never for a network."""
    drawn = 0

    def entropy(size: int) -> bytes:
        nonlocal drawn
        drawn += 1
        return hashlib.shake_256(seed + drawn.to_bytes(8, "little")).digest(size)

    return entropy


def small_configuration(clients: int, /, *, parameters: int = 10, **changes: Any) -> Configuration:
    """A valid configuration for a model of that many parameters."""
    settings: dict[str, Any] = {
        "scheme": "fedavg", "mode": "active", "graph": "auto", "corrupt": 0.05, "dropout": 0.05, "threshold": 0,
        "clients": clients, "clip": 1.0, "value_bits": 16, "max_weight": 100, "ring_bits": 32,
        "form": WeightForm.SCALAR, "tensor_sizes": (parameters,), "metrics": (), "layout": bytes(32), "task": b"",
        "train_seconds": 100.0, "phase_seconds": 10.0,
    }  # fmt: skip
    return Configuration(**(settings | changes))


@dataclass(frozen=True)
class Parcel:
    """A message under way, as frames."""

    sender: str
    receiver: str
    frames: tuple[Frame, ...] = field(repr=False)

    @property
    def packet(self) -> Packet:
        """The envelope, read, and the body."""
        return decode(self.frames, MESSAGES)

    @property
    def message(self) -> Message:
        """The message."""
        return self.packet.parse()


Hook = Callable[[Parcel], Sequence[Parcel]]


@dataclass
class MemoryFederation:
    """`outputs` collects everything that is no message, by party; `journals` are the disks of the clients.

    rounds: rounds to hold after which the server finishes; policies: of clients that do not hold the default one.
    """

    configuration: Configuration
    clients_in_roster: int
    rounds: int = 1
    entropy: Entropy = field(default_factory=lambda: stream(b"federation"))
    policies: dict[str, Policy] = field(default_factory=dict)
    smallest_cohort: int = 3
    hook: Hook = lambda parcel: [parcel]
    now: float = 0.0

    def __post_init__(self) -> None:
        keys = {name: SigningKey(self.entropy(KEY_BYTES)) for name in (SERVER, *self._client_names())}
        self.signing = keys
        self.roster = Roster(
            tuple(
                Member(
                    name=name,
                    role="server" if name == SERVER else "client",
                    curve_public=self.entropy(KEY_BYTES),
                    signing_public=key.public,
                )
                for name, key in keys.items()
            )
        )
        self.policy = Policy(modes=(self.configuration.mode,))
        self.model = np.arange(sum(self.configuration.tensor_sizes), dtype="<f4").tobytes()
        self.journals: dict[str, list[Contribution]] = {name: [] for name in self.roster.clients}
        self.vectors: dict[tuple[str, int], npt.NDArray[Any]] = {}
        """What the clients contributed, by name and round."""
        self.wanted: dict[tuple[str, int], npt.NDArray[np.bool_]] = {}
        """To which coordinates the clients would contribute, by name and round, where they are counted first."""
        self.outputs: list[tuple[str, Output]] = []
        self.log: list[Parcel] = []
        self.clients: dict[str, TrainingClient] = {}
        self.cut: set[str] = set()
        """Clients whose link is down: what is sent over it waits."""
        self.idle: set[str] = set()
        """Clients whose training never ends."""
        self.paused = False
        """Whether the server's shell leaves it at the end of a round."""
        self.rounds_left = self.rounds
        self._queue: deque[Parcel] = deque()
        self._done: RoundDone | None = None
        self.start_server()

    def start_server(self, *, completed: int = 0) -> None:
        """Start, or after a crash restart, the server with the present model; what was under way is lost."""
        self._queue.clear()
        self._done = None
        self.server = TrainingServer(
            self.roster,
            self.configuration,
            self.model,
            entropy=self.entropy,
            smallest_cohort=self.smallest_cohort,
            join_seconds=JOIN_SECONDS,
            grace=GRACE,
            now=self.now,
            completed=completed,
        )

    def start_client(self, name: str) -> TrainingClient:
        """Start, or after a crash restart, a client with its journal; its hello is under way."""
        self.kill(name)
        latest = {(entry.session, entry.round): entry for entry in self.journals[name]}
        client = TrainingClient(
            name,
            self.roster,
            signing=self.signing[name],
            policy=self.policies.get(name, self.policy),
            journal=latest.values(),
            entropy=self.entropy,
            patience=PATIENCE,
            grace=GRACE,
        )
        self.clients[name] = client
        self.emit(name, client.start(self.now))
        return client

    def start(self, *names: str) -> None:
        """Start these clients, or all, and deliver what follows at once."""
        for name in names or self.roster.clients:
            self.start_client(name)
        self.deliver()

    def kill(self, name: str) -> None:
        """The client is gone without a word; the server notices by itself."""
        self.clients.pop(name, None)
        self._queue = deque(parcel for parcel in self._queue if name not in (parcel.sender, parcel.receiver))

    def run(self) -> MemoryFederation:
        """Start all clients and settle."""
        self.start()
        return self.settle()

    def settle(self, until: float = float("inf")) -> MemoryFederation:
        """Deliver, let work be done and time pass until nothing is left to do, or that time."""
        while True:
            self.deliver()
            if self._done is not None and not self.paused:
                self._after_round()
                continue
            machines: list[TrainingServer | TrainingClient] = [self.server, *self.clients.values()]
            deadlines = [machine.next_deadline for machine in machines if machine.next_deadline is not None]
            if min(deadlines, default=until) >= until:
                self.now = max(self.now, until) if until < float("inf") else self.now
                return self
            self.now = min(deadlines)
            self.emit(SERVER, self.server.expire(self.now))
            for name, client in list(self.clients.items()):
                self.emit(name, client.expire(self.now))

    def deliver(self) -> None:
        """Deliver everything under way, and what follows from it, at this time."""
        held: list[Parcel] = []
        while self._queue:
            original = self._queue.popleft()
            if self.cut & {original.sender, original.receiver}:
                held.append(original)
                continue
            for parcel in self.hook(original):
                if parcel.receiver == SERVER or parcel.receiver in self.clients:
                    self.put(parcel)
        self._queue.extend(held)

    def emit(self, party: str, outputs: Sequence[Output]) -> None:
        """Queue the messages, write the journal, train; keep the rest."""
        for output in outputs:
            if isinstance(output, Transmit):
                self._queue.append(Parcel(party, output.to, tuple(bytes(frame) for frame in output.frames)))
                continue
            self.outputs.append((party, output))
            if isinstance(output, Journal):
                self.journals[party].append(output.contribution)
            elif isinstance(output, Train) and party not in self.idle:
                self.emit(
                    party, self.clients[party].contribute(output.round, self.train(party, output.round), self.now)
                )
            elif isinstance(output, Limit):
                vector = self.limited(party, output)
                self.emit(party, self.clients[party].contribute(output.round, vector, self.now))
            elif isinstance(output, RoundDone):
                self._done = output
            elif isinstance(output, NewModel):
                self.model = output.model
            elif isinstance(output, Reencrypt) and party not in self.idle:
                self.emit(party, self.clients[party].provide(output.key.epoch, self.encrypt(output), self.now))

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
        """The next message on that link, as if that party had sent it; changes: fields of the envelope."""
        client = receiver if sender == SERVER else sender
        since_hello = takewhile(
            lambda parcel: (parcel.sender, parcel.packet.kind) != (client, Hello), reversed(self.log)
        )
        sequence = sum((parcel.sender, parcel.receiver) == (sender, receiver) for parcel in since_hello)
        fields: dict[str, Any] = {"session": self.server.session, "round": round, "sequence": sequence}
        fields |= {"version": VERSION, "type": message.TYPE, "sender": sender}
        return Parcel(sender, receiver, tuple(encode(message, Envelope(**(fields | changes)), payload)))

    def put(self, parcel: Parcel) -> list[Output]:
        """Deliver this message now, past the hook, and return what the receiver makes of it."""
        self.log.append(parcel)
        if parcel.receiver == SERVER:
            outputs = self.server.feed(parcel.sender, parcel.frames, self.now)
        else:
            outputs = self.clients[parcel.receiver].feed(parcel.frames, self.now)
        self.emit(parcel.receiver, outputs)
        return outputs

    def encrypt(self, order: Reencrypt) -> bytes:
        """What a client makes of the order: the model, plus a number that only the members know."""
        model = np.frombuffer(order.model or self.model, "<f4")
        former = shift(order.former) if order.former is not None else 0
        return (model - np.float32(former) + np.float32(shift(order.key))).astype("<f4").tobytes()

    def train(self, name: str, round: int) -> npt.NDArray[Any]:
        """What a client contributes when it has trained: its update, or first to which coordinates it would."""
        vector = self.draw(name, round)
        if self.configuration.enforce == "server":
            return vector
        size = sum(self.configuration.tensor_sizes)
        wanted = np.frombuffer(self.entropy(size), np.uint8) % 2 == 0
        self.wanted[name, round] = wanted
        return counting.packing(self.configuration).encode(wanted)

    def limited(self, name: str, limit: Limit) -> npt.NDArray[Any]:
        """The client's update: one in value and count where it wanted to contribute and may, zero elsewhere."""
        packing = self.configuration.packing()
        size = packing.values_length
        allowed = np.unpackbits(np.frombuffer(limit.limits, np.uint8), count=size).astype(bool)
        weights = self.wanted[name, limit.round] & allowed
        encoded = packing.encode(
            weights.astype(np.float32), weights, dict.fromkeys(packing.metrics, 0), np.random.default_rng(0)
        )
        self.vectors[name, limit.round] = encoded.words
        return encoded.words

    def draw(self, name: str, round: int) -> npt.NDArray[Any]:
        """Uniform ring words as the client's update."""
        packing = self.configuration.packing()
        words = np.frombuffer(self.entropy(packing.length * packing.ring.wire_bytes), np.uint8)
        self.vectors[name, round] = packing.ring.unpack(words.tobytes())
        return self.vectors[name, round]

    def outcome(self, kind: type[Kind], party: str | None = None) -> list[Kind]:
        """The outputs of one kind, of all parties or of one."""
        return [output for name, output in self.outputs if isinstance(output, kind) and party in (None, name)]

    def ended(self, party: str) -> Ended | None:
        """How a party ended."""
        return next(iter(self.outcome(Ended, party)[-1:]), None)

    def plain_sum(self, done: RoundDone) -> npt.NDArray[Any]:
        """What the total of a round must be: the sum of the survivors' vectors in the ring."""
        packing = self.configuration.packing()
        total = np.zeros(packing.length, packing.ring.word)
        for name in done.survivors:
            packing.ring.add_into(total, self.vectors[name, done.round])
        return total

    def _after_round(self) -> None:
        done, self._done = self._done, None
        self.rounds_left -= 1
        if done is not None and done.total is not None:
            self.model = (np.frombuffer(self.model, "<f4") + 1).astype("<f4").tobytes()
        following = self.server.next_round if self.rounds_left > 0 else self.server.finish
        self.emit(SERVER, following(self.model, self.now))

    def _client_names(self) -> tuple[str, ...]:
        return tuple(f"client-{number}" for number in range(self.clients_in_roster))


def shift(key: GroupKey) -> int:
    """What stands for the encryption of a model here: a number that follows from the key."""
    return 16 * int.from_bytes(key.derive(Label.MODEL_KEY)[:2], "little") + 1


def altered(parcel: Parcel, *, message: Message | None = None, payload: Frame | None = None, **changes: Any) -> Parcel:
    """The parcel with another message, payload, or fields of the envelope."""
    packet = parcel.packet
    message = packet.parse() if message is None else message
    fields = {name: getattr(packet.envelope, name) for name in packet.envelope.__struct_fields__}
    envelope = type(packet.envelope)(**(fields | {"type": message.TYPE} | changes))
    kept = packet.payload if payload is None and message.PAYLOAD else payload
    return replace(parcel, frames=tuple(encode(message, envelope, kept)))
