"""An agreement on a group key in memory, as memory.py plays a secure sum."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from hashlib import sha256
from typing import Any

from tacit.protocol.core.machine import Entropy, Machine
from tacit.protocol.core.messages import Message
from tacit.protocol.core.primitives import KEY_BYTES, SigningKey
from tacit.protocol.group_key.agreement import KeyAgreement
from tacit.protocol.group_key.member import GroupKeyMember
from tacit.protocol.group_key.relay import GroupKeyRelay
from tacit.simulate.world.memory import Delivery, MemoryExchange, replayable_entropy

RELAY = "server"


class MemoryGroupKey(MemoryExchange):
    """One relay and its members."""

    def __init__(self, agreement: KeyAgreement, signing: Mapping[str, SigningKey], entropy: Entropy) -> None:
        super().__init__(RELAY, agreement.members, session=agreement.session, round=0)
        self.agreement, self.signing, self.entropy = agreement, signing, entropy
        self.relay = GroupKeyRelay(agreement, self.now)
        self.members = {
            name: GroupKeyMember(agreement, name, signing=signing[name], entropy=entropy) for name in agreement.members
        }

    @property
    def parties(self) -> dict[str, Machine[Any]]:
        return {RELAY: self.relay, **self.members}

    def run(self) -> MemoryGroupKey:
        """Start every member that lives, and deliver until nothing is under way and no deadline is left."""
        self.start()
        self.settle()
        return self

    def start(self) -> None:
        for name, member in self.members.items():
            if name not in self.dead:
                self.emit(name, member.start(self.now))

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
