"""The transition tables of double-blind adaptation: those of private inference, and what is said of rounds between
passes. Between passes the model owner has no deadline: a data owner may take as long as the
others of its round need."""

from __future__ import annotations

from typing import Final

from tacit.protocol.adaptation.messages import AskSum, BeginRound, KeepRound, OwnSum, RoundBegun, SumLost
from tacit.protocol.core.machine import IGNORE, Row, Table, Trigger
from tacit.protocol.inference.tables import DATA_OWNER_TABLE, MODEL_OWNER_TABLE, InferenceState, ending

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
