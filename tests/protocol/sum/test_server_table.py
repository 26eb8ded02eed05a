"""Every (state x message) cell of the server in both modes, on machines that were brought into the state.

The expected table is written here by hand. A cell is tried with a body that is no message at all: where the type is
legal it is refused as MALFORMED, where it is not as UNEXPECTED, which shows that legality is decided before parsing.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from tacit.protocol.core.errors import Code, LocalProtocolError
from tacit.protocol.core.machine import Send, Trigger
from tacit.protocol.core.messages import Abort
from tacit.protocol.session.messages import MESSAGES
from tacit.protocol.session.states import SUM_TO_CLIENT, SUM_TO_SERVER
from tacit.protocol.sum import agreement as agreement_module
from tacit.protocol.sum.events import ClientDropped
from tacit.protocol.sum.exchange import ServerAborted, Summed
from tacit.protocol.sum.server import SERVER_TABLES
from tacit.protocol.sum.states import ClientState, ServerState, SumTrigger
from tests.cases import cases
from tests.protocol.cells import IGNORED, Cells, Expected, check_table, garbage
from tests.world.exchange import Delivery
from tests.world.sums import MemorySum, memory_sum

Audit = Callable[[MemorySum], Summed | ServerAborted]
MODES = ("active", "semi-honest")

OVER: Cells = dict.fromkeys(("advertise-keys", "share-keys", "masked-input", "vector-chunk"), IGNORED)
FINISHED: Cells = {
    **OVER,
    "answer-complaints": IGNORED,
    "unmask-shares": IGNORED,
    "abort": IGNORED,
    "drop": IGNORED,
    "expire": IGNORED,
}


def collecting(state: str, *following: str) -> Cells:
    return {"abort": {state}, "drop": {state}, "expire": {state}, "complete": {*following, "ABORTED"}}


BEFORE_VECTORS: Expected = {
    "ADVERTISE_KEYS": {
        "start": IGNORED,
        "advertise-keys": {"ADVERTISE_KEYS"},
        **collecting("ADVERTISE_KEYS", "SHARE_KEYS"),
    },
    "SHARE_KEYS": {
        "advertise-keys": IGNORED,
        "share-keys": {"SHARE_KEYS"},
        **collecting("SHARE_KEYS", "MASKED_INPUT"),
    },
}
"""In both modes."""
SERVER: dict[str, Expected] = {
    "active": {
        **BEFORE_VECTORS,
        "MASKED_INPUT": {
            "advertise-keys": IGNORED,
            "share-keys": IGNORED,
            "masked-input": {"MASKED_INPUT"},
            "vector-chunk": {"MASKED_INPUT"},
            **collecting("MASKED_INPUT", "ANSWER_COMPLAINTS", "CONSISTENCY_CHECK"),
        },
        "ANSWER_COMPLAINTS": {
            **OVER,
            "answer-complaints": {"ANSWER_COMPLAINTS"},
            **collecting("ANSWER_COMPLAINTS", "CONSISTENCY_CHECK"),
        },
        "CONSISTENCY_CHECK": {
            **OVER,
            "answer-complaints": IGNORED,
            "confirm-survivors": {"CONSISTENCY_CHECK"},
            **collecting("CONSISTENCY_CHECK", "UNMASK"),
        },
        "UNMASK": {
            **OVER,
            "answer-complaints": IGNORED,
            "confirm-survivors": IGNORED,
            "unmask-shares": {"UNMASK"},
            **collecting("UNMASK", "UNMASK", "COMPLETED"),
        },
        "COMPLETED": {**FINISHED, "confirm-survivors": IGNORED},
        "ABORTED": {**FINISHED, "confirm-survivors": IGNORED},
    },
    "semi-honest": {
        **BEFORE_VECTORS,
        "MASKED_INPUT": {
            "advertise-keys": IGNORED,
            "share-keys": IGNORED,
            "masked-input": {"MASKED_INPUT"},
            "vector-chunk": {"MASKED_INPUT"},
            **collecting("MASKED_INPUT", "ANSWER_COMPLAINTS", "UNMASK"),
        },
        "ANSWER_COMPLAINTS": {
            **OVER,
            "answer-complaints": {"ANSWER_COMPLAINTS"},
            **collecting("ANSWER_COMPLAINTS", "UNMASK"),
        },
        "CONSISTENCY_CHECK": {},
        "UNMASK": {
            **OVER,
            "answer-complaints": IGNORED,
            "unmask-shares": {"UNMASK"},
            **collecting("UNMASK", "UNMASK", "COMPLETED"),
        },
        "COMPLETED": FINISHED,
        "ABORTED": FINISHED,
    },
}


REACHABLE = [
    (mode, state) for mode in MODES for state in SERVER[mode] if mode == "active" or state != "CONSISTENCY_CHECK"
]


@cases("mode", MODES)
def test_the_table_says_what_is_written_here(mode: str) -> None:
    causes = {**MESSAGES, **{trigger.value: trigger for trigger in (*Trigger, *SumTrigger)}}
    check_table(SERVER_TABLES[mode], ServerState, causes, SERVER[mode])


def server_in(mode: str, state: str, spoil: Any, *, answered: bool) -> MemorySum:
    """A run whose server just entered the state; c0 may have answered in it already, the others have not."""
    run = memory_sum(5, active=mode == "active", seed=b"cells")
    if state == "ANSWER_COMPLAINTS":
        # Of everybody one holder complains.
        run.hook = lambda delivery: spoil(run, delivery, {owner: ((owner + 1) % 5,) for owner in range(5)})
    run.start()
    if state == "ABORTED":
        for name in run.agreement.cohort:
            run.kill(name)
        assert run.server.state is ServerState.ABORTED
        return run
    assert run.advance(lambda: run.server.state.name == state and (not answered or 0 not in run.server.waiting))
    if state != "COMPLETED":
        assert run.server.waiting == set(range(answered, 5))
    return run


TERMINAL = ("COMPLETED", "ABORTED")
VECTORS_IN = ("ANSWER_COMPLAINTS", "CONSISTENCY_CHECK", "UNMASK")


@cases(
    ("mode", "state", "answered"),
    [
        (mode, state, answered)
        for mode, state in REACHABLE
        for answered in ([False] if state in TERMINAL else [False, True])
    ],
)
def test_every_message_to_the_server(mode: str, state: str, answered: bool, audit: Audit, spoil: Any) -> None:
    terminal, row = state in TERMINAL, SERVER[mode][state]
    # Every message of a sum, and one of a session, which no row has either. Where no row has a message the sum goes on
    # in one way, whatever it was: it is seen to once.
    followed = {*row, "fetch"}
    for kind in (*(kind.TYPE for kind in (*SUM_TO_SERVER, *SUM_TO_CLIENT)), "abort", "fetch"):
        run = server_in(mode, state, spoil, answered=answered)
        server = run.server
        before = set(server.waiting), server.deadline, server.ignored
        verdict = row.get(kind)
        repeated = answered and kind != "abort" and isinstance(verdict, set)
        outputs = server.receive("c0", garbage(run.agreement, kind, "c0"), run.now)
        assert server.state.name == state
        if verdict == IGNORED or repeated or terminal:
            assert outputs == []
            assert (server.waiting, server.deadline, server.ignored - before[2]) == (
                *before[:2],
                int(verdict is not None),
            )
            assert [drop.member for drop in server.drops] == (list(run.agreement.cohort) if state == "ABORTED" else [])
        else:
            code = Code.UNEXPECTED if verdict is None else Code.MALFORMED
            dropped, told = outputs
            assert isinstance(dropped, ClientDropped)
            assert (dropped.member, dropped.code) == ("c0", code.name)
            assert isinstance(told, Send)
            assert isinstance(told.message, Abort)
            assert (told.to, told.message.code, told.message.culprit) == ("c0", code, "c0")
            assert server.waiting == before[0] - {0}
            (drop,) = server.drops
            assert (drop.member, drop.phase, drop.code) == ("c0", state, code)
        if state == "ABORTED" or kind not in followed:
            continue
        run.emit("server", outputs)
        run.settle()
        outcome = audit(run)
        if state == "ANSWER_COMPLAINTS" and mode == "active" and outputs and not answered:
            # Neither c0 nor who complained of it has a share of its secrets: one too few of five.
            assert isinstance(outcome, ServerAborted)
            assert (outcome.code, outcome.culprit) == (Code.SHARES, "")
            continue
        assert isinstance(outcome, Summed)
        in_sum = not outputs or state in VECTORS_IN or (state == "MASKED_INPUT" and answered)
        assert outcome.survivors == tuple(run.agreement.cohort[0 if in_sum else 1 :])
        assert {client.state for client in list(run.clients.values())[1:]} == {ClientState.DONE}


@cases(("mode", "state"), REACHABLE)
def test_every_trigger_on_the_server(mode: str, state: str, spoil: Any) -> None:
    terminal = state in TERMINAL
    run = server_in(mode, state, spoil, answered=False)
    outputs = run.server.drop("c0", Code.LEFT, "gone", run.now)
    assert [type(output) for output in outputs] == ([] if terminal else [ClientDropped])
    assert run.server.drop("c0", Code.LEFT, "gone", run.now) == []
    assert run.server.drop("a stranger", Code.LEFT, "gone", run.now) == []
    assert run.server.state.name == state
    run = server_in(mode, state, spoil, answered=not terminal)
    if terminal:
        assert run.server.deadline is None
        assert run.server.trigger(Trigger.EXPIRE, 1e9) == []
        assert run.server.trigger(Trigger.DROP, 1e9, "c0", Code.LEFT, "gone") == []
        assert run.server.expire(1e9) == []
    else:
        deadline = run.server.deadline
        assert deadline is not None
        assert run.server.expire(np.nextafter(deadline, 0)) == []
        outputs = run.server.expire(deadline)
        # Four of five are late; with the one left nothing can be summed.
        assert [output.to for output in outputs if isinstance(output, Send)] == ["c1", "c2", "c3", "c4", "c0"]
        assert {drop.code for drop in run.server.drops} == {Code.TIMEOUT}
        assert isinstance(outputs[-1], ServerAborted)
        assert outputs[-1].code is Code.THRESHOLD
        assert run.server.state is ServerState.ABORTED
        assert run.server.deadline is None
    with pytest.raises(LocalProtocolError, match="cannot start"):
        run.server.trigger(Trigger.START, 0.0)


@cases("mode", MODES)
def test_genuine_messages_take_every_legal_row(
    mode: str, audit: Audit, spoil: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agreement_module, "CHUNK_BYTES", 64)
    run = memory_sum(5, active=mode == "active", length=40)
    machines: dict[str, Any] = {"server": run.server, **run.clients}
    seen: set[tuple[str, str, str]] = set()
    previous: list[tuple[Any, str, str]] = []

    def note() -> None:
        seen.update((before, kind, machine.state.name) for machine, before, kind in previous)
        previous.clear()

    def hook(delivery: Delivery) -> list[Delivery]:
        note()
        if delivery.receiver == "server":
            machine = machines[delivery.receiver]
            previous.append((machine, machine.state.name, delivery.kind))
        return spoil(run, delivery, {2: (0,), 3: (1,)})  # type: ignore[no-any-return]

    run.hook = hook
    run.run()
    note()
    assert isinstance(audit(run), Summed)
    # A message keeps the state; the last one of a phase leads on.
    order = [state for state in SERVER[mode] if SERVER[mode][state] and state != "ABORTED"]
    last = {"MASKED_INPUT": "vector-chunk"}
    rows = set()
    for state, following in pairwise(order):
        for kind, verdict in SERVER[mode][state].items():
            if kind in MESSAGES and isinstance(verdict, set) and kind != "abort":
                rows.add((state, kind, state))
                if last.get(state, kind) == kind:
                    rows.add((state, kind, following))
    assert seen == rows
