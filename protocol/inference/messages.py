"""The messages of private inference: between a data owner and the model owner, and of both with the dealer.

Links are direct, so a message belongs to a link of its own family: a link of private inference reads these types and no
others. Numbers of passes stand in the envelope's round, 0 outside a pass. Whatever is large travels in a raw frame, in
chunks of CHUNK_BYTES of which only the last is shorter; how long it is altogether is known beforehand, from the terms
or from what was ordered, and never said.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

import msgspec
from msgspec import Meta

from tacit.protocol.core.messages import Abort, Hash, Index, Kinds, Message, by_type
from tacit.protocol.inference.schedule import Results, Sizes

INFERENCE_VERSION: Final = 6
"""Of private inference alone. It is open: until it is frozen, messages may change without another number."""
TERMS_LIMIT: Final = 1 << 20
"""Longest encoding of terms, in bytes."""
ORDER_LIMIT: Final = 1 << 18
"""Longest encoding of the requests of one order, in bytes."""
MOST_AUDITED: Final = 1 << 15
"""Half of all requests."""
MOST_IMAGES: Final = 1 << 20
"""Images that one session may be for."""

Images = Annotated[int, Meta(ge=1, le=MOST_IMAGES)]
Count = Annotated[int, Meta(ge=1, le=1 << 20)]
Number = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]


class Terms(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the model owner offers to compute, and everything public about it."""

    sizes: Sizes
    results: Results
    """What the data owner is told of each image."""
    weights: Hash
    """Commitment to the weights: a hash over a secret salt of the model owner and all words of the weights."""
    most_images: Images
    """How many images one session may ask for."""
    most_batch: Images
    """How many images one pass may take."""
    audited: Annotated[int, Meta(ge=0, le=MOST_AUDITED)]
    """Of 65,536 requests to the dealer, how many are opened and discarded on average; 0: there is no audit."""
    arithmetic: Annotated[bytes, Meta(max_length=TERMS_LIMIT)]
    """Scales and tables of the computation, encoded; private inference as a protocol does not look inside."""


class InferenceHello(Message, frozen=True, kw_only=True):
    """Data owner to model owner: I am here and hold this roster."""

    roster: Hash


class InferenceTerms(Message, frozen=True, kw_only=True):
    """Model owner to data owner: the session (in the envelope), and what will be computed."""

    roster: Hash
    terms: Annotated[bytes, Meta(max_length=TERMS_LIMIT)]
    """Canonical encoding of Terms; its digest enters every key of the dealer's material."""


class AgreeTerms(Message, frozen=True, kw_only=True):
    """Data owner to model owner: on these terms, for so many images, so many in a pass; the last has the rest."""

    terms: Hash
    images: Images
    batch: Images


class MaskedWeights(Message, frozen=True, kw_only=True):
    """Model owner to data owner: a chunk of a layer's weights minus the dealer's mask, 8 bytes a word."""

    PAYLOAD: ClassVar[bool] = True
    layer: Index
    chunk: Index


class StartPass(Message, frozen=True, kw_only=True):
    """Data owner to model owner: begin the pass of this number with the model of this commitment."""

    weights: Hash


class PassStarted(Message, frozen=True, kw_only=True):
    """Model owner to data owner: the material is here; this is the commitment of the model that I compute with."""

    weights: Hash


class AuditCommitment(Message, frozen=True, kw_only=True):
    """Model owner to data owner: my randomness of the pass is here; the hash of my contribution to the coin."""

    commitment: Hash


class AuditCoin(Message, frozen=True, kw_only=True):
    """Between both owners, the data owner first: my contribution to the coin, 32 fresh random bytes."""

    contribution: Hash


class AuditKeys(Message, frozen=True, kw_only=True):
    """Between both owners, the data owner first: keys of the requests that the coin has picked, 32 bytes each."""

    PAYLOAD: ClassVar[bool] = True


class Opening(Message, frozen=True, kw_only=True):
    """Between both owners: a chunk of what this side opens in a round of a pass."""

    PAYLOAD: ClassVar[bool] = True
    step: Index
    """Position of the round in the schedule of the pass."""
    chunk: Index


class CloseInference(Message, frozen=True, kw_only=True):
    """Data owner to model owner: I have what I wanted."""


class InferenceClosed(Message, frozen=True, kw_only=True):
    """Model owner to data owner: nothing more will come."""


class DealerHello(Message, frozen=True, kw_only=True):
    """Owner to dealer: I am here for the session (in the envelope) with this peer, on these terms."""

    roster: Hash
    peer: Annotated[str, Meta(max_length=64)]
    terms: Hash
    contribution: Hash
    """32 fresh random bytes, for the key of this owner's material."""

    def __repr__(self) -> str:
        return f"DealerHello(peer={self.peer!r}, <secret>)"


class DealerWelcome(Message, frozen=True, kw_only=True):
    """Dealer to owner: both are here; my contribution to the key of this owner's material, 32 fresh random bytes."""

    contribution: Hash

    def __repr__(self) -> str:
        return "DealerWelcome(<secret>)"


class OrderRandomness(Message, frozen=True, kw_only=True):
    """Owner to dealer: what it wants next. Both owners order the same."""

    first: Number
    """Number of the first request: the requests of a session are counted, and no number serves twice."""
    count: Count
    """How many requests these are."""
    requests: Annotated[bytes, Meta(max_length=ORDER_LIMIT)]
    """The requests, encoded; private inference as a protocol compares those of both owners and does not look inside."""


class Randomness(Message, frozen=True, kw_only=True):
    """Dealer to owner: a chunk of the corrections that belong to a request, 8 bytes a word."""

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
"""Every message of a link of private inference."""
