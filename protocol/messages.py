"""Every message of the protocol, as an immutable typed structure.

A message is the body of one multipart message; arrays travel in a raw frame behind it (see codec.py), never inside.
Sets of members are bitmaps (members.py). Records of fixed size that belong to the members of a set are one byte string
in the rising order of the members, so that their number and their owners cannot be stated twice.

A client's messages belong to a phase; a server's message opens the next one.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar, Final, Literal

import msgspec
from msgspec import Meta

from tacit.protocol.errors import DETAIL_LIMIT, Code

LARGEST_COHORT: Final = 10_000
BODY_LIMIT: Final = 8 << 20
"""Longest body in bytes."""
CHUNK_BYTES: Final = 1 << 20
"""Longest raw frame in bytes. Models and vectors that are longer travel in several chunks."""
MOST_PROMISES: Final = 64
"""Rounds that one member's promises, and the proofs for one model, may speak of."""

Hash = Annotated[bytes, Meta(min_length=32, max_length=32)]
Bitmap = Annotated[bytes, Meta(max_length=(LARGEST_COHORT + 7) // 8)]
Signature = Annotated[bytes, Meta(max_length=64)]
"""Empty in semi-honest mode; its length is checked where it is verified."""
Records = Annotated[bytes, Meta(max_length=BODY_LIMIT)]
Index = Annotated[int, Meta(ge=0, le=2**31)]
Round = Annotated[int, Meta(ge=0, le=2**31)]
ModelBytes = Annotated[int, Meta(ge=0, le=2**40)]


class Phase(StrEnum):
    """The parts of a round, as deadlines, reports and fault injection name them."""

    SESSION = "SESSION"
    """What belongs to no phase of a round."""
    TRAIN = "TRAIN"
    ADVERTISE_KEYS = "ADVERTISE_KEYS"
    SHARE_KEYS = "SHARE_KEYS"
    MASKED_INPUT = "MASKED_INPUT"
    CONSISTENCY_CHECK = "CONSISTENCY_CHECK"
    UNMASK = "UNMASK"


class Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all messages.

    TYPE is the name on the wire; PHASE is the phase whose traffic it counts for; PAYLOAD says whether a raw frame may
    follow the body.
    """

    TYPE: ClassVar[str]
    PHASE: ClassVar[Phase]
    PAYLOAD: ClassVar[bool] = False


class VoidRound(Message, frozen=True, kw_only=True):
    """Client to server, at the end of a round that it masked a vector for without unmasking: it never will.

    With such promises from more than sharers - threshold members nobody can have opened that round's sum, so the same
    model may be contributed to again.
    """

    TYPE: ClassVar[str] = "void-round"
    PHASE: ClassVar[Phase] = Phase.SESSION
    session: Hash
    """Session of the void round."""
    round: Round
    signature: Signature


class Hello(Message, frozen=True, kw_only=True):
    """Client to server: I am here and hold this roster."""

    TYPE: ClassVar[str] = "hello"
    PHASE: ClassVar[Phase] = Phase.SESSION
    roster: Hash
    """Hash of the roster that the client was given out of band."""
    promises: Annotated[tuple[VoidRound, ...], Meta(max_length=MOST_PROMISES)]
    """For the latest rounds of former sessions whose vector it masked without unmasking."""


class Welcome(Message, frozen=True, kw_only=True):
    """Server to client: the session (in the envelope) and what everybody will compute."""

    TYPE: ClassVar[str] = "welcome"
    PHASE: ClassVar[Phase] = Phase.SESSION
    roster: Hash
    configuration: Annotated[bytes, Meta(max_length=BODY_LIMIT)]
    """Canonical encoding of a Configuration; its hash enters every signature and every mask."""


class Promise(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A VoidRound of a member, as the server passes it on to the others."""

    member: Annotated[str, Meta(max_length=64)]
    signature: Signature


class VoidedRound(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A former round of the same model with the promises that show that its sum was never opened."""

    session: Hash
    round: Round
    promises: Annotated[tuple[Promise, ...], Meta(max_length=LARGEST_COHORT)]


class StartRound(Message, frozen=True, kw_only=True):
    """Server to client: take part in this round (its number is in the envelope), from this model."""

    TYPE: ClassVar[str] = "start-round"
    PHASE: ClassVar[Phase] = Phase.TRAIN
    cohort: Bitmap
    """The clients selected, over the clients of the roster in its order."""
    model: Hash
    """Digest of the bytes of the model, under the label of models."""
    model_bytes: ModelBytes
    voided: Annotated[tuple[VoidedRound, ...], Meta(max_length=MOST_PROMISES)]


class FetchModel(Message, frozen=True, kw_only=True):
    """Client to server: send me this chunk of the model."""

    TYPE: ClassVar[str] = "fetch-model"
    PHASE: ClassVar[Phase] = Phase.TRAIN
    chunk: Index


class ModelChunk(Message, frozen=True, kw_only=True):
    """Server to client: little-endian float32 bytes of the model from chunk * CHUNK_BYTES on, in the raw frame."""

    TYPE: ClassVar[str] = "model-chunk"
    PHASE: ClassVar[Phase] = Phase.TRAIN
    PAYLOAD: ClassVar[bool] = True
    chunk: Index


class AdvertiseKeys(Message, frozen=True, kw_only=True):
    """Phase ADVERTISE_KEYS, client to server: fresh public keys for this round."""

    TYPE: ClassVar[str] = "advertise-keys"
    PHASE: ClassVar[Phase] = Phase.ADVERTISE_KEYS
    channel_key: Hash
    """X25519 key that encrypts shares between clients."""
    mask_key: Hash
    """X25519 key that pairwise masks derive from; revealed by the others if its owner drops out."""
    choices: Annotated[bytes, Meta(max_length=2 * LARGEST_COHORT)]
    """In an active regular graph the members chosen to hold its shares, uint16 little-endian, rising; else empty."""
    signature: Signature


class PeerKeys(Message, frozen=True, kw_only=True):
    """Opens SHARE_KEYS, server to client: who advertised, and the keys of the receiver and of its neighbours."""

    TYPE: ClassVar[str] = "peer-keys"
    PHASE: ClassVar[Phase] = Phase.SHARE_KEYS
    advertised: Bitmap
    digest: Hash
    """Hash over all adverts; it enters every derived key, and in the complete graph the client recomputes it."""
    included: Bitmap
    """Whose adverts follow."""
    adverts: Records


class ShareKeys(Message, frozen=True, kw_only=True):
    """Phase SHARE_KEYS, client to server: an encrypted pair of shares and the commitments to them, for each holder."""

    TYPE: ClassVar[str] = "share-keys"
    PHASE: ClassVar[Phase] = Phase.SHARE_KEYS
    seed_commitment: Hash
    """Hash of the self-mask seed."""
    holders: Bitmap
    packets: Records
    """Per holder: commitment to the key share (32), to the seed share (32), sealed shares (88)."""
    signature: Signature


class PeerShares(Message, frozen=True, kw_only=True):
    """Opens MASKED_INPUT, server to client: who shared, and the packets that the receiver holds."""

    TYPE: ClassVar[str] = "peer-shares"
    PHASE: ClassVar[Phase] = Phase.MASKED_INPUT
    sharers: Bitmap
    owners: Bitmap
    """Whose packets follow."""
    packets: Records


class MaskedInput(Message, frozen=True, kw_only=True):
    """Phase MASKED_INPUT, client to server: the masked vector is ready; it follows at once if it fits one chunk."""

    TYPE: ClassVar[str] = "masked-input"
    PHASE: ClassVar[Phase] = Phase.MASKED_INPUT
    PAYLOAD: ClassVar[bool] = True
    complaints: Bitmap
    """Members whose shares for this client were undecryptable or not those committed to."""


class FetchVector(Message, frozen=True, kw_only=True):
    """Server to client: send me this chunk of the masked vector."""

    TYPE: ClassVar[str] = "fetch-vector"
    PHASE: ClassVar[Phase] = Phase.MASKED_INPUT
    chunk: Index


class VectorChunk(Message, frozen=True, kw_only=True):
    """Client to server: packed ring words of the masked vector, this chunk of it, in the raw frame."""

    TYPE: ClassVar[str] = "vector-chunk"
    PHASE: ClassVar[Phase] = Phase.MASKED_INPUT
    PAYLOAD: ClassVar[bool] = True
    chunk: Index


class Survivors(Message, frozen=True, kw_only=True):
    """Opens CONSISTENCY_CHECK (active mode), server to client: whose vectors are in the sum."""

    TYPE: ClassVar[str] = "survivors"
    PHASE: ClassVar[Phase] = Phase.CONSISTENCY_CHECK
    survivors: Bitmap


class ConfirmSurvivors(Message, frozen=True, kw_only=True):
    """Phase CONSISTENCY_CHECK, client to server: my signature over the survivors that I was told."""

    TYPE: ClassVar[str] = "confirm-survivors"
    PHASE: ClassVar[Phase] = Phase.CONSISTENCY_CHECK
    signature: Signature


class UnmaskRequest(Message, frozen=True, kw_only=True):
    """Opens UNMASK, server to client: the survivors, and in active mode the signatures that all were told the same."""

    TYPE: ClassVar[str] = "unmask-request"
    PHASE: ClassVar[Phase] = Phase.UNMASK
    survivors: Bitmap
    signers: Bitmap
    signatures: Records
    """64 bytes per signer; empty in semi-honest mode."""


class UnmaskShares(Message, frozen=True, kw_only=True):
    """Phase UNMASK, client to server: for each owner one share: of the seed if it survived, of the mask key if not."""

    TYPE: ClassVar[str] = "unmask-shares"
    PHASE: ClassVar[Phase] = Phase.UNMASK
    owners: Bitmap
    shares: Records
    """36 bytes per owner."""

    def __repr__(self) -> str:
        return "UnmaskShares(<secret>)"


class StartSecondStage(Message, frozen=True, kw_only=True):
    """Server to client, after the sum of counts: now contribute, but only within these limits."""

    TYPE: ClassVar[str] = "start-second-stage"
    PHASE: ClassVar[Phase] = Phase.TRAIN
    cohort: Bitmap
    """Who takes part, over the clients of the roster in its order."""
    limits: Hash
    """Digest of a bitmap over the coordinates."""


class FetchLimits(Message, frozen=True, kw_only=True):
    """Client to server: send me this chunk of the limits."""

    TYPE: ClassVar[str] = "fetch-limits"
    PHASE: ClassVar[Phase] = Phase.TRAIN
    chunk: Index


class LimitsChunk(Message, frozen=True, kw_only=True):
    """Server to client: the bitmap from byte chunk * CHUNK_BYTES on, in the raw frame."""

    TYPE: ClassVar[str] = "limits-chunk"
    PHASE: ClassVar[Phase] = Phase.TRAIN
    PAYLOAD: ClassVar[bool] = True
    chunk: Index


class EndRound(Message, frozen=True, kw_only=True):
    """Server to client: the round is over; without a code if its sum was applied, else why not."""

    TYPE: ClassVar[str] = "end-round"
    PHASE: ClassVar[Phase] = Phase.SESSION
    code: Code | None
    detail: Annotated[str, Meta(max_length=DETAIL_LIMIT)]


class Finish(Message, frozen=True, kw_only=True):
    """Server to client: no more rounds."""

    TYPE: ClassVar[str] = "finish"
    PHASE: ClassVar[Phase] = Phase.SESSION


class Abort(Message, frozen=True, kw_only=True):
    """Either way: I end this round (or, outside a round, the session) for this reason."""

    TYPE: ClassVar[str] = "abort"
    PHASE: ClassVar[Phase] = Phase.SESSION
    code: Code
    detail: Annotated[str, Meta(max_length=DETAIL_LIMIT)]
    culprit: Annotated[str, Meta(max_length=64)]
    """The member at fault, or empty."""


class StartKey(Message, frozen=True, kw_only=True):
    """Server to client, between rounds: agree on a group key with these members, in this attempt."""

    TYPE: ClassVar[str] = "start-key"
    PHASE: ClassVar[Phase] = Phase.SESSION
    epoch: Index
    """Number of the attempt; rises through the session."""
    members: Bitmap
    """The members of the group, over the clients of the roster in its order."""


class EndKey(Message, frozen=True, kw_only=True):
    """Server to client: the attempt failed, so its key must not be used, whoever accepted it."""

    TYPE: ClassVar[str] = "end-key"
    PHASE: ClassVar[Phase] = Phase.SESSION
    epoch: Index
    code: Code
    detail: Annotated[str, Meta(max_length=DETAIL_LIMIT)]
    culprit: Annotated[str, Meta(max_length=64)]


class ReencryptModel(Message, frozen=True, kw_only=True):
    """Server to one client, after an agreement: give me the model under the new key."""

    TYPE: ClassVar[str] = "reencrypt-model"
    PHASE: ClassVar[Phase] = Phase.SESSION
    epoch: Index
    """The key to encrypt under."""
    source: Literal["clients", "server", "key"]
    """Where it comes from: made from the new key; the server's, in the clear; the server's, under the former key."""
    former: Index
    """Epoch of the former key; 0 for other sources."""
    model: Hash
    """Digest of the server's model, under the label of models; zeros for "clients"."""
    model_bytes: ModelBytes


class KeyedModel(Message, frozen=True, kw_only=True):
    """Either way: the model under the key of this epoch can be fetched. To a client it is the last model of all."""

    TYPE: ClassVar[str] = "keyed-model"
    PHASE: ClassVar[Phase] = Phase.SESSION
    epoch: Index
    model: Hash
    model_bytes: ModelBytes


class FetchKeyedModel(Message, frozen=True, kw_only=True):
    """Either way, outside of rounds: send me this chunk of the model that you announced."""

    TYPE: ClassVar[str] = "fetch-keyed-model"
    PHASE: ClassVar[Phase] = Phase.SESSION
    chunk: Index


class KeyedModelChunk(Message, frozen=True, kw_only=True):
    """Either way: little-endian float32 bytes of that model from chunk * CHUNK_BYTES on, in the raw frame."""

    TYPE: ClassVar[str] = "keyed-model-chunk"
    PHASE: ClassVar[Phase] = Phase.SESSION
    PAYLOAD: ClassVar[bool] = True
    chunk: Index


class KeyCommit(Message, frozen=True, kw_only=True):
    """Group key, client to server: a fresh public key, and a commitment to what the client will contribute."""

    TYPE: ClassVar[str] = "key-commit"
    PHASE: ClassVar[Phase] = Phase.SESSION
    epoch: Index
    channel_key: Hash
    """X25519 key that encrypts contributions between clients."""
    commitment: Hash
    """Hash of the contribution."""
    signature: Signature


class PeerKeyCommits(Message, frozen=True, kw_only=True):
    """Group key, server to client: what all members committed to; now they contribute."""

    TYPE: ClassVar[str] = "peer-key-commits"
    PHASE: ClassVar[Phase] = Phase.SESSION
    commits: Records
    """Per member: channel key (32), commitment (32), signature (64)."""


class KeyContribution(Message, frozen=True, kw_only=True):
    """Group key, client to server: the contribution, encrypted for each other member."""

    TYPE: ClassVar[str] = "key-contribution"
    PHASE: ClassVar[Phase] = Phase.SESSION
    epoch: Index
    packets: Records
    """Per other member: sealed contribution (48), signature (64)."""


class PeerKeyContributions(Message, frozen=True, kw_only=True):
    """Group key, server to client: what every other member contributed, for the receiver; now they confirm."""

    TYPE: ClassVar[str] = "peer-key-contributions"
    PHASE: ClassVar[Phase] = Phase.SESSION
    packets: Records
    """Per other member: sealed contribution (48), signature (64)."""


class ConfirmKey(Message, frozen=True, kw_only=True):
    """Group key, client to server: a tag that only a holder of the key can make for this client."""

    TYPE: ClassVar[str] = "confirm-key"
    PHASE: ClassVar[Phase] = Phase.SESSION
    epoch: Index
    tag: Hash
    signature: Signature


class PeerKeyConfirmations(Message, frozen=True, kw_only=True):
    """Group key, server to client: the confirmations of all members; who finds all of them right accepts the key."""

    TYPE: ClassVar[str] = "peer-key-confirmations"
    PHASE: ClassVar[Phase] = Phase.SESSION
    confirmations: Records
    """Per member: tag (32), signature (64)."""


class KeyAccepted(Message, frozen=True, kw_only=True):
    """Group key, client to server: I hold the key."""

    TYPE: ClassVar[str] = "key-accepted"
    PHASE: ClassVar[Phase] = Phase.SESSION
    epoch: Index


class KeyComplaint(Message, frozen=True, kw_only=True):
    """Group key, client to server: this member signed a contribution or a confirmation that is wrong; see for yourself.

    The client gives its own channel key away, which ends the attempt: the server can now open what it was sent.
    """

    TYPE: ClassVar[str] = "key-complaint"
    PHASE: ClassVar[Phase] = Phase.SESSION
    epoch: Index
    accused: Index
    """Position among the members."""
    channel_private: Hash

    def __repr__(self) -> str:
        return f"KeyComplaint(accused={self.accused}, <secret>)"


MESSAGES: Final[dict[str, type[Message]]] = {
    kind.TYPE: kind
    for kind in (
        Hello, Welcome, VoidRound, StartRound, FetchModel, ModelChunk, AdvertiseKeys, PeerKeys, ShareKeys, PeerShares,
        MaskedInput, FetchVector, VectorChunk, Survivors, ConfirmSurvivors, UnmaskRequest, UnmaskShares,
        StartSecondStage, FetchLimits, LimitsChunk, EndRound, Finish, Abort, StartKey, EndKey, ReencryptModel,
        KeyedModel, FetchKeyedModel, KeyedModelChunk, KeyCommit, PeerKeyCommits, KeyContribution,
        PeerKeyContributions, ConfirmKey, PeerKeyConfirmations, KeyAccepted, KeyComplaint,
    )
}  # fmt: skip
"""Every type by its name on the wire."""
