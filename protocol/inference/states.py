"""Labels, inputs and states of private inference, and rows shared by its transition tables.

Each machine's table stands below it (data_owner.py, model_owner.py, material.py, dealer.py). Any input outside the
table is refused. The diagrams in docs/ are generated from the tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any, Final

from tacit.protocol.core.machine import IGNORE, Input, Row, State, Trigger
from tacit.protocol.core.messages import Abort
from tacit.protocol.core.primitives import Label


class InferenceLabel:
    INFERENCE_TERMS: Final = Label(b"tacit/1 terms of inference")
    WEIGHTS: Final = Label(b"tacit/1 commitment to weights")
    MATERIAL: Final = Label(b"tacit/1 material")
    REQUEST: Final = Label(b"tacit/1 request for randomness")
    AUDIT_COMMITMENT: Final = Label(b"tacit/1 commitment to a coin")
    AUDIT_COIN: Final = Label(b"tacit/1 coin of an audit")


class InferenceTrigger(Input):
    ASK = "ask for a pass"
    BEGIN = "begin a pass"
    AUDIT = "audit the dealer"
    REVEAL = "reveal keys of requests"
    OPEN = "open shares"
    ORDER = "order correlated randomness"
    DELIVER = "deliver correlated randomness"


class InferenceState(State):
    """Progress of an owner in its exchange with the other owner."""

    READY = "ready to start"
    AWAIT_HELLO = "await a data owner"
    AWAIT_TERMS = "await the terms"
    AWAIT_AGREEMENT = "await the agreement to the terms"
    AWAIT_KEPT = "await what the other keeps of images"
    AWAIT_WEIGHTS = "await the masked weights"
    MASKING = "mask the weights"
    IDLE = "be between passes"
    PREPARING = "have the material of a pass ready"
    AWAIT_START = "await the start of a pass"
    AUDITING = "have what is to be audited ready"
    AWAIT_COIN = "await the contribution to the coin of an audit"
    REVEALING = "reveal the keys that a coin has picked"
    AWAIT_KEYS = "await the keys that a coin has picked"
    COMPUTING = "go through the rounds of a pass"
    BEGINNING_ROUND = "find out where a round of learning stands"
    AWAIT_ROUND = "await the beginning of a round of learning"
    SUMMING = "have the sum of a round ready"
    AWAIT_SUM = "await the sum of a round"
    CLOSING = "await the end"
    CLOSED = "closed"
    ABORTED = "aborted"


class MaterialState(State):
    """Progress of an owner in its exchange with the dealer."""

    READY = "ready to start"
    AWAIT_WELCOME = "await the dealer, who waits for the other owner"
    SERVED = "order and receive material"
    CLOSED = "closed"
    ABORTED = "aborted"


class DealerState(State):
    """Progress of the dealer in a session with both owners."""

    AWAIT_OWNERS = "await both owners"
    SERVING = "deal material"
    CLOSED = "closed"
    ABORTED = "aborted"


def ending(machine: type[Any], aborted: Enum, *, own: Sequence[Enum], awaiting: Sequence[Enum]) -> dict[Any, Any]:
    """Return rows that end an exchange. own: this side's turn; awaiting: the peer's turn, with a deadline."""
    table: dict[Any, Any] = {}
    for state in (*own, *awaiting):
        table[state, Abort] = Row(machine.on_abort, (aborted,))
        table[state, Trigger.DROP] = Row(machine.on_drop, (aborted,))
        if state in awaiting:
            table[state, Trigger.EXPIRE] = Row(machine.on_expire, (aborted,))
    return table


def over(states: Sequence[Enum], under_way: Sequence[object]) -> dict[Any, Any]:
    """Return rows that ignore late messages once the exchange is over."""
    return {(state, cause): IGNORE for state in states for cause in (Abort, Trigger.DROP, *under_way)}
