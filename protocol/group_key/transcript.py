"""What both ends of an agreement on a group key compute alike: commitments, contributions, the key, confirmations.

Everything is bound to the context of the agreement, and after the first exchange to the transcript, the hash over all
signed commitments: whoever was told other members or other commitments finds that no signature verifies. Every record
is signed by its owner for itself, so that a wrong record with a right signature is its owner's fault, and one with a
wrong signature the fault of who passed it on.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from tacit.protocol.core.errors import Code, RemoteProtocolError
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
from tacit.protocol.group_key.agreement import KeyAgreement

COMMIT_BYTES: Final = 2 * KEY_BYTES + SIGNATURE_BYTES
SEALED_BYTES: Final = KEY_BYTES + TAG_BYTES
PACKET_BYTES: Final = SEALED_BYTES + SIGNATURE_BYTES
CONFIRMATION_BYTES: Final = KEY_BYTES + SIGNATURE_BYTES


def commit_record(
    agreement: KeyAgreement, member: int, signing: SigningKey, *, channel_key: bytes, contribution: bytes
) -> bytes:
    """Channel key, commitment, signature. A hash is enough, because a contribution is 32 bytes of randomness."""
    signed = channel_key + digest(Label.CONTRIBUTION, agreement.context, _place(member), contribution)
    return signed + signing.sign(Label.SIGN_KEY_COMMIT, agreement.context, _place(member), signed)


def check_commits(agreement: KeyAgreement, commits: dict[int, bytes]) -> None:
    """Refuse records with an invalid channel key, with the same one twice, or not signed by their members."""
    for member, record in commits.items():
        check_public_key(channel_key_of(record))
        signed = record[: 2 * KEY_BYTES]
        _check_signed(agreement, member, record, Label.SIGN_KEY_COMMIT, agreement.context, _place(member), signed)
    if len({channel_key_of(record) for record in commits.values()}) != len(commits):
        raise RemoteProtocolError(Code.KEYS, "two channel keys of the agreement are equal")


def channel_key_of(record: bytes) -> bytes:
    """The channel key within a commit record."""
    return record[:KEY_BYTES]


@dataclass(frozen=True)
class Transcript:
    """The agreement after all members committed. `commits`: checked records of all members, in their order."""

    agreement: KeyAgreement
    commits: dict[int, bytes]

    @cached_property
    def digest(self) -> bytes:
        """32 bytes over all of it: the salt of every derived key, and part of every later signature."""
        return digest(Label.KEY_TRANSCRIPT, self.agreement.context, b"".join(self.commits.values()))

    def packet(
        self, channel: AgreementKey, signing: SigningKey, contribution: bytes, *, owner: int, holder: int
    ) -> bytes:
        """The owner's contribution sealed for the holder, and its signature."""
        key = self._channel_key(channel, holder, owner=owner, holder=holder)
        signed = self.digest, _place(owner), _place(holder), seal(key, contribution, associated=self.digest)
        return signed[-1] + signing.sign(Label.SIGN_CONTRIBUTION, *signed)

    def check_packet(self, packet: bytes, *, owner: int, holder: int) -> None:
        """Refuse a packet that the owner did not sign for this holder."""
        signed = self.digest, _place(owner), _place(holder), packet[:SEALED_BYTES]
        _check_signed(self.agreement, owner, packet, Label.SIGN_CONTRIBUTION, *signed)

    def contribution(self, packet: bytes, channel: AgreementKey, peer: int, *, owner: int, holder: int) -> bytes:
        """What a packet holds; refuses what does not open, or is not what the owner committed to.

        channel: key of one end, owner or holder; peer: the other end.
        """
        key = self._channel_key(channel, peer, owner=owner, holder=holder)
        contribution = open_sealed(key, packet[:SEALED_BYTES], associated=self.digest)
        committed = digest(Label.CONTRIBUTION, self.agreement.context, _place(owner), contribution)
        if not hmac.compare_digest(committed, self.commits[owner][KEY_BYTES : 2 * KEY_BYTES]):
            raise RemoteProtocolError(Code.SECRET, "its contribution to the group key is not what it committed to")
        return contribution

    def group_key(self, contributions: dict[int, bytes]) -> bytes:
        """32 bytes: HKDF over the contributions in the order of the members, salted with the transcript."""
        secret = b"".join(contributions[member] for member in range(self.agreement.size))
        return derive(secret, Label.GROUP_KEY, salt=self.digest)

    def confirmation(self, key: bytes, signing: SigningKey, member: int) -> bytes:
        """The member's tag under the group key, and its signature."""
        tag = self._tag(key, member)
        return tag + signing.sign(Label.SIGN_CONFIRMATION, self.digest, _place(member), tag)

    def check_confirmation(self, record: bytes, member: int) -> None:
        """Refuse a confirmation that the member did not sign. Whether its tag is right is for `check_tag`."""
        signed = self.digest, _place(member), record[:KEY_BYTES]
        _check_signed(self.agreement, member, record, Label.SIGN_CONFIRMATION, *signed)

    def check_tag(self, record: bytes, key: bytes, member: int) -> None:
        """Refuse a confirmation of another key."""
        if not hmac.compare_digest(self._tag(key, member), record[:KEY_BYTES]):
            raise RemoteProtocolError(Code.SECRET, "its confirmation is of another group key")

    def _tag(self, key: bytes, member: int) -> bytes:
        return derive(key, Label.KEY_CONFIRMATION, salt=self.digest, info=_place(member))

    def _channel_key(self, channel: AgreementKey, peer: int, *, owner: int, holder: int) -> bytes:
        secret = channel.agree(channel_key_of(self.commits[peer]))
        return derive(secret, Label.CONTRIBUTION_CHANNEL, salt=self.digest, info=_place(owner) + _place(holder))


def _check_signed(agreement: KeyAgreement, member: int, record: bytes, label: Label, *parts: bytes) -> None:
    verify(agreement.signing_keys[member], record[-SIGNATURE_BYTES:], label, *parts)


def _place(member: int) -> bytes:
    return member.to_bytes(2, "little")
