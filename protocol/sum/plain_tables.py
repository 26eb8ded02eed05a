"""The transition tables of a sum without secure aggregation: of the phases of a secure sum only the vectors are left.

The states are those of sum/tables.py. A client begins in AWAIT_VECTOR, goes on in AWAIT_SURVIVORS while the server
fetches its vector, and is done with the last chunk: what becomes of the sum, the end of the round tells. What is not in
a table is refused.
"""

from __future__ import annotations

from typing import Final

from tacit.protocol.core.machine import IGNORE, Row, Table, Trigger
from tacit.protocol.core.messages import Abort
from tacit.protocol.sum.messages import FetchVector, MaskedInput, VectorChunk
from tacit.protocol.sum.tables import ClientState, ServerState

_READY, _OWN, _FETCHED = ClientState.READY, ClientState.AWAIT_VECTOR, ClientState.AWAIT_SURVIVORS

PLAIN_CLIENT_TABLE: Final[Table[ClientState]] = {
    (_READY, Trigger.START): Row("on_start", (_OWN,)),
    (_READY, Trigger.DROP): Row("on_drop", (ClientState.ABORTED,)),
    (_OWN, Trigger.CONTRIBUTE): Row("on_contribute", (_OWN,)),
    (_OWN, Trigger.COMPLETE): Row("on_vector", (_FETCHED, ClientState.DONE)),
    (_OWN, FetchVector): Row("on_fetch_vector", (_OWN,)),
    (_FETCHED, FetchVector): Row("on_fetch_vector", (_FETCHED, ClientState.DONE)),
    (_FETCHED, Trigger.EXPIRE): Row("on_expire", (ClientState.ABORTED,)),
    **{(state, Abort): Row("on_abort", (ClientState.ABORTED,)) for state in (_OWN, _FETCHED)},
    **{(state, Trigger.DROP): Row("on_drop", (ClientState.ABORTED,)) for state in (_OWN, _FETCHED)},
}

_COLLECTING = ServerState.MASKED_INPUT

PLAIN_SERVER_TABLE: Final[Table[ServerState]] = {
    (_COLLECTING, Trigger.START): Row("on_start", (_COLLECTING,)),
    (_COLLECTING, MaskedInput): Row("on_masked_input", (_COLLECTING,)),
    (_COLLECTING, VectorChunk): Row("on_vector_chunk", (_COLLECTING,)),
    (_COLLECTING, Abort): Row("on_abort", (_COLLECTING,)),
    (_COLLECTING, Trigger.DROP): Row("on_drop", (_COLLECTING,)),
    (_COLLECTING, Trigger.EXPIRE): Row("on_expire", (_COLLECTING,)),
    (_COLLECTING, Trigger.COMPLETE): Row("close_inputs", (ServerState.COMPLETED, ServerState.ABORTED)),
    **{
        (state, cause): IGNORE
        for state in (ServerState.COMPLETED, ServerState.ABORTED)
        for cause in (MaskedInput, VectorChunk, Abort, Trigger.DROP, Trigger.EXPIRE)
    },
}
