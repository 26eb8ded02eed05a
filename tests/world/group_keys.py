"""An agreement on a group key in memory: a relay and its members."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any, Final

from tacit.protocol.core.machine import Machine
from tacit.protocol.core.primitives import KEY_BYTES, SigningKey
from tacit.protocol.group_key.agreement import KeyAgreement
from tacit.protocol.group_key.holder import GroupKeyMember
from tacit.protocol.group_key.keeper import GroupKeyRelay
from tacit.simulate.world.world import Streams
from tests.world.exchange import Exchange

RELAY: Final = "server"


class MemoryGroupKey(Exchange):
    """One relay and its members. Each draws from the stream of its name."""

    def __init__(self, agreement: KeyAgreement, signing: Mapping[str, SigningKey], streams: Streams) -> None:
        super().__init__(streams, RELAY, agreement.members, session=agreement.session, round=0)
        self.agreement, self.signing = agreement, signing
        self.relay = GroupKeyRelay(agreement, self.now)
        self.members = {
            name: GroupKeyMember(agreement, name, signing=signing[name], entropy=self.streams.of(name))
            for name in agreement.members
        }

    @property
    def parties(self) -> dict[str, Machine[Any]]:
        return {RELAY: self.relay, **self.members}

    def say_instead(
        self, kind: str, sender: str, make: Callable[[Any], Sequence[Any]], *, at: int | None = None
    ) -> None:
        super().say_instead(kind, sender, lambda said: [replace(said, message=other) for other in make(said)], at=at)


def memory_group_key(members: int, *, seed: bytes = b"", epoch: int = 0) -> MemoryGroupKey:
    """An agreement among members c0, c1, ..., whose keys and secrets follow from the seed; the keys not the epoch."""
    streams = Streams(seed)
    signing = {f"c{member}": SigningKey(streams.of("keys")(KEY_BYTES)) for member in range(members)}
    agreement = KeyAgreement(
        session=streams.of("session")(KEY_BYTES),
        epoch=epoch,
        server=RELAY,
        members=tuple(signing),
        signing_keys=tuple(key.public for key in signing.values()),
        roster=sha256(b"roster").digest(),
        configuration=sha256(b"configuration").digest(),
        phase_seconds=10.0,
    )
    return MemoryGroupKey(agreement, signing, Streams(seed + epoch.to_bytes(4, "little")))
