"""Inputs and outputs that double-blind adaptation adds to private inference.

The tables (data_owner.py, model_owner.py) are those of private inference, with messages about rounds between passes.
Between passes the model owner has no deadline: a data owner may take as long as the others of its round need.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tacit.protocol.core.machine import Input, Output


class AdaptationTrigger(Input):
    """Inputs of adaptation."""

    BEGIN_ROUND = "begin a round of learning"
    KEEP_ROUND = "keep what a round has learned"
    ASK_SUM = "ask for the sum of a round"


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
