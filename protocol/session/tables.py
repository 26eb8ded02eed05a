"""The states and transition tables of a federation's session, for its clients and for its server.

The messages of a secure sum go to a machine inside (sum/client.py, sum/server.py), those about group keys to another
(group_key/holder.py, group_key/keeper.py). What is not in a table is refused. The diagrams in docs/ are
drawn from these tables.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Final

from tacit.protocol.core.machine import IGNORE, Inside, Row, Table, Trigger
from tacit.protocol.core.messages import Abort, Chunk, Fetch, Resume
from tacit.protocol.group_key.agreement import GroupKey, KeyFailed
from tacit.protocol.group_key.keeper import Distributed, KeyLost, KeyReady, Refused
from tacit.protocol.group_key.tables import TO_HOLDER, TO_KEEPER
from tacit.protocol.session.messages import EndRound, FetchFixed, Finish, Hello, NewRoster, StartRound, Welcome
from tacit.protocol.sum.exchange import ClientAborted, Contributed, ServerAborted, Summed
from tacit.protocol.sum.messages import (
    AdvertiseKeys,
    AnswerComplaints,
    ConfirmSurvivors,
    FetchVector,
    MaskedInput,
    PeerComplaints,
    PeerKeys,
    PeerShares,
    ShareKeys,
    Survivors,
    UnmaskRequest,
    UnmaskShares,
    VectorChunk,
)

SUM_TO_CLIENT: Final = (PeerKeys, PeerShares, FetchVector, PeerComplaints, Survivors, UnmaskRequest)
"""What the server says within a secure sum."""

SUM_TO_SERVER: Final = (
    AdvertiseKeys,
    ShareKeys,
    MaskedInput,
    VectorChunk,
    AnswerComplaints,
    ConfirmSurvivors,
    UnmaskShares,
)
"""What clients say within a secure sum."""

WITHIN_ROUNDS: Final = (*SUM_TO_CLIENT, Chunk)
"""What the server says in a round."""

OUTSIDE_ROUNDS: Final = (Welcome, NewRoster, Finish, Resume, *(kind for kind in TO_HOLDER if kind is not Chunk))
"""What the server says in no round; an Abort or a Chunk may come in one and outside."""


class TrainingState(Enum):
    """What the client does or awaits."""

    OFFLINE = "offline"
    AWAIT_WELCOME = "await the server's welcome"
    AWAIT_ROUND = "await the next round"
    FETCHING_MODEL = "fetch the model"
    TRAINING = "train"
    AGGREGATING = "take part in the secure sum"
    ENDED = "ended"


class SessionState(Enum):
    """What the server does."""

    GATHERING = "gather the clients"
    KEYING = "let the clients agree on a group key"
    IN_ROUND = "run a round"
    BETWEEN_ROUNDS = "wait for the next model"
    DISTRIBUTING = "let the clients fetch the last model"
    ENDED = "ended"


NO_ROUND: Final = (
    TrainingState.OFFLINE,
    TrainingState.AWAIT_WELCOME,
    TrainingState.AWAIT_ROUND,
    TrainingState.ENDED,
)

IN_SUM: Final = (TrainingState.FETCHING_MODEL, TrainingState.TRAINING, TrainingState.AGGREGATING)
"""A client is in a sum from the first word of it on: keys and shares go while it fetches and trains."""

CLIENT_CONTAINS: Final = {
    "sum": IN_SUM,
    "holder": tuple(
        state
        for state in TrainingState
        if state not in (TrainingState.OFFLINE, TrainingState.AWAIT_WELCOME, TrainingState.ENDED)
    ),
}
SERVER_CONTAINS: Final = {
    "sum": (SessionState.IN_ROUND,),
    "keeper": tuple(state for state in SessionState if state is not SessionState.ENDED),
}
"""What is inside, and in which states."""


def _client_table() -> Table[TrainingState]:
    s = TrainingState
    table: dict[Any, Any] = {
        (s.OFFLINE, Trigger.START): Row("on_start", (s.AWAIT_WELCOME,)),
        (s.AWAIT_WELCOME, Welcome): Row("on_welcome", (s.AWAIT_ROUND,)),
        (s.AWAIT_ROUND, StartRound): Row("on_start_round", (s.FETCHING_MODEL, s.TRAINING)),
        (s.AWAIT_ROUND, EndRound): Row("on_end_round", (s.AWAIT_ROUND,)),
        **{(s.AWAIT_ROUND, kind): Inside("holder") for kind in TO_HOLDER},
        (s.AWAIT_ROUND, GroupKey): Row("on_key", (s.AWAIT_ROUND,)),
        (s.AWAIT_ROUND, ClientAborted): Row("on_key_aborted", (s.ENDED,)),
        (s.FETCHING_MODEL, Chunk): Row("on_chunk", (s.FETCHING_MODEL, s.TRAINING)),
        (s.TRAINING, Trigger.CONTRIBUTE): Row("on_contribute", (s.AGGREGATING,)),
        **{(state, kind): Inside("sum") for state in IN_SUM for kind in SUM_TO_CLIENT},
        **{(state, ClientAborted): Row("on_sum_aborted", (s.AWAIT_ROUND,)) for state in IN_SUM},
        (s.AGGREGATING, Contributed): Row("on_contributed", (s.AWAIT_ROUND,)),
    }
    outside = (s.AWAIT_WELCOME, s.AWAIT_ROUND)
    within = tuple(state for state in s if state not in NO_ROUND)
    state: TrainingState
    for state in within:
        table[state, EndRound] = Row("on_end_round", (s.AWAIT_ROUND,))
    for state in outside + within:
        table[state, Finish] = Row("on_finish", (s.ENDED,))
        table[state, NewRoster] = Row("on_new_roster", (s.ENDED,))
        table[state, Resume] = Row("on_resume", tuple(dict.fromkeys((state, s.AWAIT_WELCOME))))
        told = {s.AWAIT_WELCOME: (s.AWAIT_WELCOME, s.ENDED), s.AWAIT_ROUND: (s.AWAIT_WELCOME, s.ENDED)}
        table[state, Abort] = Row("on_abort", told.get(state, (s.AWAIT_ROUND, s.AWAIT_WELCOME, s.ENDED)))
        asks = (s.AWAIT_ROUND,) if state is s.AWAIT_ROUND else ()
        table[state, Trigger.EXPIRE] = Row("on_expire", (*asks, s.AWAIT_WELCOME, s.ENDED))
        table[state, Trigger.DROP] = Row("on_drop", (s.ENDED,))
    for state in IN_SUM:
        table[state, Abort] = Inside("sum", table[state, Abort])
    return table


def _server_table() -> Table[SessionState]:
    s = SessionState
    prepared = (s.IN_ROUND, s.KEYING, s.GATHERING, s.ENDED)
    table: dict[Any, Any] = {
        (s.GATHERING, Trigger.COMPLETE): Row("on_ready", (s.IN_ROUND, s.KEYING, s.ENDED)),
        (s.GATHERING, Trigger.EXPIRE): Row("on_waited", prepared),
        (s.KEYING, KeyReady): Row("on_key_ready", prepared),
        (s.KEYING, KeyFailed): Row("on_key_failed", prepared),
        (s.KEYING, KeyLost): Row("on_key_lost", (s.ENDED,)),
        **{(s.IN_ROUND, cause): Inside("sum") for cause in (*SUM_TO_SERVER, Trigger.DROP)},
        (s.IN_ROUND, Summed): Row("on_summed", (s.BETWEEN_ROUNDS,)),
        (s.IN_ROUND, ServerAborted): Row("on_sum_aborted", (s.BETWEEN_ROUNDS,)),
        (s.BETWEEN_ROUNDS, Trigger.NEXT_ROUND): Row("on_next_round", prepared),
        (s.BETWEEN_ROUNDS, Trigger.FINISH): Row("on_last_round", (s.ENDED, s.DISTRIBUTING)),
        (s.GATHERING, Trigger.CHANGE_ROSTER): Row("on_change_roster", (s.ENDED,)),
        (s.BETWEEN_ROUNDS, Trigger.CHANGE_ROSTER): Row("on_last_round", (s.ENDED, s.DISTRIBUTING)),
        (s.DISTRIBUTING, Distributed): Row("on_distributed", (s.ENDED,)),
    }
    table[s.ENDED, Resume] = Row("on_resume", (s.ENDED,))
    for state in SERVER_CONTAINS["keeper"]:
        table[state, Hello] = Row("on_hello", (state,))
        table[state, Resume] = Row("on_resume", (state,))
        table[state, Abort] = Row("on_abort", (state,))
        table[state, Refused] = Row("on_refused", (state,))
        table.update({(state, kind): Inside("keeper") for kind in TO_KEEPER})
        if state is not s.IN_ROUND:
            # What was under way when the round ended.
            table.update({(state, kind): IGNORE for kind in SUM_TO_SERVER})
            table[state, Fetch] = Inside("keeper", IGNORE)
            table[state, FetchFixed] = IGNORE
    table[s.IN_ROUND, Fetch] = Inside("keeper", Row("on_fetch", (s.IN_ROUND,)))
    table[s.IN_ROUND, FetchFixed] = Row("on_fetch_fixed", (s.IN_ROUND,))
    table[s.IN_ROUND, Abort] = Inside("sum", Row("on_abort", (s.IN_ROUND,)))
    return table


TRAINING_CLIENT_TABLE: Final = _client_table()
TRAINING_SERVER_TABLE: Final = _server_table()
