"""The messages about the clients' group key: agreeing on one, and the model that is encrypted under it."""

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
    """Server to client: the attempt failed, so its key must not be used, whoever accepted it."""

    epoch: Index
    code: Code
    detail: Annotated[str, Meta(max_length=DETAIL_LIMIT)]
    culprit: Annotated[str, Meta(max_length=64)]


class ReencryptModel(Message, frozen=True, kw_only=True):
    """Server to one client, after an agreement: give me the model under the new key."""

    epoch: Index
    """The key to encrypt under."""
    source: Literal["clients", "server", "key", "remembered"]
    """Where it comes from: made from the new key; the server's, in the clear; the server's, under the former key; what
    the client remembers of an earlier session."""
    former: Index
    """Epoch of the former key; 0 for other sources."""
    model: Blob
    """The server's model, under the label of models; all zero for "clients" and "remembered"."""
    round: Index
    """For "remembered": after which round the model is wanted, or after a later one; 0 for other sources."""


class KeyedModel(Message, frozen=True, kw_only=True):
    """Either way: the model under the key of this epoch can be fetched. To a client it is the last model of all."""

    epoch: Index
    model: Blob
    """Under the label of models; all zero from a client that remembers none as it was asked for."""


class KeyCommit(Message, frozen=True, kw_only=True):
    """Group key, client to server: a fresh public key, and a commitment to what the client will contribute."""

    epoch: Index
    channel_key: Hash
    """X25519 key that encrypts contributions between clients."""
    commitment: Hash
    """Hash of the contribution."""
    signature: Signature


class PeerKeyCommits(Message, frozen=True, kw_only=True):
    """Group key, server to client: what all members committed to; now they contribute."""

    commits: Records
    """Per member: channel key (32), commitment (32), signature (64)."""


class KeyContribution(Message, frozen=True, kw_only=True):
    """Group key, client to server: the contribution, encrypted for each other member."""

    epoch: Index
    packets: Records
    """Per other member: sealed contribution (48), signature (64)."""


class PeerKeyContributions(Message, frozen=True, kw_only=True):
    """Group key, server to client: what every other member contributed, for the receiver; now they confirm."""

    packets: Records
    """Per other member: sealed contribution (48), signature (64)."""


class ConfirmKey(Message, frozen=True, kw_only=True):
    """Group key, client to server: a tag that only a holder of the key can make for this client."""

    epoch: Index
    tag: Hash
    signature: Signature


class PeerKeyConfirmations(Message, frozen=True, kw_only=True):
    """Group key, server to client: the confirmations of all members; who finds all of them right accepts the key."""

    confirmations: Records
    """Per member: tag (32), signature (64)."""


class KeyAccepted(Message, frozen=True, kw_only=True):
    """Group key, client to server: I hold the key."""

    epoch: Index


class KeyComplaint(Message, frozen=True, kw_only=True):
    """Group key, client to server: this member signed a contribution or a confirmation that is wrong; see for yourself.

    The client gives its own channel key away, which ends the attempt: the server can now open what it was sent.
    """

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
