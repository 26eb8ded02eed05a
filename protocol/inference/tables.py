"""The states and transition tables of private inference: both owners, their sides of the dealer, and the dealer.

What is not in a table is refused. The diagrams in docs/ are drawn from these tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any, Final

from tacit.protocol.core.machine import IGNORE, Row, Table, Trigger
from tacit.protocol.core.messages import Abort
from tacit.protocol.inference.messages import (
    AgreeTerms,
    CloseInference,
    InferenceClosed,
    InferenceHello,
    InferenceTerms,
    MaskedWeights,
    Material,
    MaterialHello,
    MaterialOver,
    MaterialWelcome,
    Opening,
    OrderMaterial,
    PassStarted,
    StartPass,
)


class InferenceState(Enum):
    """Where an owner stands towards the other."""

    READY = "ready to start"
    AWAIT_HELLO = "await a data owner"
    AWAIT_TERMS = "await the terms"
    AWAIT_AGREEMENT = "await the agreement to the terms"
    AWAIT_WEIGHTS = "await the masked weights"
    MASKING = "mask the weights"
    IDLE = "be between passes"
    PREPARING = "have the material of a pass ready"
    AWAIT_START = "await the start of a pass"
    COMPUTING = "go through the rounds of a pass"
    BEGINNING_ROUND = "find out where a round of learning stands"
    AWAIT_ROUND = "await the beginning of a round of learning"
    SUMMING = "have the sum of a round ready"
    AWAIT_SUM = "await the sum of a round"
    CLOSING = "await the end"
    CLOSED = "closed"
    ABORTED = "aborted"


class MaterialState(Enum):
    """Where an owner stands towards the dealer."""

    READY = "ready to start"
    AWAIT_WELCOME = "await the dealer, who waits for the other owner"
    SERVED = "order and receive material"
    CLOSED = "closed"
    ABORTED = "aborted"


class DealerState(Enum):
    """Where the dealer stands towards both owners of a session."""

    AWAIT_OWNERS = "await both owners"
    SERVING = "deal material"
    CLOSED = "closed"
    ABORTED = "aborted"


def ending(aborted: Enum, *, own: Sequence[Enum], awaiting: Sequence[Enum]) -> dict[Any, Any]:
    """The exchange can end in every state: where this side is to act, and where it awaits something, by a deadline."""
    table: dict[Any, Any] = {}
    for state in (*own, *awaiting):
        table[state, Abort] = Row("on_abort", (aborted,))
        table[state, Trigger.DROP] = Row("on_drop", (aborted,))
        if state in awaiting:
            table[state, Trigger.EXPIRE] = Row("on_expire", (aborted,))
    return table


def _over(states: Sequence[Enum], under_way: Sequence[object]) -> dict[Any, Any]:
    """What may still come when the exchange is over has no effect."""
    return {(state, cause): IGNORE for state in states for cause in (Abort, Trigger.DROP, *under_way)}


_S = InferenceState
# The last round of a pass is the result, which the model owner gives: there a pass ends for it, and for the data owner
# when it has come. A pass that is out of range ends for both with the later of the two words that say so.

DATA_OWNER_TABLE: Final[Table[InferenceState]] = {
    (_S.READY, Trigger.START): Row("on_start", (_S.AWAIT_TERMS,)),
    (_S.READY, Trigger.DROP): Row("on_drop", (_S.ABORTED,)),
    (_S.AWAIT_TERMS, InferenceTerms): Row("on_terms", (_S.AWAIT_WEIGHTS,)),
    (_S.AWAIT_WEIGHTS, MaskedWeights): Row("on_weights", (_S.AWAIT_WEIGHTS, _S.IDLE)),
    (_S.IDLE, Trigger.ASK): Row("on_ask", (_S.AWAIT_START,)),
    (_S.AWAIT_START, PassStarted): Row("on_started", (_S.COMPUTING,)),
    (_S.COMPUTING, Opening): Row("on_opening", (_S.COMPUTING, _S.IDLE)),
    (_S.COMPUTING, Trigger.GIVE): Row("on_give", (_S.COMPUTING, _S.IDLE)),
    (_S.IDLE, Trigger.FINISH): Row("on_finish", (_S.CLOSING,)),
    (_S.CLOSING, InferenceClosed): Row("on_closed", (_S.CLOSED,)),
    **ending(
        _S.ABORTED,
        own=(_S.IDLE,),
        awaiting=(_S.AWAIT_TERMS, _S.AWAIT_WEIGHTS, _S.AWAIT_START, _S.COMPUTING, _S.CLOSING),
    ),
    **_over((_S.CLOSED,), ()),
    **_over((_S.ABORTED,), (InferenceTerms, MaskedWeights, PassStarted, Opening, InferenceClosed)),
}
MODEL_OWNER_TABLE: Final[Table[InferenceState]] = {
    (_S.AWAIT_HELLO, InferenceHello): Row("on_hello", (_S.AWAIT_AGREEMENT,)),
    (_S.AWAIT_HELLO, Trigger.DROP): Row("on_drop", (_S.ABORTED,)),
    (_S.AWAIT_AGREEMENT, AgreeTerms): Row("on_agreement", (_S.MASKING,)),
    (_S.MASKING, Trigger.PROVIDE): Row("on_masked", (_S.MASKING, _S.IDLE)),
    (_S.IDLE, StartPass): Row("on_start_pass", (_S.PREPARING,)),
    (_S.PREPARING, Trigger.BEGIN): Row("on_begin", (_S.COMPUTING, _S.ABORTED)),
    (_S.COMPUTING, Opening): Row("on_opening", (_S.COMPUTING, _S.IDLE)),
    (_S.COMPUTING, Trigger.GIVE): Row("on_give", (_S.COMPUTING, _S.IDLE)),
    (_S.IDLE, CloseInference): Row("on_close", (_S.CLOSED,)),
    **ending(
        _S.ABORTED,
        own=(_S.MASKING, _S.PREPARING),
        awaiting=(_S.AWAIT_AGREEMENT, _S.IDLE, _S.COMPUTING),
    ),
    **_over((_S.CLOSED,), ()),
    **_over((_S.ABORTED,), (AgreeTerms, StartPass, Opening, CloseInference)),
}
MATERIAL_TABLE: Final[Table[MaterialState]] = {
    (MaterialState.READY, Trigger.START): Row("on_start", (MaterialState.AWAIT_WELCOME,)),
    (MaterialState.AWAIT_WELCOME, MaterialWelcome): Row("on_welcome", (MaterialState.SERVED,)),
    (MaterialState.SERVED, Trigger.ORDER): Row("on_order", (MaterialState.SERVED,)),
    (MaterialState.SERVED, Material): Row("on_material", (MaterialState.SERVED,)),
    (MaterialState.SERVED, Trigger.FINISH): Row("on_finish", (MaterialState.CLOSED,)),
    **ending(MaterialState.ABORTED, own=(), awaiting=(MaterialState.AWAIT_WELCOME, MaterialState.SERVED)),
    **_over((MaterialState.CLOSED,), (Material,)),
    **_over((MaterialState.ABORTED,), (MaterialWelcome, Material)),
}
DEALER_TABLE: Final[Table[DealerState]] = {
    (DealerState.AWAIT_OWNERS, MaterialHello): Row("on_hello", (DealerState.AWAIT_OWNERS, DealerState.SERVING)),
    (DealerState.SERVING, OrderMaterial): Row("on_order", (DealerState.SERVING,)),
    (DealerState.SERVING, Trigger.DELIVER): Row("on_deliver", (DealerState.SERVING,)),
    (DealerState.SERVING, MaterialOver): Row("on_over", (DealerState.SERVING, DealerState.CLOSED)),
    **ending(DealerState.ABORTED, own=(), awaiting=(DealerState.AWAIT_OWNERS, DealerState.SERVING)),
    **_over((DealerState.CLOSED,), (Trigger.DELIVER,)),
    **_over((DealerState.ABORTED,), (MaterialHello, OrderMaterial, MaterialOver, Trigger.DELIVER)),
}
