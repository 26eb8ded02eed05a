"""The states and transition tables of a secure sum, for the client and the server, in both modes.

What is not in a table is refused. The diagrams in docs/ are drawn from these tables.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Final

from tacit.protocol.core.machine import IGNORE, Row, Table, Trigger
from tacit.protocol.core.messages import Abort, Message, Phase
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


class ClientState(Enum):
    """What the client awaits."""

    READY = "ready to start"
    AWAIT_PEER_KEYS = "await the keys of the others"
    AWAIT_PEER_SHARES = "await the shares of the others"
    AWAIT_VECTOR = "await its own vector"
    AWAIT_SURVIVORS = "await the list of survivors"
    AWAIT_UNMASK_REQUEST = "await the signatures over the survivors"
    DONE = "done"
    ABORTED = "aborted"


class ServerState(Enum):
    """What the server collects."""

    ADVERTISE_KEYS = Phase.ADVERTISE_KEYS.value
    SHARE_KEYS = Phase.SHARE_KEYS.value
    MASKED_INPUT = Phase.MASKED_INPUT.value
    ANSWER_COMPLAINTS = Phase.ANSWER_COMPLAINTS.value
    CONSISTENCY_CHECK = Phase.CONSISTENCY_CHECK.value
    UNMASK = Phase.UNMASK.value
    COMPLETED = "COMPLETED"
    ABORTED = "ABORTED"


def _client_table(*, active: bool) -> Table[ClientState]:
    s = ClientState
    table: dict[Any, Any] = {
        (s.READY, Trigger.START): Row("on_start", (s.AWAIT_PEER_KEYS,)),
        (s.AWAIT_PEER_KEYS, PeerKeys): Row("on_peer_keys", (s.AWAIT_PEER_SHARES,)),
        (s.AWAIT_PEER_SHARES, PeerShares): Row("on_peer_shares", (s.AWAIT_VECTOR,)),
        (s.AWAIT_VECTOR, Trigger.COMPLETE): Row("on_vector", (s.AWAIT_SURVIVORS,)),
        **{(state, FetchVector): Row("on_fetch_vector", (state,)) for state in (s.AWAIT_VECTOR, s.AWAIT_SURVIVORS)},
        (s.AWAIT_SURVIVORS, PeerComplaints): Row("on_peer_complaints", (s.AWAIT_SURVIVORS,)),
    }
    if active:
        table[s.AWAIT_SURVIVORS, Survivors] = Row("on_survivors", (s.AWAIT_UNMASK_REQUEST,))
        table[s.AWAIT_UNMASK_REQUEST, UnmaskRequest] = Row("on_unmask_request", (s.DONE,))
    else:
        table[s.AWAIT_SURVIVORS, UnmaskRequest] = Row("on_unmask_request", (s.DONE,))
    without_vector = [s.AWAIT_PEER_KEYS, s.AWAIT_PEER_SHARES, s.AWAIT_VECTOR]
    for state in without_vector:
        table[state, Trigger.CONTRIBUTE] = Row("on_contribute", (state,))
    for state in [*without_vector, s.AWAIT_SURVIVORS] + [s.AWAIT_UNMASK_REQUEST] * active:
        table[state, Abort] = Row("on_abort", (s.ABORTED,))
        table[state, Trigger.DROP] = Row("on_drop", (s.ABORTED,))
        if state is not s.AWAIT_VECTOR:
            table[state, Trigger.EXPIRE] = Row("on_expire", (s.ABORTED,))
    table[s.READY, Trigger.DROP] = Row("on_drop", (s.ABORTED,))
    return table


CLIENT_TABLES: Final = {"active": _client_table(active=True), "semi-honest": _client_table(active=False)}


PHASES: Final = {
    ClientState.READY: Phase.SESSION,
    ClientState.AWAIT_PEER_KEYS: Phase.ADVERTISE_KEYS,
    ClientState.AWAIT_PEER_SHARES: Phase.SHARE_KEYS,
    ClientState.AWAIT_VECTOR: Phase.TRAIN,
    ClientState.AWAIT_SURVIVORS: Phase.MASKED_INPUT,
    ClientState.AWAIT_UNMASK_REQUEST: Phase.CONSISTENCY_CHECK,
    ClientState.DONE: Phase.UNMASK,
    ClientState.ABORTED: Phase.SESSION,
}
"""The phase whose message a client has sent and whose end it awaits; TRAIN while nothing but its vector is missing."""


def _server_table(*, active: bool) -> Table[ServerState]:
    s = ServerState
    rows: list[tuple[ServerState, tuple[type[Message], ...], str, str]] = [
        (s.ADVERTISE_KEYS, (AdvertiseKeys,), "on_advertise_keys", "close_keys"),
        (s.SHARE_KEYS, (ShareKeys,), "on_share_keys", "close_shares"),
        (s.MASKED_INPUT, (MaskedInput, VectorChunk), "on_masked_input", "close_inputs"),
        (s.ANSWER_COMPLAINTS, (AnswerComplaints,), "on_answer_complaints", "close_complaints"),
        (s.CONSISTENCY_CHECK, (ConfirmSurvivors,), "on_confirm_survivors", "close_signatures"),
        (s.UNMASK, (UnmaskShares,), "on_unmask_shares", "close_unmask"),
    ]
    if not active:
        del rows[4]
    table: dict[Any, Any] = {(s.ADVERTISE_KEYS, Trigger.START): IGNORE}
    past: list[type[Message]] = []
    for position, (state, kinds, handler, close) in enumerate(rows):
        following = rows[position + 1][0] if position + 1 < len(rows) else s.COMPLETED
        table[state, kinds[0]] = Row(handler, (state,))
        table[state, Abort] = Row("on_abort", (state,))
        table[state, Trigger.DROP] = Row("on_drop", (state,))
        table[state, Trigger.EXPIRE] = Row("on_expire", (state,))
        table[state, Trigger.COMPLETE] = Row(close, (following, s.ABORTED))
        table.update({(state, kind): IGNORE for kind in past})
        past += kinds
    # Where nobody complains there is nothing to answer.
    after = table[s.ANSWER_COMPLAINTS, Trigger.COMPLETE]
    table[s.MASKED_INPUT, Trigger.COMPLETE] = Row("close_inputs", (s.ANSWER_COMPLAINTS, *after.to))
    table[s.MASKED_INPUT, VectorChunk] = Row("on_vector_chunk", (s.MASKED_INPUT,))
    for state in (s.COMPLETED, s.ABORTED):
        table.update({(state, kind): IGNORE for kind in (*past, Abort, Trigger.DROP, Trigger.EXPIRE)})
    return table


SERVER_TABLES: Final = {"active": _server_table(active=True), "semi-honest": _server_table(active=False)}
