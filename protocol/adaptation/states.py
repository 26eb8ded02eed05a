"""Inputs and outputs that double-blind adaptation adds to private inference.

The tables (data_owner.py, model_owner.py) are those of private inference, with messages about rounds between passes.
The model owner has no deadline between passes: a data owner may take as long as the others of its round need.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from tacit.protocol.core.machine import Input, Output
from tacit.protocol.core.primitives import Label
from tacit.protocol.inference.results import Agreed


class AdaptationLabel:
    KEPT: Final = Label(b"tacit/1 kept shares")


class AdaptationTrigger(Input):
    CHOOSE = "choose the images of a step"
    BEGIN_ROUND = "begin a round of learning"
    KEEP_ROUND = "keep what a round has learned"
    ASK_SUM = "ask for the sum of a round"


@dataclass(frozen=True)
class LearningAgreed(Agreed):
    """Both owners have agreed on training terms. The first passes bring the images not kept yet, `batch` at a time;
    each later pass is a step on as many kept images."""

    kept: int = 0
    """Number of leading images whose shares both keep."""
    steps: int = 0

    @property
    def keeping(self) -> int:
        """Number of passes that bring images."""
        return -(-(self.images - self.kept) // self.batch)

    def images_of(self, number: int) -> int:
        if number > self.keeping:
            return self.batch
        return min(self.batch, self.images - self.kept - (number - 1) * self.batch)

    @property
    def passes(self) -> int:
        return self.keeping + self.steps


@dataclass(frozen=True)
class RoundAsked(Output):
    """To the model owner's shell: find the batches of this round completed with this owner, and call `begin_round` with
    the smaller number."""

    number: int
    done: int
    """Batches that the data owner completed."""


@dataclass(frozen=True)
class RoundAnswered(Output):
    """To the data owner's shell: the round resumes after so many batches."""

    done: int


@dataclass(frozen=True)
class RoundKept(Output):
    """To the model owner's shell: keep this owner's share of its parameters, with zeros from this secret."""

    number: int
    secret: bytes = field(repr=False)


@dataclass(frozen=True)
class SumAsked(Output):
    """To the model owner's shell: wait for the verdict on this round, and call `provide` with the sum of the shares of
    the survivors that RoundSums names."""

    number: int


@dataclass(frozen=True)
class SumTold(Output):
    """To the data owner's shell: the model owner's sum of a round, 8 bytes a word; or the reason for its loss."""

    number: int
    data: bytearray | None = field(repr=False)
    reason: str = ""
