"""The transition tables of a sum without secure aggregation: of the phases of a secure sum only the vectors are left.

The states are those of sum/tables.py. A client goes on in AWAIT_SURVIVORS while the server fetches its vector,
and is done with the last chunk: what becomes of the sum, the end of the round tells. What is not in a table is refused.
"""

from __future__ import annotations

from typing import Final

from tacit.protocol.core.machine import IGNORE, Row, Table, Trigger
from tacit.protocol.core.messages import Abort
from tacit.protocol.sum.messages import FetchVector, MaskedInput, VectorChunk
from tacit.protocol.sum.tables import ClientState, ServerState

_READY, _FETCHED = ClientState.READY, ClientState.AWAIT_SURVIVORS

PLAIN_CLIENT_TABLE: Final[Table[ClientState]] = {
    (_READY, Trigger.START): Row("on_start", (_FETCHED, ClientState.DONE)),
    (_READY, Trigger.DROP): Row("on_drop", (ClientState.ABORTED,)),
    (_FETCHED, FetchVector): Row("on_fetch_vector", (_FETCHED, ClientState.DONE)),
    (_FETCHED, Abort): Row("on_abort", (ClientState.ABORTED,)),
    (_FETCHED, Trigger.EXPIRE): Row("on_expire", (ClientState.ABORTED,)),
    (_FETCHED, Trigger.DROP): Row("on_drop", (ClientState.ABORTED,)),
}

_COLLECTING = ServerState.MASKED_INPUT

PLAIN_SERVER_TABLE: Final[Table[ServerState]] = {
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
