"""Messages of private inference: between a data owner and the model owner, and between both and the dealer.

Links are direct, and a link of private inference accepts only these message types. The envelope's round carries the
pass number, 0 outside a pass. Large data travels in raw frames, in chunks of CHUNK_BYTES; only the last is shorter. No
message states a total length: both sides know it from the terms or from the order.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

import msgspec
from msgspec import Meta

from tacit.protocol.core.messages import Abort, Hash, Index, Kinds, Message, by_type
from tacit.protocol.inference.schedule import Results, Sizes

INFERENCE_VERSION: Final = 6
"""Version of private inference alone. It is open: until it is frozen, messages may change without another number."""
TERMS_LIMIT: Final = 1 << 20
"""Longest encoding of terms, in bytes."""
ORDER_LIMIT: Final = 1 << 18
"""Longest encoding of the requests of one order, in bytes."""
MOST_AUDITED: Final = 1 << 15
"""Half of all requests."""
MOST_IMAGES: Final = 1 << 20
"""Largest number of images in one session."""

Images = Annotated[int, Meta(ge=1, le=MOST_IMAGES)]
Count = Annotated[int, Meta(ge=1, le=1 << 20)]
Number = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]


class Terms(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The model owner's offer: the computation, and everything public about it."""

    sizes: Sizes
    results: Results
    """Results that the data owner receives for each image."""
    weights: Hash
    """Commitment to the weights: a hash over a secret salt of the model owner and all words of the weights."""
    most_images: Images
    """Largest number of images in one session."""
    most_batch: Images
    """Largest number of images in one pass."""
    audited: Annotated[int, Meta(ge=0, le=MOST_AUDITED)]
    """Requests to the dealer that are opened and discarded on average, out of 65,536; 0: no audit."""
    arithmetic: Annotated[bytes, Meta(max_length=TERMS_LIMIT)]
    """Scales and tables of the computation, encoded; opaque to this protocol."""


class InferenceHello(Message, frozen=True, kw_only=True):
    """Data owner to model owner: opens a session and states the fingerprint of its roster."""

    roster: Hash


class InferenceTerms(Message, frozen=True, kw_only=True):
    """Model owner to data owner: the session (in the envelope), and the offered computation."""

    roster: Hash
    terms: Annotated[bytes, Meta(max_length=TERMS_LIMIT)]
    """Canonical encoding of Terms; its digest enters every key of correlated randomness."""


class AgreeTerms(Message, frozen=True, kw_only=True):
    """Data owner to model owner: accepts these terms; images in all, and per pass. The last has the remainder."""

    terms: Hash
    images: Images
    batch: Images


class MaskedWeights(Message, frozen=True, kw_only=True):
    """Model owner to data owner: a chunk of a layer's weights minus the dealer's mask, 8 bytes a word."""

    PAYLOAD: ClassVar[bool] = True
    layer: Index
    chunk: Index


class StartPass(Message, frozen=True, kw_only=True):
    """Data owner to model owner: requests the pass numbered in the envelope, with the model of this commitment."""

    weights: Hash


class PassStarted(Message, frozen=True, kw_only=True):
    """Model owner to data owner: begins the pass, with complete preprocessing and the model of this commitment."""

    weights: Hash


class AuditCommitment(Message, frozen=True, kw_only=True):
    """Model owner to data owner: its preprocessing for the pass has arrived; hash of its contribution to the coin."""

    commitment: Hash


class AuditCoin(Message, frozen=True, kw_only=True):
    """Between both owners, the data owner first: the sender's contribution to the coin, 32 fresh random bytes."""

    contribution: Hash


class AuditKeys(Message, frozen=True, kw_only=True):
    """Between both owners, the data owner first: keys of the requests that the coin picked, 32 bytes each."""

    PAYLOAD: ClassVar[bool] = True


class Opening(Message, frozen=True, kw_only=True):
    """Between both owners: a chunk of the sender's opening in a round of a pass."""

    PAYLOAD: ClassVar[bool] = True
    step: Index
    """Position of the round in the schedule of the pass."""
    chunk: Index


class CloseInference(Message, frozen=True, kw_only=True):
    """Data owner to model owner: ends the session; the data owner needs no further passes."""


class InferenceClosed(Message, frozen=True, kw_only=True):
    """Model owner to data owner: confirms the end of the session."""


class DealerHello(Message, frozen=True, kw_only=True):
    """Owner to dealer: joins the session (in the envelope) with this peer, on these terms."""

    roster: Hash
    peer: Annotated[str, Meta(max_length=64)]
    terms: Hash
    contribution: Hash
    """32 fresh random bytes, for this owner's preprocessing key."""

    def __repr__(self) -> str:
        return f"DealerHello(peer={self.peer!r}, <secret>)"


class DealerWelcome(Message, frozen=True, kw_only=True):
    """Dealer to owner: both owners have joined; 32 fresh random bytes for this owner's preprocessing key."""

    contribution: Hash

    def __repr__(self) -> str:
        return "DealerWelcome(<secret>)"


class OrderRandomness(Message, frozen=True, kw_only=True):
    """Owner to dealer: the next requests. Both owners must send the same order."""

    first: Number
    """Number of the first request. Requests are numbered throughout a session, and no number is used twice."""
    count: Count
    """Number of requests."""
    requests: Annotated[bytes, Meta(max_length=ORDER_LIMIT)]
    """The requests, encoded; opaque to this protocol, which only compares those of both owners."""


class Randomness(Message, frozen=True, kw_only=True):
    """Dealer to owner: a chunk of the corrections of a request, 8 bytes a word."""

    PAYLOAD: ClassVar[bool] = True
    number: Number
    chunk: Index


class DealingOver(Message, frozen=True, kw_only=True):
    """Owner to dealer: it will order nothing more."""


INFERENCE_MESSAGES: Final = Kinds(
    protocol="private inference",
    version=INFERENCE_VERSION,
    types=by_type(
        InferenceHello, InferenceTerms, AgreeTerms, MaskedWeights, StartPass, AuditCommitment, AuditCoin, AuditKeys,
        PassStarted, Opening, CloseInference, InferenceClosed, DealerHello, DealerWelcome, OrderRandomness, Randomness,
        DealingOver, Abort,
    ),
)  # fmt: skip
"""All messages on a link of private inference."""
