"""The agreement on a group key, computed alike by members and server: context, transcript, key, confirmations.

Every party makes a KeyAgreement for itself, from its own roster and the configuration that it accepted. Its `context`
and, after the first exchange, the transcript are part of every signature: a server that names other members or sends
other commitments to one party gets no agreement. An agreement is one attempt, in which every member must finish.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from tacit.protocol.core.errors import Code, LocalProtocolError, RemoteProtocolError
from tacit.protocol.core.machine import Result
from tacit.protocol.core.messages import LARGEST_COHORT
from tacit.protocol.core.primitives import (
    KEY_BYTES,
    SIGNATURE_BYTES,
    TAG_BYTES,
    AgreementKey,
    Label,
    SigningKey,
    check_public_key,
    derive,
    digest,
    open_sealed,
    seal,
    verify,
)
from tacit.protocol.core.roster import Roster
from tacit.protocol.group_key.states import KeyLabel
from tacit.protocol.sum.configuration import Configuration
from tacit.protocol.sum.states import VERSION

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
        return len(self.members)

    @cached_property
    def places(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self.members)}

    def others(self, member: int) -> list[int]:
        return [other for other in range(self.size) if other != member]

    @cached_property
    def context(self) -> bytes:
        """32 bytes that depend on all fields above except the server's name and the time."""
        return digest(
            KeyLabel.KEY_AGREEMENT,
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

    key: 32 bytes, from which `derive` makes one for each use."""

    epoch: int
    key: bytes = field(repr=False)
    members: tuple[str, ...]
    transcript: bytes

    def derive(self, label: Label, info: bytes = b"") -> bytes:
        """32 bytes that all members have for this use, and that disclose nothing about other uses."""
        return derive(self.key, label, salt=self.transcript, info=info)


@dataclass(frozen=True)
class KeyAgreed(Result):
    """Output of the relay: every member reports that it holds the key."""

    epoch: int
    members: tuple[str, ...]
    transcript: bytes


@dataclass(frozen=True)
class KeyFailed(Result):
    """Output of the relay: the attempt failed, because of these members."""

    epoch: int
    code: Code
    detail: str
    culprits: tuple[str, ...]
    remaining: tuple[str, ...]
    """The members without the culprits, for the next attempt."""


COMMIT_BYTES: Final = 2 * KEY_BYTES + SIGNATURE_BYTES
SEALED_BYTES: Final = KEY_BYTES + TAG_BYTES
PACKET_BYTES: Final = SEALED_BYTES + SIGNATURE_BYTES
CONFIRMATION_BYTES: Final = KEY_BYTES + SIGNATURE_BYTES


def commit_record(
    agreement: KeyAgreement, member: int, signing: SigningKey, *, channel_key: bytes, contribution: bytes
) -> bytes:
    """Channel key, commitment, signature. A hash is enough, because a contribution is 32 bytes of randomness."""
    signed = channel_key + digest(KeyLabel.CONTRIBUTION, agreement.context, _place(member), contribution)
    return signed + signing.sign(KeyLabel.SIGN_KEY_COMMIT, agreement.context, _place(member), signed)


def check_commits(agreement: KeyAgreement, commits: dict[int, bytes]) -> None:
    """Refuse records with an invalid or repeated channel key, or without their members' signatures."""
    for member, record in commits.items():
        check_public_key(channel_key_of(record))
        signed = record[: 2 * KEY_BYTES]
        _check_signed(agreement, member, record, KeyLabel.SIGN_KEY_COMMIT, agreement.context, _place(member), signed)
    if len({channel_key_of(record) for record in commits.values()}) != len(commits):
        raise RemoteProtocolError(Code.KEYS, "two channel keys of the agreement are equal")


def channel_key_of(record: bytes) -> bytes:
    return record[:KEY_BYTES]


@dataclass(frozen=True)
class Transcript:
    """The agreement after all members committed. `commits`: checked records of all members, in their order."""

    agreement: KeyAgreement
    commits: dict[int, bytes]

    @cached_property
    def digest(self) -> bytes:
        """32 bytes over all of it: the salt of every derived key, and part of every later signature."""
        return digest(KeyLabel.KEY_TRANSCRIPT, self.agreement.context, b"".join(self.commits.values()))

    def packet(
        self, channel: AgreementKey, signing: SigningKey, contribution: bytes, *, owner: int, holder: int
    ) -> bytes:
        """The owner's contribution sealed for the holder, and its signature."""
        key = self._channel_key(channel, holder, owner=owner, holder=holder)
        signed = self.digest, _place(owner), _place(holder), seal(key, contribution, associated=self.digest)
        return signed[-1] + signing.sign(KeyLabel.SIGN_CONTRIBUTION, *signed)

    def check_packet(self, packet: bytes, *, owner: int, holder: int) -> None:
        """Refuse a packet that the owner did not sign for this holder."""
        signed = self.digest, _place(owner), _place(holder), packet[:SEALED_BYTES]
        _check_signed(self.agreement, owner, packet, KeyLabel.SIGN_CONTRIBUTION, *signed)

    def contribution(self, packet: bytes, channel: AgreementKey, peer: int, *, owner: int, holder: int) -> bytes:
        """Content of a packet; refuses one that does not open, or does not match the owner's commitment.

        channel: key of one end, owner or holder; peer: the other end."""
        key = self._channel_key(channel, peer, owner=owner, holder=holder)
        contribution = open_sealed(key, packet[:SEALED_BYTES], associated=self.digest)
        committed = digest(KeyLabel.CONTRIBUTION, self.agreement.context, _place(owner), contribution)
        if not hmac.compare_digest(committed, self.commits[owner][KEY_BYTES : 2 * KEY_BYTES]):
            raise RemoteProtocolError(Code.SECRET, "its contribution to the group key is not what it committed to")
        return contribution

    def group_key(self, contributions: dict[int, bytes]) -> bytes:
        """32 bytes: HKDF over the contributions in the order of the members, salted with the transcript."""
        secret = b"".join(contributions[member] for member in range(self.agreement.size))
        return derive(secret, KeyLabel.GROUP_KEY, salt=self.digest)

    def confirmation(self, key: bytes, signing: SigningKey, member: int) -> bytes:
        """The member's tag under the group key, and its signature."""
        tag = self._tag(key, member)
        return tag + signing.sign(KeyLabel.SIGN_CONFIRMATION, self.digest, _place(member), tag)

    def check_confirmation(self, record: bytes, member: int) -> None:
        """Refuse a confirmation that the member did not sign. `check_tag` checks its tag."""
        signed = self.digest, _place(member), record[:KEY_BYTES]
        _check_signed(self.agreement, member, record, KeyLabel.SIGN_CONFIRMATION, *signed)

    def check_tag(self, record: bytes, key: bytes, member: int) -> None:
        if not hmac.compare_digest(self._tag(key, member), record[:KEY_BYTES]):
            raise RemoteProtocolError(Code.SECRET, "its confirmation is of another group key")

    def _tag(self, key: bytes, member: int) -> bytes:
        return derive(key, KeyLabel.KEY_CONFIRMATION, salt=self.digest, info=_place(member))

    def _channel_key(self, channel: AgreementKey, peer: int, *, owner: int, holder: int) -> bytes:
        secret = channel.agree(channel_key_of(self.commits[peer]))
        return derive(secret, KeyLabel.CONTRIBUTION_CHANNEL, salt=self.digest, info=_place(owner) + _place(holder))


def _check_signed(agreement: KeyAgreement, member: int, record: bytes, label: Label, *parts: bytes) -> None:
    verify(agreement.signing_keys[member], record[-SIGNATURE_BYTES:], label, *parts)


def _place(member: int) -> bytes:
    return member.to_bytes(2, "little")
