"""Messages of double-blind adaptation between a data owner and the model owner: those of a private-inference session
whose passes bring images or are training steps, and those about kept shares and rounds.

A round is one of the data owners' secure sum, and bears its number. At its end a data owner's parameters are shared
between it and the model owner. Both refresh their shares by zeros derived from the data owner's secret. The model owner
adds the survivors' shares itself, and reveals their sum once.
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
"""Version of double-blind adaptation alone. It is open: messages may change without a new number."""

RoundNumber = Annotated[int, Meta(ge=1, le=2**31)]
Name = Annotated[str, Meta(max_length=64)]
Survivors = Annotated[tuple[Name, ...], Meta(max_length=LARGEST_COHORT)]
Purpose = Literal["learning", "prediction"]


class LearningSizes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sizes of the trained part beside the blocks of a model; the rounds of a pass follow from them."""

    adapters: Annotated[int, Meta(ge=0, le=1 << 8)]
    """One for every block; 0: linear probing."""
    rank: Annotated[int, Meta(ge=1, le=1 << 10)]
    classes: Annotated[int, Meta(ge=2, le=1 << 12)]
    """Classes of the new head."""
    batch: Annotated[int, Meta(ge=1, le=1 << 10)]
    """Images of every pass."""
    cut: Annotated[int, Meta(ge=1, le=STREAM - 2)]
    """Bits truncated from the outputs of blocks."""
    gradient: Annotated[int, Meta(ge=1, le=WORD_BITS)]
    """Ring of parameter gradients, in bits."""


class AdaptationTerms(Terms, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The model owner's offer for training beside its model, and everything public about it. `results` describes
    predictions, `arithmetic` has the scales of both. Raises ValueError for adapters at only some blocks."""

    purpose: Purpose
    learning: LearningSizes
    rounds: Annotated[int, Meta(ge=1, le=1 << 20)]
    """Largest number of rounds whose sums the model owner opens."""
    smallest_cohort: Annotated[int, Meta(ge=2, le=LARGEST_COHORT)]
    """Fewest survivors whose sum the model owner opens, not counting possible colluders."""
    least_count: Index = 0
    """Weighting by stated numbers of images, from this number up to twice as many; 0: all data owners count alike."""

    def __post_init__(self) -> None:
        if self.learning.adapters not in (0, self.sizes.blocks):
            raise ValueError(
                f"{self.learning.adapters} adapters beside {self.sizes.blocks} blocks: each block has one, or none has"
            )


class CompareKept(Message, frozen=True, kw_only=True):
    """Data owner to model owner, with its agreement: the images whose shares it keeps, and the number of training steps
    that it wants in this session."""

    images: Index
    """Number of its leading images whose shares it keeps."""
    chain: Hash
    """Hash chain of the passes in which those images went through the blocks."""
    uses: Index
    """Training steps that these shares have served."""
    steps: Annotated[int, Meta(ge=1, le=MOST_IMAGES)]


class KeptCompared(Message, frozen=True, kw_only=True):
    """Model owner to data owner: number of images whose shares both keep; the others pass the blocks first."""

    images: Index
    chain: Hash
    uses: Index


class ChooseImages(Message, frozen=True, kw_only=True):
    """Data owner to model owner: the images of the next step, all of which both keep shares of."""

    images: Annotated[tuple[Index, ...], Meta(max_length=1 << 10)]
    """Their indices, from 0, in the order of the batch."""


class BeginRound(Message, frozen=True, kw_only=True):
    """Data owner to model owner: joins this round of training."""

    number: RoundNumber
    based: Index
    """Round whose sums give the initial common parameters of this one; 0: the initial parameters of the terms."""
    done: Index
    """Batches of this round completed in an earlier session, or in an attempt whose sum was lost."""
    count: Index
    """Number of its images where they weight data owners; 0: all count alike."""


class RoundBegun(Message, frozen=True, kw_only=True):
    """Model owner to data owner: resume after so many batches, which both completed; 0: from the common parameters."""

    done: Index


class KeepRound(Message, frozen=True, kw_only=True):
    """Data owner to model owner: its batches of the round are over; keep the share, and add zeros to it."""

    number: RoundNumber
    secret: Hash
    """32 fresh random bytes, the seed of these zeros."""

    def __repr__(self) -> str:
        return f"KeepRound(number={self.number}, <secret>)"


class AskSum(Message, frozen=True, kw_only=True):
    """Data owner to model owner: requests the sum of the model owner's shares of this round."""

    number: RoundNumber
    survivors: Survivors
    """Owners in the data owners' sum, as the sender confirmed it in the secure sum, in ascending order; empty: it was
    not there."""


class OwnSum(Message, frozen=True, kw_only=True):
    """Model owner to data owner: a chunk of the model owner's sum, 8 bytes a word."""

    PAYLOAD: ClassVar[bool] = True
    number: RoundNumber
    chunk: Index


class SumLost(Message, frozen=True, kw_only=True):
    """Model owner to data owner: the round is lost; its sum will never be revealed."""

    number: RoundNumber
    detail: Annotated[str, Meta(max_length=DETAIL_LIMIT)]
    """Reason."""


ADAPTATION_MESSAGES: Final = Kinds(
    protocol="double-blind adaptation",
    version=ADAPTATION_VERSION,
    types=by_type(
        InferenceHello, InferenceTerms, AgreeTerms, CompareKept, KeptCompared, MaskedWeights, StartPass,
        AuditCommitment, AuditCoin, AuditKeys, PassStarted, Opening, BeginRound, RoundBegun, ChooseImages, KeepRound,
        AskSum, OwnSum, SumLost, CloseInference, InferenceClosed, Abort,
    ),
)  # fmt: skip
"""All messages between a data owner and a model owner that adapt a model. The dealer's are private inference's."""
