"""How both owners go through a batch: a step on shares, or outputs of blocks that are told, and a step in the clear.

Either way a round ends with shares of what the data owner has learned: where it steps in the clear, its share is all of
that, and the model owner's is nothing. So what is said of rounds, and their sums, do not depend on it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from tacit.models.adapters.parallel import FinalNorm
from tacit.parties.adaptation.enrolment import Enrolling, EnrolmentStage, enrolled_batches
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
from tacit.parties.inference.stages import Carried, PassStage
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

    def brought(self, number: int, images: int) -> int:
        """How many images a data owner brings to the pass of this number, which has so many."""

    def begun(self, batch: Batch, learnt: Learnt) -> Carried:
        """What a pass begins with; learnt: what there was before it."""

    def ended(self, batch: Batch, learnt: Learnt, found: Carried) -> Learnt:
        """What there is behind a pass that was in range."""


def way_of(terms: AdaptationTerms, learning: PublicLearning, *, session: bytes, rank: int, images: int) -> LearningWay:
    """That of these terms. images: of all passes of the session."""
    if terms.reveal == "none":
        return StepsOnShares(learning)

    def told(number: int) -> tuple[bool, ...]:
        return told_blocks(terms.reveal, terms.sizes.blocks, session=session, number=number)

    if terms.selection == "enrolment":
        return StepsOfEnrolled(learning, rank, told, images)
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

    def brought(self, number: int, images: int) -> int:
        """See LearningWay."""
        return images

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

    def brought(self, number: int, images: int) -> int:
        """See LearningWay."""
        return images

    def begun(self, batch: Batch, learnt: Learnt) -> Carried:
        """See LearningWay."""
        labels = torch.zeros(len(batch.share), dtype=torch.int64) if batch.labels is None else batch.labels
        return Revealed(batch.share, labels=labels)

    def ended(self, batch: Batch, learnt: Learnt, found: Carried) -> Learnt:
        """See LearningWay."""
        assert isinstance(found, Revealed)
        if self.rank != DATA:
            return learnt
        sizes = self.learning.sizes
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


@dataclass(frozen=True)
class StepsOfEnrolled(StepsInTheClear):
    """The same, of batches that are the next part of everything that the data owner has enrolled, in one secret order.

    images: of all passes; the data owner brings them to the first.
    """

    images: int
    batches: list[Revealed] = field(default_factory=list, repr=False)
    """This owner's shares of them, once they are in order."""

    @property
    def course(self) -> Course:
        """See LearningWay."""
        usual = super().course

        def stages(number: int) -> Sequence[PassStage]:
            if number > 1:
                return usual(number)
            first, *rest = usual(number)
            return (Enrolling(EnrolmentStage(self.learning.public), self.images, first, self._kept), *rest)

        return stages

    def brought(self, number: int, images: int) -> int:
        """See LearningWay."""
        return self.images if number == 1 else 0

    def begun(self, batch: Batch, learnt: Learnt) -> Carried:
        """See LearningWay."""
        return super().begun(batch, learnt) if batch.number == 1 else self.batches[batch.number - 1]

    def _kept(self, enrolled: Revealed) -> Revealed:
        self.batches.extend(enrolled_batches(enrolled, self.learning.batch))
        return self.batches[0]
