"""The messages about the clients' group key: the agreement, and the model encrypted under the key."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta

from tacit.protocol.core.errors import DETAIL_LIMIT, Code
from tacit.protocol.core.messages import Bitmap, Blob, Hash, Index, Message, Records, Signature, by_type


class StartKey(Message, frozen=True, kw_only=True):
    """Server to client, between rounds: agree on a group key with these members, in this attempt."""

    epoch: Index
    """Number of the attempt; rises through the session."""
    members: Bitmap
    """The members of the group, over the clients of the roster in its order."""


class EndKey(Message, frozen=True, kw_only=True):
    """Server to client: the attempt failed, so its key must not be used, even by members that accepted it."""

    epoch: Index
    code: Code
    detail: Annotated[str, Meta(max_length=DETAIL_LIMIT)]
    culprit: Annotated[str, Meta(max_length=64)]


class ReencryptModel(Message, frozen=True, kw_only=True):
    """Server to one client, after an agreement: request the model under the new key."""

    epoch: Index
    """Epoch of the key to encrypt under."""
    source: Literal["clients", "server", "key", "remembered"]
    """Source of the model: made from the new key; the server's, in the clear; the server's, under the former key; or
    the client's persisted one of an earlier session."""
    former: Index
    """Epoch of the former key; 0 for other sources."""
    model: Blob
    """The server's model, under the label of models; all zero for "clients" and "remembered"."""
    round: Index
    """For "remembered": least round after which the model is wanted; 0 for other sources."""


class KeyedModel(Message, frozen=True, kw_only=True):
    """Either way: the model under the key of this epoch can be fetched. To a client it is the last model of all."""

    epoch: Index
    model: Blob
    """Under the label of models; all zero from a client without the requested one."""


class KeyCommit(Message, frozen=True, kw_only=True):
    """Group key, client to server: a fresh public key, and a commitment to the client's contribution."""

    epoch: Index
    channel_key: Hash
    """X25519 key that encrypts contributions between clients."""
    commitment: Hash
    """Hash of the contribution."""
    signature: Signature


class PeerKeyCommits(Message, frozen=True, kw_only=True):
    """Group key, server to client: the commitments of all members, which then contribute."""

    commits: Records
    """Per member: channel key (32), commitment (32), signature (64)."""


class KeyContribution(Message, frozen=True, kw_only=True):
    """Group key, client to server: the contribution, encrypted for each other member."""

    epoch: Index
    packets: Records
    """Per other member: sealed contribution (48), signature (64)."""


class PeerKeyContributions(Message, frozen=True, kw_only=True):
    """Group key, server to client: every other member's contribution for the receiver; then members confirm."""

    packets: Records
    """Per other member: sealed contribution (48), signature (64)."""


class ConfirmKey(Message, frozen=True, kw_only=True):
    """Group key, client to server: a tag that only a holder of the key can make for this client."""

    epoch: Index
    tag: Hash
    signature: Signature


class PeerKeyConfirmations(Message, frozen=True, kw_only=True):
    """Group key, server to client: the confirmations of all members; a member that verifies all of them accepts the
    key."""

    confirmations: Records
    """Per member: tag (32), signature (64)."""


class KeyAccepted(Message, frozen=True, kw_only=True):
    """Group key, client to server: this client holds the key."""

    epoch: Index


class KeyComplaint(Message, frozen=True, kw_only=True):
    """Group key, client to server: proof that this member signed an invalid contribution or confirmation.

    The client discloses its own channel key, which ends the attempt: the server can now open the packets sent to it."""

    epoch: Index
    accused: Index
    """Position among the members."""
    channel_private: Hash

    def __repr__(self) -> str:
        return f"KeyComplaint(accused={self.accused}, <secret>)"


GROUP_KEY_MESSAGES: Final = by_type(
    StartKey,
    EndKey,
    ReencryptModel,
    KeyedModel,
    KeyCommit,
    PeerKeyCommits,
    KeyContribution,
    PeerKeyContributions,
    ConfirmKey,
    PeerKeyConfirmations,
    KeyAccepted,
    KeyComplaint,
)
"""Every message about group keys by its name on the wire."""
