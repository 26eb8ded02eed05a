"""An agreement on a group key in memory: the real machines and the real codec, joined by a queue.

It serves tests, as memory.py does for a secure sum: a hook sees every message before it is delivered and may drop,
repeat or replace it, and members can be killed between any two messages. Time passes only when nothing is under way,
and then to the next deadline.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

from tacit.protocol.errors import Code, RemoteProtocolError
from tacit.protocol.group_key_agreement import KeyAgreement
from tacit.protocol.group_key_member import GroupKeyMember
from tacit.protocol.group_key_relay import GroupKeyRelay
from tacit.protocol.link import Link, Traffic
from tacit.protocol.machine import Entropy, Machine, Output, Send
from tacit.protocol.messages import Message
from tacit.protocol.primitives import KEY_BYTES, SigningKey
from tacit.simulate.memory import Delivery, Hook, replayable_entropy

RELAY = "server"


@dataclass
class MemoryGroupKey:
    """One relay and its members. `results` collects every output that is no message, by party."""

    agreement: KeyAgreement
    signing: Mapping[str, SigningKey]
    entropy: Entropy
    hook: Hook = lambda delivery: [delivery]
    now: float = 0.0
    results: list[tuple[str, Output]] = field(default_factory=list)
    log: list[Delivery] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.relay = GroupKeyRelay(self.agreement, self.now)
        self.members = {
            name: GroupKeyMember(self.agreement, name, signing=self.signing[name], entropy=self.entropy)
            for name in self.agreement.members
        }
        self.parties: dict[str, Machine[Any]] = {RELAY: self.relay, **self.members}
        self.dead: set[str] = set()
        self._queue: deque[Delivery] = deque()
        traffic = Traffic()
        self._links = {
            end: Link(end[0], end[1], self.agreement.session, traffic)
            for name in self.members
            for end in ((name, RELAY), (RELAY, name))
        }

    def run(self) -> MemoryGroupKey:
        """Start every member that lives, and deliver until nothing is under way and no deadline is left."""
        self.start()
        self.settle()
        return self

    def start(self) -> None:
        """Start every member that lives."""
        for name, member in self.members.items():
            if name not in self.dead:
                self.emit(name, member.start(self.now))

    def advance(self, until: Callable[[], bool] = lambda: False) -> bool:
        """Deliver what is under way until the condition holds; whether it does. No time passes."""
        while not (reached := until()) and self._queue:
            self.deliver(self._queue.popleft())
        return reached

    def settle(self) -> None:
        """Deliver everything; then let time pass to the next deadline, until there is none."""
        self.advance()
        while deadlines := [p.deadline for p in self.living.values() if p.deadline is not None]:
            self.now = min(deadlines)
            for name, party in self.living.items():
                self.emit(name, party.expire(self.now))
            self.advance()

    @property
    def living(self) -> dict[str, Machine[Any]]:
        """The parties that were not killed."""
        return {name: party for name, party in self.parties.items() if name not in self.dead}

    def deliver(self, original: Delivery) -> None:
        """Hand a message, after the hook has seen it, to its receiver."""
        for delivery in self.hook(original):
            if {delivery.sender, delivery.receiver} & self.dead:
                continue
            self.log.append(delivery)
            frames = self._links[delivery.sender, delivery.receiver].frames(delivery.message, round=0)
            receiver = self.parties[delivery.receiver]
            try:
                packet = self._links[delivery.receiver, delivery.sender].packet(frames)
            except RemoteProtocolError as error:
                self.emit(delivery.receiver, receiver.reject(delivery.sender, error, self.now))
                continue
            self.emit(delivery.receiver, receiver.receive(delivery.sender, packet, self.now))

    def kill(self, name: str) -> None:
        """The member is gone: nothing more comes from it, and the relay notices at once."""
        self.dead.add(name)
        self._queue = deque(delivery for delivery in self._queue if delivery.sender != name)
        self.emit(RELAY, self.relay.drop(name, Code.LEFT, "killed", self.now))

    def emit(self, party: str, outputs: list[Output]) -> None:
        """Queue the messages among the outputs, keep the rest."""
        for output in outputs:
            if isinstance(output, Send):
                self._queue.append(Delivery(party, output.to, output.message, None))
            else:
                self.results.append((party, output))

    def say_instead(self, kind: str, sender: str, make: Callable[[Delivery], list[Message]]) -> None:
        """Let this party say something else than its messages of that kind, after what earlier calls changed."""
        hook = self.hook

        def say(original: Delivery) -> list[Delivery]:
            said: list[Delivery] = []
            for delivery in hook(original):
                instead = (delivery.kind, delivery.sender) == (kind, sender)
                said += [replace(delivery, message=message) for message in make(delivery)] if instead else [delivery]
            return said

        self.hook = say

    def outcome(self, kind: type[Any], party: str | None = None) -> list[Any]:
        """The outputs of one kind, of all parties or of one."""
        return [output for name, output in self.results if isinstance(output, kind) and party in (None, name)]


def memory_group_key(members: int, *, seed: bytes = b"", epoch: int = 0) -> MemoryGroupKey:
    """An agreement among members c0, c1, ..., whose keys and secrets follow from the seed; the keys not the epoch."""
    entropy = replayable_entropy(seed)
    signing = {f"c{member}": SigningKey(entropy(KEY_BYTES)) for member in range(members)}
    agreement = KeyAgreement(
        session=entropy(KEY_BYTES),
        epoch=epoch,
        server=RELAY,
        members=tuple(signing),
        signing_keys=tuple(key.public for key in signing.values()),
        roster=sha256(b"roster").digest(),
        configuration=sha256(b"configuration").digest(),
        phase_seconds=10.0,
    )
    return MemoryGroupKey(agreement, signing, replayable_entropy(seed + epoch.to_bytes(4, "little")))
