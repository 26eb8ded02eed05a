"""The messages of one secure sum. A client's messages belong to a phase; a server's message opens the next one."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

from msgspec import Meta

from tacit.protocol.core.messages import LARGEST_COHORT, Bitmap, Hash, Index, Message, Records, Signature, by_type
from tacit.protocol.sum.spending import Spent
from tacit.protocol.sum.states import Phase


class AdvertiseKeys(Message, frozen=True, kw_only=True):
    """Phase ADVERTISE_KEYS, client to server: fresh public keys for this round."""

    PHASE: ClassVar[Phase] = Phase.ADVERTISE_KEYS
    channel_key: Hash
    """X25519 key that encrypts shares between clients."""
    mask_key: Hash
    """X25519 key that pairwise masks derive from; revealed by the others if its owner drops out."""
    choices: Annotated[bytes, Meta(max_length=2 * LARGEST_COHORT)]
    """In an active regular graph the members chosen to hold its shares, uint16 little-endian, rising; else empty."""
    spent: Spent
    """This client's spent privacy budget, including this round; zeros if nothing, empty without `spending`."""
    signature: Signature


class PeerKeys(Message, frozen=True, kw_only=True):
    """Opens SHARE_KEYS, server to client: the advertisers, and the keys of the receiver and its neighbours."""

    PHASE: ClassVar[Phase] = Phase.SHARE_KEYS
    advertised: Bitmap
    digest: Hash
    """Hash over all adverts; it enters every derived key, and in the complete graph the client recomputes it."""
    included: Bitmap
    """Members whose adverts follow."""
    adverts: Records


class ShareKeys(Message, frozen=True, kw_only=True):
    """Phase SHARE_KEYS, client to server: an encrypted pair of shares and the commitments to them, for each holder."""

    PHASE: ClassVar[Phase] = Phase.SHARE_KEYS
    seed_commitment: Hash
    """Hash of the self-mask seed."""
    holders: Bitmap
    packets: Records
    """Per holder: commitment to the key share (32), to the seed share (32), and sealed (88) both shares; with
    `spending` also (72 more) the highest statement of the holder's spending that the sender has."""
    signatures: Records
    """64 bytes per packet; empty in semi-honest mode."""


class PeerShares(Message, frozen=True, kw_only=True):
    """Opens MASKED_INPUT, server to client: the members that shared, and the packets that the receiver holds."""

    PHASE: ClassVar[Phase] = Phase.MASKED_INPUT
    sharers: Bitmap
    owners: Bitmap
    """Members whose packets follow."""
    packets: Records
    signatures: Records
    """The owners' signatures over the packets."""


class MaskedInput(Message, frozen=True, kw_only=True):
    """Phase MASKED_INPUT, client to server: the masked vector is ready; it follows at once if it fits one chunk."""

    PHASE: ClassVar[Phase] = Phase.MASKED_INPUT
    PAYLOAD: ClassVar[bool] = True
    complaints: Bitmap
    """Members whose shares for this client were undecryptable or not those committed to."""
    signatures: Records
    """64 bytes per complaint; empty in semi-honest mode."""


class FetchVector(Message, frozen=True, kw_only=True):
    """Server to client: request this chunk of the masked vector."""

    PHASE: ClassVar[Phase] = Phase.MASKED_INPUT
    chunk: Index


class VectorChunk(Message, frozen=True, kw_only=True):
    """Client to server: packed ring words of this chunk of the masked vector, in the raw frame."""

    PHASE: ClassVar[Phase] = Phase.MASKED_INPUT
    PAYLOAD: ClassVar[bool] = True
    chunk: Index


class PeerComplaints(Message, frozen=True, kw_only=True):
    """Opens ANSWER_COMPLAINTS, server to an accused client: the holders whose shares do not match its commitments."""

    PHASE: ClassVar[Phase] = Phase.ANSWER_COMPLAINTS
    holders: Bitmap
    signatures: Records
    """The holders' signatures over their complaints."""


class AnswerComplaints(Message, frozen=True, kw_only=True):
    """Phase ANSWER_COMPLAINTS, client to server: both shares of every holder that complained, in the clear."""

    PHASE: ClassVar[Phase] = Phase.ANSWER_COMPLAINTS
    shares: Records
    """72 bytes per holder: of the mask key, of the self-mask seed."""

    def __repr__(self) -> str:
        return "AnswerComplaints(<secret>)"


class Survivors(Message, frozen=True, kw_only=True):
    """Opens CONSISTENCY_CHECK (active mode), server to client: the members whose vectors are in the sum."""

    PHASE: ClassVar[Phase] = Phase.CONSISTENCY_CHECK
    survivors: Bitmap


class ConfirmSurvivors(Message, frozen=True, kw_only=True):
    """Phase CONSISTENCY_CHECK, client to server: signature over the received survivors."""

    PHASE: ClassVar[Phase] = Phase.CONSISTENCY_CHECK
    signature: Signature


class UnmaskRequest(Message, frozen=True, kw_only=True):
    """Opens UNMASK, server to client: the survivors, and in active mode the signatures that prove equal lists."""

    PHASE: ClassVar[Phase] = Phase.UNMASK
    survivors: Bitmap
    signers: Bitmap
    signatures: Records
    """64 bytes per signer; empty in semi-honest mode."""
    answered: Bitmap
    """Owners that answered the receiver's complaints."""
    answers: Records
    """Both their shares for it, 72 bytes each."""

    def __repr__(self) -> str:
        return "UnmaskRequest(<secret>)"


class UnmaskShares(Message, frozen=True, kw_only=True):
    """Phase UNMASK, client to server: for each owner one share: of the seed if it survived, of the mask key if not."""

    PHASE: ClassVar[Phase] = Phase.UNMASK
    owners: Bitmap
    shares: Records
    """36 bytes per owner."""

    def __repr__(self) -> str:
        return "UnmaskShares(<secret>)"


SUM_MESSAGES: Final = by_type(
    AdvertiseKeys,
    PeerKeys,
    ShareKeys,
    PeerShares,
    MaskedInput,
    FetchVector,
    VectorChunk,
    PeerComplaints,
    AnswerComplaints,
    Survivors,
    ConfirmSurvivors,
    UnmaskRequest,
    UnmaskShares,
)
"""Every message of a secure sum by its name on the wire."""
