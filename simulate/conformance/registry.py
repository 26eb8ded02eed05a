"""The protocols that vectors may speak of, each with its operations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tacit.simulate.conformance.message_operations import MESSAGE_OPERATIONS
from tacit.simulate.conformance.operations import Operations, Protocol
from tacit.simulate.conformance.primitive_operations import PRIMITIVES
from tacit.simulate.conformance.session_operations import SessionStage
from tacit.simulate.conformance.sum_operations import SumStage


def secure_sum() -> Operations:
    """One sum, and everything below it."""
    return {**PRIMITIVES, **MESSAGE_OPERATIONS, **SumStage().operations()}


def federation() -> Operations:
    """A session with its rounds."""
    return SessionStage().operations()


PROTOCOLS: Final[Mapping[str, Protocol]] = {"secure sum": secure_sum, "federation": federation}
