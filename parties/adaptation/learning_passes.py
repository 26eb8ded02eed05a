"""How both owners go through a batch of learning: what a pass begins with, its stages, and the shares behind it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tacit.parties.adaptation.public import PublicLearning
from tacit.parties.adaptation.stages import LearningCarried, learning_stages
from tacit.parties.adaptation.standing import Learnt
from tacit.parties.inference.passes import Course
from tacit.parties.inference.stages import Carried


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


@dataclass(frozen=True)
class LearningPasses:
    """Those of one owner in one session: a step on shares each."""

    learning: PublicLearning

    @property
    def course(self) -> Course:
        """The stages of every pass."""
        passed = learning_stages(self.learning.public, self.learning.sizes, self.learning.scales)
        return lambda number: passed

    def begun(self, batch: Batch, learnt: Learnt) -> Carried:
        """What a pass begins with; learnt: what there was before it."""
        return LearningCarried(batch.share, parameters=learnt.parameters, labels=batch.labels, rate=batch.rate)

    def ended(self, batch: Batch, learnt: Learnt, found: Carried) -> Learnt:
        """What there is behind a pass that was in range."""
        assert isinstance(found, LearningCarried)
        images = 0 if batch.labels is None else len(batch.labels)
        return learnt.then(found.parameters, loss=found.loss, correct=found.correct, images=images)
