"""The messages of double-blind adaptation between a data owner and the model owner: those of a session of private
inference, whose passes bring images, or are steps of learning; what both keep of images; and what is said of rounds.

A round is one of the secure sum among the data owners, and bears its number. At its end a data owner's parameters are
shared between it and the model owner; both refresh their shares by zeros that follow from a secret that the data owner
draws, and the model owner's shares of the survivors are added by itself, and told once.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal

import msgspec
from msgspec import Meta

from tacit.protocol.core.errors import DETAIL_LIMIT
from tacit.protocol.core.messages import LARGEST_COHORT, Abort, Hash, Index, Kinds, Message, by_type
from tacit.protocol.inference.messages import (
    MOST_IMAGES,
    AgreeTerms,
    AuditCoin,
    AuditCommitment,
    AuditKeys,
    CloseInference,
    InferenceClosed,
    InferenceHello,
    InferenceTerms,
    MaskedWeights,
    Opening,
    PassStarted,
    StartPass,
    Terms,
)
from tacit.protocol.inference.schedule import STREAM, WORD_BITS

ADAPTATION_VERSION: Final = 7
"""Of double-blind adaptation alone. It is open: until it is frozen, messages may change without another number."""

RoundNumber = Annotated[int, Meta(ge=1, le=2**31)]
Name = Annotated[str, Meta(max_length=64)]
Survivors = Annotated[tuple[Name, ...], Meta(max_length=LARGEST_COHORT)]
Purpose = Literal["learning", "prediction"]


class LearningSizes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of what is learned beside the blocks of a model: what the rounds of a pass follow from."""

    adapters: Annotated[int, Meta(ge=0, le=1 << 8)]
    """One for every block; 0: linear probing."""
    rank: Annotated[int, Meta(ge=1, le=1 << 10)]
    classes: Annotated[int, Meta(ge=2, le=1 << 12)]
    """Of the new head."""
    batch: Annotated[int, Meta(ge=1, le=1 << 10)]
    """Images of every pass."""
    cut: Annotated[int, Meta(ge=1, le=STREAM - 2)]
    """Bits that are cut off the outputs of blocks."""
    gradient: Annotated[int, Meta(ge=1, le=WORD_BITS)]
    """Bits of derivatives by parameters."""


class AdaptationTerms(Terms, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the model owner offers to compute beside its model, and everything public about it. Its `results` are what
    is told of a prediction, and `arithmetic` has the scales of both. ValueError for adapters at some blocks only."""

    purpose: Purpose
    learning: LearningSizes
    rounds: Annotated[int, Meta(ge=1, le=1 << 20)]
    """The most rounds whose sums the model owner opens."""
    smallest_cohort: Annotated[int, Meta(ge=2, le=LARGEST_COHORT)]
    """The fewest survivors whose sum the model owner opens, without those who may collude."""
    least_count: Index = 0
    """Data owners count by the images that they state, from so many on up to twice as many; 0: all count alike."""

    def __post_init__(self) -> None:
        if self.learning.adapters not in (0, self.sizes.blocks):
            raise ValueError(
                f"{self.learning.adapters} adapters beside {self.sizes.blocks} blocks: each block has one, or none has"
            )


class CompareKept(Message, frozen=True, kw_only=True):
    """Data owner to model owner, with its agreement: I keep shares of so many images, and want to take so many steps in
    this session."""

    images: Index
    """How many of its images, the first ones."""
    chain: Hash
    """Of the passes in which they went through the blocks."""
    uses: Index
    """Steps that these shares have served."""
    steps: Annotated[int, Meta(ge=1, le=MOST_IMAGES)]


class KeptCompared(Message, frozen=True, kw_only=True):
    """Model owner to data owner: we both keep shares of so many images; the others pass the blocks first."""

    images: Index
    chain: Hash
    uses: Index


class ChooseImages(Message, frozen=True, kw_only=True):
    """Data owner to model owner: the next step is on these images, which we both keep shares of."""

    images: Annotated[tuple[Index, ...], Meta(max_length=1 << 10)]
    """Their numbers, from 0, in the order of the batch."""


class BeginRound(Message, frozen=True, kw_only=True):
    """Data owner to model owner: I learn in this round."""

    number: RoundNumber
    based: Index
    """The round whose sums the common parameters are of that I begin with; 0: the first ones, of the terms."""
    done: Index
    """Batches of this round that are behind me, in an earlier session or an attempt whose sum was lost."""
    count: Index
    """How many images I have, where data owners count by that; 0: they all count alike."""


class RoundBegun(Message, frozen=True, kw_only=True):
    """Model owner to data owner: go on behind so many batches, which both have; 0: from the common parameters."""

    done: Index


class KeepRound(Message, frozen=True, kw_only=True):
    """Data owner to model owner: my batches of the round are over; keep your share, and add zeros to it."""

    number: RoundNumber
    secret: Hash
    """32 fresh random bytes, of which these zeros are drawn."""

    def __repr__(self) -> str:
        return f"KeepRound(number={self.number}, <secret>)"


class AskSum(Message, frozen=True, kw_only=True):
    """Data owner to model owner: what is the sum of your shares of this round?"""

    number: RoundNumber
    survivors: Survivors
    """Whose shares the data owners' sum is of, as I have confirmed it in the secure sum, in rising order; nobody: I
    was not there."""


class OwnSum(Message, frozen=True, kw_only=True):
    """Model owner to data owner: a chunk of it, 8 bytes a word."""

    PAYLOAD: ClassVar[bool] = True
    number: RoundNumber
    chunk: Index


class SumLost(Message, frozen=True, kw_only=True):
    """Model owner to data owner: there is none, and there will be none: the round is lost."""

    number: RoundNumber
    detail: Annotated[str, Meta(max_length=DETAIL_LIMIT)]
    """Why."""


ADAPTATION_MESSAGES: Final = Kinds(
    protocol="double-blind adaptation",
    version=ADAPTATION_VERSION,
    types=by_type(
        InferenceHello, InferenceTerms, AgreeTerms, CompareKept, KeptCompared, MaskedWeights, StartPass,
        AuditCommitment, AuditCoin, AuditKeys, PassStarted, Opening, BeginRound, RoundBegun, ChooseImages, KeepRound,
        AskSum, OwnSum, SumLost, CloseInference, InferenceClosed, Abort,
    ),
)  # fmt: skip
"""Every message of a link between a data owner and a model owner that adapt a model. With the dealer they speak private
inference."""
