"""What all members of one agreement on a group key hold alike before its first message, and how it can end.

A KeyAgreement is made by every party for itself, from its own roster, the configuration it accepted, and the members
and the epoch that the session named. Its `context` is a hash over all of that and part of every signature, so that a
server that tells two members different things gets no agreement.

An agreement is one attempt, in which every member must finish. When one does not, KeyFailed names it and who remains;
the session then makes a KeyAgreement of the next epoch for those.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from tacit.protocol.core.codec import VERSION
from tacit.protocol.core.errors import Code, LocalProtocolError
from tacit.protocol.core.machine import Result
from tacit.protocol.core.messages import LARGEST_COHORT
from tacit.protocol.core.primitives import Label, derive, digest
from tacit.protocol.core.roster import Roster
from tacit.protocol.sum.configuration import Configuration

LARGEST_EPOCH: Final = 2**31


@dataclass(frozen=True, kw_only=True)
class KeyAgreement:
    """One attempt. LocalProtocolError for fewer than two members, and for names or keys that are not distinct."""

    session: bytes
    epoch: int
    """Number of the attempt within the session, from 0; a member takes part in each at most once."""
    server: str
    members: tuple[str, ...]
    """Names, in roster order; inside the agreement a member is its position here."""
    signing_keys: tuple[bytes, ...]
    """Ed25519 public keys of the members, from the roster."""
    roster: bytes
    configuration: bytes
    """Hashes of the roster and of the configuration."""
    phase_seconds: float

    def __post_init__(self) -> None:
        if not 2 <= len(self.members) <= LARGEST_COHORT:
            raise LocalProtocolError(f"a group key is for 2 to {LARGEST_COHORT} members, not {len(self.members)}")
        distinct = len(set(self.members)), len(set(self.signing_keys)), len(self.signing_keys)
        if distinct != (self.size,) * 3:
            raise LocalProtocolError("the members of a group key must have distinct names, and a signing key each")
        if not 0 <= self.epoch <= LARGEST_EPOCH:
            raise LocalProtocolError(f"epoch {self.epoch} is not within 0 to {LARGEST_EPOCH}")

    @classmethod
    def among(
        cls, members: tuple[str, ...], roster: Roster, configuration: Configuration, *, session: bytes, epoch: int
    ) -> KeyAgreement:
        """The attempt of these members of a roster."""
        return cls(
            session=session,
            epoch=epoch,
            server=roster.server.name,
            members=members,
            signing_keys=tuple(roster.member(name).signing_public for name in members),
            roster=roster.hash,
            configuration=configuration.hash(),
            phase_seconds=configuration.phase_seconds,
        )

    @property
    def size(self) -> int:
        """How many members."""
        return len(self.members)

    @cached_property
    def places(self) -> dict[str, int]:
        """The position of every member by its name."""
        return {name: place for place, name in enumerate(self.members)}

    def others(self, member: int) -> list[int]:
        """Everybody but this member, in rising order."""
        return [other for other in range(self.size) if other != member]

    @cached_property
    def context(self) -> bytes:
        """32 bytes that depend on everything above but the server's name and the time."""
        return digest(
            Label.KEY_AGREEMENT,
            VERSION.to_bytes(1, "little"),
            self.session,
            self.epoch.to_bytes(4, "little"),
            self.roster,
            self.configuration,
            "\n".join(self.members).encode(),
        )


@dataclass(frozen=True)
class GroupKey(Result):
    """Output of a member: it holds the key that all members confirmed.

    key: 32 bytes, of which `derive` makes one for each use.
    """

    epoch: int
    key: bytes = field(repr=False)
    members: tuple[str, ...]
    transcript: bytes
    """32 bytes that identify the key and reveal nothing of it."""

    def derive(self, label: Label, info: bytes = b"") -> bytes:
        """32 bytes that all members have for this use, and that say nothing about those for another."""
        return derive(self.key, label, salt=self.transcript, info=info)


@dataclass(frozen=True)
class KeyAgreed(Result):
    """Output of the relay: every member says that it holds the key."""

    epoch: int
    members: tuple[str, ...]
    transcript: bytes
    """As in GroupKey."""


@dataclass(frozen=True)
class KeyFailed(Result):
    """Output of the relay: the attempt is over, because of these members."""

    epoch: int
    code: Code
    detail: str
    culprits: tuple[str, ...]
    remaining: tuple[str, ...]
    """The members without the culprits: whom the next attempt is for."""
