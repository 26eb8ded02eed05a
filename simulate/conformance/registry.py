"""The protocols that vectors may speak of, each with its operations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tacit.simulate.conformance.group_key_operations import GROUP_KEY_OPERATIONS, GroupKeyStage
from tacit.simulate.conformance.inference_operations import INFERENCE_OPERATIONS
from tacit.simulate.conformance.inference_stage import InferenceStage
from tacit.simulate.conformance.message_operations import MESSAGE_OPERATIONS
from tacit.simulate.conformance.operations import Protocol
from tacit.simulate.conformance.primitive_operations import PRIMITIVES
from tacit.simulate.conformance.protection_operations import PROTECTIONS
from tacit.simulate.conformance.session_operations import SessionStage
from tacit.simulate.conformance.sum_operations import SumStage

PROTOCOLS: Final[Mapping[str, Protocol]] = {
    "secure sum": lambda: {**PRIMITIVES, **MESSAGE_OPERATIONS, **SumStage().operations()},
    "group key": lambda: {**GROUP_KEY_OPERATIONS, **GroupKeyStage().operations()},
    "protection": lambda: PROTECTIONS,
    "federation": lambda: SessionStage().operations(),
    "private inference": lambda: {**INFERENCE_OPERATIONS, **InferenceStage().operations()},
}
