"""An exchange of a server with its members in memory: the real machines and the real codec, joined by a queue.

It serves tests, test vectors and benchmarks. Every message is encoded and decoded on its way; a hook sees each one
before it is delivered and may drop, repeat or replace it, and members can be killed between any two messages. Time is
virtual: it stands still while anything is under way, and then leaps to the next deadline.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256, shake_256
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt

from tacit.protocol.core.codec import Frame
from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.link import Link, Traffic
from tacit.protocol.core.machine import Entropy, Machine, Output, Send
from tacit.protocol.core.messages import Message
from tacit.protocol.core.primitives import SigningKey
from tacit.protocol.group_key.relay import GroupKeyRelay
from tacit.protocol.session.messages import MESSAGES
from tacit.protocol.session.rounds import SumServer, sum_client, sum_server
from tacit.protocol.sum.agreement import Agreement
from tacit.protocol.sum.attendance import Attendance
from tacit.secagg.graph import GraphParameters, complete_parameters
from tacit.secagg.ring import Ring


@dataclass(frozen=True)
class Delivery:
    """A message under way."""

    sender: str
    receiver: str
    message: Message
    payload: Frame | None

    @property
    def kind(self) -> str:
        """Its type on the wire."""
        return self.message.TYPE


Hook = Callable[[Delivery], "list[Delivery]"]


class MemoryExchange:
    """A server and its members, joined by one queue. `results` collects every output that is no message, by party.

    Subclasses make the machines, and start their members.
    """

    def __init__(self, server: str, members: Sequence[str], *, session: bytes, round: int) -> None:
        self.hook: Hook = lambda delivery: [delivery]
        self.now = 0.0
        self.results: list[tuple[str, Output]] = []
        self.log: list[Delivery] = []
        self.dead: set[str] = set()
        self.traffic = Traffic()
        self._server = server
        self._round = round
        self._queue: deque[Delivery] = deque()
        self._links = {
            end: Link(end[0], end[1], session, self.traffic, MESSAGES)
            for name in members
            for end in ((name, server), (server, name))
        }

    @property
    def parties(self) -> dict[str, Machine[Any]]:
        """Every machine by its name, the server's first."""
        raise NotImplementedError

    @property
    def living(self) -> dict[str, Machine[Any]]:
        """The parties that were not killed."""
        return {name: party for name, party in self.parties.items() if name not in self.dead}

    def start(self) -> None:
        """Start every member that lives."""
        raise NotImplementedError

    def advance(self, until: Callable[[], bool] = lambda: False) -> bool:
        """Deliver what is under way until the condition holds; whether it does. No time passes."""
        while not (reached := until()) and self._queue:
            self.deliver(self._queue.popleft())
        return reached

    def settle(self) -> None:
        """Deliver everything; then let time pass to the next deadline, until there is none."""
        self.advance()
        while deadlines := [party.deadline for party in self.living.values() if party.deadline is not None]:
            self.now = min(deadlines)
            for name, party in self.living.items():
                self.emit(name, party.expire(self.now))
            self.advance()

    def deliver(self, original: Delivery) -> None:
        """Hand a message, after the hook has seen it, to its receiver."""
        for delivery in self.hook(original):
            if {delivery.sender, delivery.receiver} & self.dead:
                continue
            self.log.append(delivery)
            out = self._links[delivery.sender, delivery.receiver]
            frames = [bytes(f) for f in out.frames(delivery.message, round=self._round, payload=delivery.payload)]
            receiver = self.parties[delivery.receiver]
            try:
                packet = self._links[delivery.receiver, delivery.sender].packet(frames)
            except RemoteProtocolError as error:
                self.emit(delivery.receiver, receiver.reject(delivery.sender, error, self.now))
                continue
            self.emit(delivery.receiver, receiver.receive(delivery.sender, packet, self.now))

    def kill(self, name: str) -> None:
        """The party is gone: nothing more comes from it, and the server notices at once."""
        self.dead.add(name)
        self._queue = deque(delivery for delivery in self._queue if delivery.sender != name)
        server = self.parties[self._server]
        if name != self._server and isinstance(server, (Attendance, GroupKeyRelay)):
            self.emit(self._server, server.drop(name, Code.LEFT, "killed", self.now))

    def emit(self, party: str, outputs: list[Output]) -> None:
        """Queue the messages among the outputs, keep the rest."""
        for output in outputs:
            if isinstance(output, Send):
                self._queue.append(Delivery(party, output.to, output.message, output.payload))
            else:
                self.results.append((party, output))

    def outcome(self, kind: type[Any], party: str | None = None) -> list[Any]:
        """The outputs of one kind, of all parties or of one."""
        return [output for name, output in self.results if isinstance(output, kind) and party in (None, name)]


class MemorySum(MemoryExchange):
    """One server and its clients."""

    def __init__(
        self,
        agreement: Agreement,
        signing: Mapping[str, SigningKey],
        vectors: Mapping[str, npt.NDArray[Any]],
        entropy: Entropy,
    ) -> None:
        super().__init__(agreement.server, agreement.cohort, session=agreement.session, round=agreement.round)
        self.agreement, self.signing, self.vectors, self.entropy = agreement, signing, vectors, entropy
        self.server = sum_server(agreement, self.now)
        self.clients = {
            name: sum_client(agreement, name, signing=signing[name], vector=vectors[name], entropy=entropy)
            for name in agreement.cohort
        }

    @property
    def parties(self) -> dict[str, Machine[Any]]:
        return {self.agreement.server: self.server, **self.clients}

    def run(self) -> SumServer:
        """Start every client and deliver until nothing is under way and no deadline is left."""
        self.start()
        self.settle()
        return self.server

    def start(self) -> None:
        for name, client in self.clients.items():
            if name not in self.dead:
                self.emit(name, client.start(self.now))

    def plain_sum(self, names: Iterable[str]) -> npt.NDArray[Any]:
        """What the secure sum over these clients must be, added in the clear."""
        total = np.zeros(self.agreement.length, self.agreement.ring.word)
        for name in names:
            self.agreement.ring.add_into(total, self.vectors[name])
        return total


def replayable_entropy(seed: bytes) -> Entropy:
    """Bytes that follow from the seed alone, for runs that are to replay bit for bit."""
    counter = count()
    return lambda length: shake_256(seed + next(counter).to_bytes(8, "little")).digest(length)


def memory_sum(
    clients: int,
    *,
    active: bool,
    seed: bytes = b"",
    length: int = 5,
    ring_bits: int = 32,
    parameters: GraphParameters | None = None,
    round: int = 0,
    secure: bool = True,
    fewest_survivors: int = 0,
    skip_zeros: bool = False,
) -> MemorySum:
    """A sum of random vectors among clients c0, c1, ..., whose keys, secrets and vectors follow from the seed.

    parameters: of a regular graph; by default those of the complete graph with no corrupt member. secure:
    False for a sum without masks; skip_zeros: in such a sum, vectors travel without their blocks of zeros.
    """
    entropy, ring = replayable_entropy(seed), Ring(ring_bits)
    signing = {f"c{member}": SigningKey(entropy(32)) for member in range(clients)}
    agreement = Agreement(
        session=entropy(32),
        round=round,
        server="server",
        cohort=tuple(signing),
        signing_keys=tuple(key.public for key in signing.values()),
        active=active,
        regular=parameters is not None,
        parameters=(parameters or complete_parameters(clients, active=active, corrupt=0.0))
        if secure
        else GraphParameters(clients - 1, 1),
        fewest_survivors=fewest_survivors,
        secure=secure,
        skip_zeros=skip_zeros,
        ring=ring,
        length=length,
        roster=sha256(b"roster").digest(),
        configuration=sha256(b"configuration").digest(),
        model=sha256(b"model").digest(),
        train_seconds=100.0,
        phase_seconds=10.0,
    )
    generator = np.random.default_rng(list(entropy(32)))
    words = generator.integers(0, ring.modulus, (clients, length), np.uint64, endpoint=False).astype(ring.word)
    return MemorySum(agreement, signing, dict(zip(signing, words, strict=True)), entropy)
