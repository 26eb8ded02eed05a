"""Passes of a training as both owners run them: initial state, stages, and resulting shares."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from tacit.parties.adaptation.public import PublicLearning
from tacit.parties.adaptation.stages import LearningCarried, bringing_stages, learning_stages
from tacit.parties.adaptation.standing import Learnt
from tacit.parties.inference.passes import Course
from tacit.parties.inference.stages import Carried


@dataclass(frozen=True, kw_only=True)
class Batch:
    number: int
    """Number of its pass in the session."""
    share: torch.Tensor
    """Share of the kept block outputs of the images."""
    outside: torch.Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.int64))
    """Share of the number of their values out of range."""
    labels: torch.Tensor | None
    """int64 [images]."""
    rate: float


@dataclass(frozen=True)
class LearningPasses:
    learning: PublicLearning
    bringing: int

    @property
    def course(self) -> Course:
        own = self.learning
        brings, steps = bringing_stages(own.public, own.sizes), learning_stages(own.sizes, own.scales)
        return lambda number: brings if number <= self.bringing else steps

    def begun(self, batch: Batch, learnt: Learnt) -> Carried:
        return LearningCarried(
            batch.share, batch.outside, parameters=learnt.parameters, labels=batch.labels, rate=batch.rate
        )

    def ended(self, batch: Batch, learnt: Learnt, found: Carried | None) -> Learnt:
        assert isinstance(found, LearningCarried)
        return learnt.then(found.parameters, loss=found.loss, correct=found.correct, refused=found.refused)
