"""The transition tables of double-blind adaptation, and the outputs that its machines add to private inference.

The tables are those of private inference, with messages about rounds between passes. Between passes the model owner has
no deadline: a data owner may take as long as the others of its round need.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from tacit.protocol.adaptation.messages import AskSum, BeginRound, KeepRound, OwnSum, RoundBegun, SumLost
from tacit.protocol.core.machine import IGNORE, Output, Row, Table, Trigger
from tacit.protocol.inference.tables import DATA_OWNER_TABLE, MODEL_OWNER_TABLE, InferenceState, ending


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


_S = InferenceState

LEARNING_DATA_OWNER_TABLE: Final[Table[InferenceState]] = {
    **DATA_OWNER_TABLE,
    (_S.IDLE, Trigger.BEGIN_ROUND): Row("on_begin_round", (_S.AWAIT_ROUND,)),
    (_S.AWAIT_ROUND, RoundBegun): Row("on_round_begun", (_S.IDLE,)),
    (_S.IDLE, Trigger.KEEP_ROUND): Row("on_keep_round", (_S.IDLE,)),
    (_S.IDLE, Trigger.ASK_SUM): Row("on_ask_sum", (_S.AWAIT_SUM,)),
    (_S.AWAIT_SUM, OwnSum): Row("on_own_sum", (_S.AWAIT_SUM, _S.IDLE)),
    (_S.AWAIT_SUM, SumLost): Row("on_sum_lost", (_S.IDLE,)),
    **ending(_S.ABORTED, own=(), awaiting=(_S.AWAIT_ROUND, _S.AWAIT_SUM)),
    **{(_S.ABORTED, kind): IGNORE for kind in (RoundBegun, OwnSum, SumLost)},
}
LEARNING_MODEL_OWNER_TABLE: Final[Table[InferenceState]] = {
    **{cell: row for cell, row in MODEL_OWNER_TABLE.items() if cell != (_S.IDLE, Trigger.EXPIRE)},
    (_S.IDLE, BeginRound): Row("on_begin_round", (_S.BEGINNING_ROUND,)),
    (_S.BEGINNING_ROUND, Trigger.BEGIN_ROUND): Row("on_round_begun", (_S.IDLE,)),
    (_S.IDLE, KeepRound): Row("on_keep_round", (_S.IDLE,)),
    (_S.IDLE, AskSum): Row("on_ask_sum", (_S.SUMMING, _S.IDLE)),
    (_S.SUMMING, Trigger.PROVIDE): Row("on_sum", (_S.IDLE,)),
    **ending(_S.ABORTED, own=(_S.BEGINNING_ROUND, _S.SUMMING), awaiting=()),
    **{(_S.ABORTED, kind): IGNORE for kind in (BeginRound, KeepRound, AskSum)},
}
