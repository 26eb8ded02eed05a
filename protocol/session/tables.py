"""The states and transition tables of a federation's session, for its clients and for its server.

The messages of a secure sum go to its own machine (sum/client.py, sum/server.py), those about group
keys to another (group_key/holder.py, group_key/keeper.py). What is not in a table is refused. The diagrams in docs/ are
drawn from these tables.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Final

from tacit.protocol.core.machine import IGNORE, Row, Table, Trigger
from tacit.protocol.core.messages import Abort
from tacit.protocol.group_key.session_tables import TO_HOLDER
from tacit.protocol.session.messages import (
    EndRound,
    FetchLimits,
    FetchModel,
    Finish,
    Hello,
    LimitsChunk,
    ModelChunk,
    StartRound,
    StartSecondStage,
    VoidRound,
    Welcome,
)
from tacit.protocol.sum.messages import (
    AdvertiseKeys,
    ConfirmSurvivors,
    FetchVector,
    MaskedInput,
    PeerKeys,
    PeerShares,
    ShareKeys,
    Survivors,
    UnmaskRequest,
    UnmaskShares,
    VectorChunk,
)

SUM_TO_CLIENT: Final = (PeerKeys, PeerShares, FetchVector, Survivors, UnmaskRequest)
"""What the server says within a secure sum."""

SUM_TO_SERVER: Final = (AdvertiseKeys, ShareKeys, MaskedInput, VectorChunk, ConfirmSurvivors, UnmaskShares)
"""What clients say within a secure sum."""

WITHIN_ROUNDS: Final = (*SUM_TO_CLIENT, ModelChunk, StartSecondStage, LimitsChunk)
"""What the server says in a round."""

OUTSIDE_ROUNDS: Final = (Welcome, Finish, *TO_HOLDER)
"""What the server says in no round; an Abort may come in one and outside."""


class TrainingState(Enum):
    """What the client does or awaits."""

    OFFLINE = "offline"
    AWAIT_WELCOME = "await the server's welcome"
    AWAIT_ROUND = "await the next round"
    FETCHING_MODEL = "fetch the model"
    TRAINING = "train"
    AGGREGATING = "take part in the secure sum"
    AWAIT_SECOND_STAGE = "await the second stage of the round"
    FETCHING_LIMITS = "fetch the limits"
    LIMITING = "keep to the limits"
    ENDED = "ended"


class SessionState(Enum):
    """What the server does."""

    GATHERING = "gather the clients"
    KEYING = "let the clients agree on a group key"
    IN_ROUND = "hold a round"
    BETWEEN_ROUNDS = "wait for the next model"
    AWAIT_PROMISES = "wait for promises that the last round stays closed"
    DISTRIBUTING = "let the clients fetch the last model"
    ENDED = "ended"


NO_ROUND: Final = (
    TrainingState.OFFLINE,
    TrainingState.AWAIT_WELCOME,
    TrainingState.AWAIT_ROUND,
    TrainingState.ENDED,
)


def _client_table() -> Table[TrainingState]:
    s = TrainingState
    table: dict[Any, Any] = {
        (s.OFFLINE, Trigger.START): Row("on_start", (s.AWAIT_WELCOME,)),
        (s.AWAIT_WELCOME, Welcome): Row("on_welcome", (s.AWAIT_ROUND,)),
        (s.AWAIT_ROUND, StartRound): Row("on_start_round", (s.FETCHING_MODEL,)),
        (s.AWAIT_ROUND, EndRound): Row("on_end_round", (s.AWAIT_ROUND,)),
        (s.AWAIT_ROUND, Trigger.KEY_OVER): Row("on_key_over", (s.ENDED,)),
        (s.FETCHING_MODEL, ModelChunk): Row("on_model_chunk", (s.FETCHING_MODEL, s.TRAINING)),
        (s.TRAINING, Trigger.CONTRIBUTE): Row("on_contribute", (s.AGGREGATING,)),
        (s.AGGREGATING, Trigger.SUM_OVER): Row("on_sum_over", (s.AWAIT_ROUND, s.AWAIT_SECOND_STAGE)),
        (s.AWAIT_SECOND_STAGE, StartSecondStage): Row("on_second_stage", (s.FETCHING_LIMITS,)),
        (s.FETCHING_LIMITS, LimitsChunk): Row("on_limits_chunk", (s.FETCHING_LIMITS, s.LIMITING)),
        (s.LIMITING, Trigger.CONTRIBUTE): Row("on_contribute", (s.AGGREGATING,)),
    }
    outside = (s.AWAIT_WELCOME, s.AWAIT_ROUND)
    within = tuple(state for state in s if state not in NO_ROUND)
    state: TrainingState
    for state in within:
        table[state, EndRound] = Row("on_end_round", (s.AWAIT_ROUND,))
    for state in outside + within:
        table[state, Finish] = Row("on_finish", (s.ENDED,))
        table[state, Abort] = Row("on_abort", (s.ENDED,) if state in outside else (s.AWAIT_ROUND, s.ENDED))
        table[state, Trigger.EXPIRE] = Row("on_expire", (s.ENDED,))
        table[state, Trigger.DROP] = Row("on_drop", (s.ENDED,))
    return table


def _server_table() -> Table[SessionState]:
    s = SessionState
    going = tuple(state for state in s if state is not s.ENDED)
    prepared = (s.IN_ROUND, s.KEYING, s.ENDED)
    table: dict[Any, Any] = {
        (s.GATHERING, Trigger.COMPLETE): Row("on_ready", prepared),
        (s.GATHERING, Trigger.EXPIRE): Row("on_ready", prepared),
        (s.KEYING, Trigger.KEY_OVER): Row("on_key_over", prepared),
        (s.IN_ROUND, FetchModel): Row("on_fetch_model", (s.IN_ROUND,)),
        (s.IN_ROUND, FetchLimits): Row("on_fetch_limits", (s.IN_ROUND,)),
        (s.IN_ROUND, Trigger.SUM_OVER): Row("on_sum_over", (s.BETWEEN_ROUNDS, s.IN_ROUND)),
        (s.BETWEEN_ROUNDS, Trigger.NEXT_ROUND): Row("on_next_round", (s.AWAIT_PROMISES,)),
        (s.BETWEEN_ROUNDS, Trigger.FINISH): Row("on_finish", (s.ENDED, s.DISTRIBUTING)),
        (s.AWAIT_PROMISES, Trigger.COMPLETE): Row("on_ready", prepared),
        (s.AWAIT_PROMISES, Trigger.EXPIRE): Row("on_no_promises", (s.ENDED,)),
        (s.DISTRIBUTING, Trigger.KEY_OVER): Row("on_distributed", (s.ENDED,)),
    }
    for state in going:
        table[state, Hello] = Row("on_hello", (state,))
        table[state, VoidRound] = Row("on_void_round", (state,))
        table[state, Abort] = Row("on_abort", (state,))
        if state not in (s.GATHERING, s.IN_ROUND):
            # What was under way when the round ended.
            table.update({(state, kind): IGNORE for kind in (*SUM_TO_SERVER, FetchModel, FetchLimits)})
    return table


TRAINING_CLIENT_TABLE: Final = _client_table()
TRAINING_SERVER_TABLE: Final = _server_table()
