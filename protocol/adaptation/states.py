"""Inputs and outputs that double-blind adaptation adds to private inference.

The tables (data_owner.py, model_owner.py) are those of private inference, with messages about rounds between passes.
Between passes the model owner has no deadline: a data owner may take as long as the others of its round need.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from tacit.protocol.core.machine import Input, Output
from tacit.protocol.core.primitives import Label
from tacit.protocol.inference.results import Agreed


class AdaptationLabel:
    """Labels of adaptation."""

    KEPT: Final = Label(b"tacit/1 kept shares")


class AdaptationTrigger(Input):
    """Inputs of adaptation."""

    CHOOSE = "choose the images of a step"
    BEGIN_ROUND = "begin a round of learning"
    KEEP_ROUND = "keep what a round has learned"
    ASK_SUM = "ask for the sum of a round"


@dataclass(frozen=True)
class LearningAgreed(Agreed):
    """Both owners go by these terms of a learning. The first passes of the session bring the images that are not kept
    yet, `batch` at a time; each of the others is a step on as many kept images."""

    kept: int = 0
    """How many images both keep shares of; they are the first."""
    steps: int = 0

    @property
    def keeping(self) -> int:
        """How many passes bring images."""
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
    """To the model owner's shell: find out how many batches of this round it has behind it with this owner, and call
    `begin_round` with the smaller number."""

    number: int
    done: int
    """How many the data owner has."""


@dataclass(frozen=True)
class RoundAnswered(Output):
    """To the data owner's shell: the round goes on behind so many batches."""

    done: int


@dataclass(frozen=True)
class RoundKept(Output):
    """To the model owner's shell: keep the share of what this owner has learned, with zeros of this secret."""

    number: int
    secret: bytes = field(repr=False)


@dataclass(frozen=True)
class SumAsked(Output):
    """To the model owner's shell: wait for the verdict on this round, and call `provide`: the sum is that of the shares
    of the survivors whom RoundSums names."""

    number: int


@dataclass(frozen=True)
class SumTold(Output):
    """To the data owner's shell: the model owner's sum of a round, 8 bytes a word; or why there is none."""

    number: int
    data: bytearray | None = field(repr=False)
    reason: str = ""
