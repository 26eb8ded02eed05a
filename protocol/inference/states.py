"""Labels, inputs and states of private inference, and the rows that its transition tables share.

The tables stand below the machines (data_owner.py, model_owner.py, material.py, dealer.py). What is not in a table is
refused. The diagrams in docs/ are drawn from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any, Final

from tacit.protocol.core.machine import IGNORE, Input, Row, State, Trigger
from tacit.protocol.core.messages import Abort
from tacit.protocol.core.primitives import Label


class InferenceLabel:
    """Labels of private inference."""

    INFERENCE_TERMS: Final = Label(b"tacit/1 terms of inference")
    WEIGHTS: Final = Label(b"tacit/1 commitment to weights")
    MATERIAL: Final = Label(b"tacit/1 material")
    REQUEST: Final = Label(b"tacit/1 request for randomness")
    AUDIT_COMMITMENT: Final = Label(b"tacit/1 commitment to a coin")
    AUDIT_COIN: Final = Label(b"tacit/1 coin of an audit")


class InferenceTrigger(Input):
    """Inputs of private inference."""

    ASK = "ask for a pass"
    BEGIN = "begin a pass"
    AUDIT = "audit the dealer"
    REVEAL = "reveal keys of requests"
    OPEN = "open shares"
    ORDER = "order correlated randomness"
    DELIVER = "deliver correlated randomness"


class InferenceState(State):
    """Where an owner stands towards the other."""

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
    """Where an owner stands towards the dealer."""

    READY = "ready to start"
    AWAIT_WELCOME = "await the dealer, who waits for the other owner"
    SERVED = "order and receive material"
    CLOSED = "closed"
    ABORTED = "aborted"


class DealerState(State):
    """Where the dealer stands towards both owners of a session."""

    AWAIT_OWNERS = "await both owners"
    SERVING = "deal material"
    CLOSED = "closed"
    ABORTED = "aborted"


def ending(machine: type[Any], aborted: Enum, *, own: Sequence[Enum], awaiting: Sequence[Enum]) -> dict[Any, Any]:
    """The exchange can end in every state: where this side is to act, and where it awaits something, by a deadline."""
    table: dict[Any, Any] = {}
    for state in (*own, *awaiting):
        table[state, Abort] = Row(machine.on_abort, (aborted,))
        table[state, Trigger.DROP] = Row(machine.on_drop, (aborted,))
        if state in awaiting:
            table[state, Trigger.EXPIRE] = Row(machine.on_expire, (aborted,))
    return table


def over(states: Sequence[Enum], under_way: Sequence[object]) -> dict[Any, Any]:
    """What may still come when the exchange is over has no effect."""
    return {(state, cause): IGNORE for state in states for cause in (Abort, Trigger.DROP, *under_way)}
