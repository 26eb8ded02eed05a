"""How both owners go through a batch: a step on shares, or outputs of blocks that are told, and a step in the clear.

Either way a round ends with shares of what the data owner has learned: where it steps in the clear, its share is all of
that, and the model owner's is nothing. So what is said of rounds, and their sums, do not depend on it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from tacit.models.adapters.parallel import FinalNorm
from tacit.parties.adaptation.federation import mean_of, shares_of_known
from tacit.parties.adaptation.fixed_point import PARAMETER
from tacit.parties.adaptation.public import PublicLearning
from tacit.parties.adaptation.stages import LearningCarried, learning_stages
from tacit.parties.adaptation.standing import Learnt
from tacit.parties.adaptation.step import flat
from tacit.parties.adaptation.told_stages import Revealed, told_batch, told_stages
from tacit.parties.adaptation.told_step import told_step
from tacit.parties.inference.operations import DATA
from tacit.parties.inference.passes import Course
from tacit.parties.inference.stages import Carried
from tacit.protocol.adaptation.messages import AdaptationTerms
from tacit.protocol.adaptation.told import told_blocks


@dataclass(frozen=True, kw_only=True)
class Batch:
    """What an owner brings to one. The model owner has no labels."""

    number: int
    """Of its pass in the session."""
    share: torch.Tensor
    """Of the images, as input_share() makes it."""
    labels: torch.Tensor | None
    """int64 [images]."""
    rate: float
    """Learning rate."""


class LearningWay(Protocol):
    """For one owner in one session."""

    @property
    def course(self) -> Course:
        """The stages of its passes."""

    def begun(self, batch: Batch, learnt: Learnt) -> Carried:
        """What a pass begins with; learnt: what there was before it."""

    def ended(self, batch: Batch, learnt: Learnt, found: Carried) -> Learnt:
        """What there is behind a pass that was in range."""


def way_of(terms: AdaptationTerms, learning: PublicLearning, *, session: bytes, rank: int) -> LearningWay:
    """That of these terms."""
    if terms.reveal == "none":
        return StepsOnShares(learning)

    def told(number: int) -> tuple[bool, ...]:
        return told_blocks(terms.reveal, terms.sizes.blocks, session=session, number=number)

    return StepsInTheClear(learning, rank, told)


@dataclass(frozen=True)
class StepsOnShares:
    """Nobody is told anything: a step on shares."""

    learning: PublicLearning

    @property
    def course(self) -> Course:
        """See LearningWay."""
        passed = learning_stages(self.learning.public, self.learning.sizes, self.learning.scales)
        return lambda number: passed

    def begun(self, batch: Batch, learnt: Learnt) -> Carried:
        """See LearningWay."""
        return LearningCarried(batch.share, parameters=learnt.parameters, labels=batch.labels, rate=batch.rate)

    def ended(self, batch: Batch, learnt: Learnt, found: Carried) -> Learnt:
        """See LearningWay."""
        assert isinstance(found, LearningCarried)
        images = 0 if batch.labels is None else len(batch.labels)
        return learnt.then(found.parameters, loss=found.loss, correct=found.correct, images=images)


@dataclass(frozen=True)
class StepsInTheClear:
    """The data owner is told outputs of blocks in secret orders, and steps in the clear.

    told: of which blocks, in the pass of this number.
    """

    learning: PublicLearning
    rank: int
    told: Callable[[int], tuple[bool, ...]]

    @property
    def course(self) -> Course:
        """See LearningWay."""
        return lambda number: told_stages(self.learning.public, self.told(number))

    def begun(self, batch: Batch, learnt: Learnt) -> Carried:
        """See LearningWay."""
        labels = torch.zeros(len(batch.share), dtype=torch.int64) if batch.labels is None else batch.labels
        return Revealed(batch.share, labels=labels)

    def ended(self, batch: Batch, learnt: Learnt, found: Carried) -> Learnt:
        """See LearningWay."""
        assert isinstance(found, Revealed)
        if self.rank != DATA:
            return learnt
        sizes = replace(self.learning.sizes, images=len(batch.share))
        ones = torch.ones(sizes.width, dtype=torch.float64)
        norm = FinalNorm(weight=ones, bias=torch.zeros_like(ones), epsilon=self.learning.epsilon)
        before = mean_of(flat(learnt.parameters), 1, sizes)
        told = told_batch(found, self.learning.public, self.told(batch.number))
        after, descent = told_step(before, norm, told, rate=batch.rate)
        # In the units of a step on shares (standing.py).
        loss = round(descent.loss * sizes.images * 2.0 ** (2 * PARAMETER) * sizes.classes)
        return learnt.then(
            shares_of_known(after),
            loss=torch.tensor(loss),
            correct=torch.tensor(descent.correct),
            images=sizes.images,
        )
