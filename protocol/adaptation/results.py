"""What the machines of double-blind adaptation tell the shell around them, beside what private inference does."""

from __future__ import annotations

from dataclasses import dataclass, field

from tacit.protocol.core.machine import Output


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
