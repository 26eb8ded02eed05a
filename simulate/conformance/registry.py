"""The protocols that vectors may speak of, each with its operations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tacit.simulate.conformance.group_key_operations import GroupKeyStage
from tacit.simulate.conformance.inference_operations import INFERENCE_OPERATIONS
from tacit.simulate.conformance.inference_stage import InferenceStage
from tacit.simulate.conformance.message_operations import MESSAGE_OPERATIONS
from tacit.simulate.conformance.operations import Operations, Protocol
from tacit.simulate.conformance.primitive_operations import PRIMITIVES
from tacit.simulate.conformance.protection_operations import PROTECTIONS
from tacit.simulate.conformance.session_operations import SessionStage
from tacit.simulate.conformance.sum_operations import SumStage


def secure_sum() -> Operations:
    """One sum, and everything below it."""
    return {**PRIMITIVES, **MESSAGE_OPERATIONS, **SumStage().operations()}


def group_key() -> Operations:
    """One attempt of clients at a key of their own."""
    return GroupKeyStage().operations()


def protection() -> Operations:
    """What clients do to an update before it is summed."""
    return PROTECTIONS


def federation() -> Operations:
    """A session with its rounds."""
    return SessionStage().operations()


def private_inference() -> Operations:
    """Sessions of owners and a dealer, and everything below them."""
    return {**INFERENCE_OPERATIONS, **InferenceStage().operations()}


PROTOCOLS: Final[Mapping[str, Protocol]] = {
    "secure sum": secure_sum,
    "group key": group_key,
    "protection": protection,
    "federation": federation,
    "private inference": private_inference,
}
