"""Cells of a state table: what it says by name, which transitions machines take, and messages without a body."""

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

import pytest

from tacit.protocol.core.codec import Envelope, Packet
from tacit.protocol.core.machine import IGNORE, Inside, Machine, Row
from tacit.protocol.inference.states import InferenceState
from tacit.protocol.session.messages import MESSAGES
from tacit.protocol.sum.states import VERSION
from tacit.simulate.world.inference import MODEL_OWNER, data_owner_names

IGNORED = "ignored"
ATTEMPT = "attempt"
"""The machine of the attempt decides."""
Cells = dict[str, str | set[str]]
Expected = dict[str, Cells]
Transition = tuple[str, str, str, str]
"""Role, state, cause, next state."""
HALF = 1 << 15
AUDITED_REQUESTS = ((24, 0), (0, 16), (8, 8), (8, 8))
AUDITING = {"AUDITING", "AWAIT_COIN", "AWAIT_KEYS", "REVEALING"}
_DATA_OWNER = data_owner_names(1)[0]
HELD_BACK = {
    (_DATA_OWNER, "AUDITING"): InferenceState.AWAIT_START,
    (_DATA_OWNER, "REVEALING"): InferenceState.AWAIT_COIN,
    (MODEL_OWNER, "REVEALING"): InferenceState.AWAIT_KEYS,
}
"""Where a party does nothing more by itself, so that it stays in the next state."""


def name_of(cause: Any) -> str:
    name: str = getattr(cause, "TYPE", None) or cause.value
    return name


def cells_of(table: Any) -> Expected:
    """What a table says, which docs/state-machines.md draws: next states, or IGNORED, by state and cause."""
    found: Expected = {}
    for (state, cause), row in table.items():
        to = IGNORED if row is IGNORE else {state.name for state in row.to}
        found.setdefault(state.name, {})[name_of(cause)] = to
    return found


def transitions(expected: Mapping[str, Expected]) -> set[Transition]:
    return {
        (role, state, cause, target)
        for role, cells in expected.items()
        for state, causes in cells.items()
        for cause, targets in causes.items()
        if targets != IGNORED
        for target in targets
    }


def watch_transitions(monkeypatch: pytest.MonkeyPatch, tables: Mapping[str, Any]) -> set[Transition]:
    """The transitions that machines with these tables, by role, take from now on."""
    seen: set[Transition] = set()
    roles = {id(table): role for role, table in tables.items()}

    def watch(method: str, cause: Any) -> None:
        original = getattr(Machine, method)

        def watched(machine: Any, *arguments: Any) -> Any:
            before = machine.state
            outputs = original(machine, *arguments)
            role = roles.get(id(machine.table))
            if role and machine.table.get((before, cause(arguments))) is not IGNORE:
                seen.add((role, before.name, name_of(cause(arguments)), machine.state.name))
            return outputs

        monkeypatch.setattr(Machine, method, watched)

    watch("receive", lambda arguments: arguments[1].kind)
    watch("trigger", lambda arguments: arguments[0])
    return seen


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
