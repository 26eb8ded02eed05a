"""Cells of a state table: the table against one written by hand, and messages without a readable body."""

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

from tacit.protocol.core.codec import Envelope, Packet
from tacit.protocol.core.machine import IGNORE, Inside, Row
from tacit.protocol.session.messages import MESSAGES
from tacit.protocol.sum.states import VERSION

IGNORED = "ignored"
ATTEMPT = "attempt"
"""The machine of the attempt decides."""
Cells = dict[str, str | set[str]]
Expected = dict[str, Cells]


def check_table(table: Any, states: Iterable[Enum], causes: Mapping[str, Any], expected: Expected) -> None:
    """Compare every cell. Causes are messages, triggers and results of an inner machine, by name."""
    for state in states:
        for name, cause in causes.items():
            row: Any = table.get((state, cause))
            verdict: Any = {to.name for to in row.to} if isinstance(row, Row) else None
            if row is IGNORE:
                verdict = IGNORED
            elif isinstance(row, Inside):
                assert (row.machine, row.otherwise) == (ATTEMPT, None)
                verdict = ATTEMPT
            assert verdict == expected.get(state.name, {}).get(name), (state, name)
    assert set(expected) <= {state.name for state in states}
    assert {state.name for state, _ in table} <= set(expected)
    assert {cause for _, cause in table} <= set(causes.values())


def garbage(agreement: Any, kind: str, sender: str) -> Packet:
    """Return a message of this type whose body is no message; the agreement on a group key is of no round."""
    session, round = agreement.session, getattr(agreement, "round", 0)
    envelope = Envelope(version=VERSION, type=kind, session=session, round=round, sender=sender, sequence=0)
    return Packet(envelope, b"\xc1", None, MESSAGES[kind])
