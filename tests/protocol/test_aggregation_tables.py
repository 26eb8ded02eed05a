"""Every (state x message) cell of both machines in both modes, executed on machines that were brought into the state.

The expected tables are written here by hand. A cell is tried with a body that is no message at all: where the type is
legal it is refused as MALFORMED, where it is not as UNEXPECTED, which shows that legality is decided before parsing.
"""

import gc
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from tacit.protocol import agreement as agreement_module
from tacit.protocol.aggregation_client import AggregationClient
from tacit.protocol.aggregation_results import ClientAborted, ServerAborted, Summed
from tacit.protocol.aggregation_tables import CLIENT_TABLES, SERVER_TABLES, ClientState, ServerState
from tacit.protocol.codec import VERSION, Envelope, Packet
from tacit.protocol.errors import Code, LocalProtocolError
from tacit.protocol.machine import IGNORE, Report, Row, Send, Trigger
from tacit.protocol.messages import MESSAGES, Abort
from tacit.protocol.primitives import AgreementKey
from tacit.protocol.sharing import HeldShares
from tacit.simulate.memory import Delivery, MemorySum, memory_sum

Audit = Callable[[MemorySum], Summed | ServerAborted]
IGNORED = "ignored"
MODES = ("active", "semi-honest")
Expected = dict[str, dict[str, str | set[str]]]

ENDS: dict[str, str | set[str]] = {"abort": {"ABORTED"}, "drop": {"ABORTED"}, "expire": {"ABORTED"}}
CLIENT: dict[str, Expected] = {
    "active": {
        "READY": {"start": {"AWAIT_PEER_KEYS"}, "drop": {"ABORTED"}},
        "AWAIT_PEER_KEYS": {"peer-keys": {"AWAIT_PEER_SHARES"}, **ENDS},
        "AWAIT_PEER_SHARES": {"peer-shares": {"AWAIT_SURVIVORS"}, **ENDS},
        "AWAIT_SURVIVORS": {"fetch-vector": {"AWAIT_SURVIVORS"}, "survivors": {"AWAIT_UNMASK_REQUEST"}, **ENDS},
        "AWAIT_UNMASK_REQUEST": {"unmask-request": {"DONE"}, **ENDS},
        "DONE": {},
        "ABORTED": {},
    },
    "semi-honest": {
        "READY": {"start": {"AWAIT_PEER_KEYS"}, "drop": {"ABORTED"}},
        "AWAIT_PEER_KEYS": {"peer-keys": {"AWAIT_PEER_SHARES"}, **ENDS},
        "AWAIT_PEER_SHARES": {"peer-shares": {"AWAIT_SURVIVORS"}, **ENDS},
        "AWAIT_SURVIVORS": {"fetch-vector": {"AWAIT_SURVIVORS"}, "unmask-request": {"DONE"}, **ENDS},
        "AWAIT_UNMASK_REQUEST": {},
        "DONE": {},
        "ABORTED": {},
    },
}

FINISHED: dict[str, str | set[str]] = {
    "advertise-keys": IGNORED,
    "share-keys": IGNORED,
    "masked-input": IGNORED,
    "vector-chunk": IGNORED,
    "unmask-shares": IGNORED,
    "abort": IGNORED,
    "drop": IGNORED,
    "expire": IGNORED,
}


def collecting(state: str, following: str) -> dict[str, str | set[str]]:
    return {"abort": {state}, "drop": {state}, "expire": {state}, "complete": {following, "ABORTED"}}


SERVER: dict[str, Expected] = {
    "active": {
        "ADVERTISE_KEYS": {"advertise-keys": {"ADVERTISE_KEYS"}, **collecting("ADVERTISE_KEYS", "SHARE_KEYS")},
        "SHARE_KEYS": {
            "advertise-keys": IGNORED,
            "share-keys": {"SHARE_KEYS"},
            **collecting("SHARE_KEYS", "MASKED_INPUT"),
        },
        "MASKED_INPUT": {
            "advertise-keys": IGNORED,
            "share-keys": IGNORED,
            "masked-input": {"MASKED_INPUT"},
            "vector-chunk": {"MASKED_INPUT"},
            **collecting("MASKED_INPUT", "CONSISTENCY_CHECK"),
        },
        "CONSISTENCY_CHECK": {
            "advertise-keys": IGNORED,
            "share-keys": IGNORED,
            "masked-input": IGNORED,
            "vector-chunk": IGNORED,
            "confirm-survivors": {"CONSISTENCY_CHECK"},
            **collecting("CONSISTENCY_CHECK", "UNMASK"),
        },
        "UNMASK": {
            "advertise-keys": IGNORED,
            "share-keys": IGNORED,
            "masked-input": IGNORED,
            "vector-chunk": IGNORED,
            "confirm-survivors": IGNORED,
            "unmask-shares": {"UNMASK"},
            **collecting("UNMASK", "COMPLETED"),
        },
        "COMPLETED": {**FINISHED, "confirm-survivors": IGNORED},
        "ABORTED": {**FINISHED, "confirm-survivors": IGNORED},
    },
    "semi-honest": {
        "ADVERTISE_KEYS": {"advertise-keys": {"ADVERTISE_KEYS"}, **collecting("ADVERTISE_KEYS", "SHARE_KEYS")},
        "SHARE_KEYS": {
            "advertise-keys": IGNORED,
            "share-keys": {"SHARE_KEYS"},
            **collecting("SHARE_KEYS", "MASKED_INPUT"),
        },
        "MASKED_INPUT": {
            "advertise-keys": IGNORED,
            "share-keys": IGNORED,
            "masked-input": {"MASKED_INPUT"},
            "vector-chunk": {"MASKED_INPUT"},
            **collecting("MASKED_INPUT", "UNMASK"),
        },
        "CONSISTENCY_CHECK": {},
        "UNMASK": {
            "advertise-keys": IGNORED,
            "share-keys": IGNORED,
            "masked-input": IGNORED,
            "vector-chunk": IGNORED,
            "unmask-shares": {"UNMASK"},
            **collecting("UNMASK", "COMPLETED"),
        },
        "COMPLETED": FINISHED,
        "ABORTED": FINISHED,
    },
}


def test_there_are_twenty_messages() -> None:
    assert len(MESSAGES) == 20


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("tables", "expected", "states"),
    [(CLIENT_TABLES, CLIENT, ClientState), (SERVER_TABLES, SERVER, ServerState)],
    ids=["client", "server"],
)
def test_the_tables_say_what_is_written_here(
    tables: Any, expected: dict[str, Expected], states: Any, mode: str
) -> None:
    def verdict(state: Any, cause: Any) -> str | set[str] | None:
        row = tables[mode].get((state, cause))
        if row is IGNORE:
            return IGNORED
        return {state.name for state in row.to} if isinstance(row, Row) else None

    causes = {**MESSAGES, **{trigger.value: trigger for trigger in Trigger}}
    for state in states:
        for name, cause in causes.items():
            assert verdict(state, cause) == expected[mode][state.name].get(name), (state, name)
    assert set(expected[mode]) == {state.name for state in states}
    assert {cause for _, cause in tables[mode]} <= set(causes.values())


def garbage(run: MemorySum, kind: str, sender: str) -> Packet:
    """A message of this type whose body is no message."""
    envelope = Envelope(
        version=VERSION,
        type=kind,
        session=run.agreement.session,
        round=run.agreement.round,
        sender=sender,
        sequence=0,
    )
    return Packet(envelope, b"\xc1", None)


def reachable(expected: dict[str, Expected]) -> list[tuple[str, str]]:
    absent = ("AWAIT_UNMASK_REQUEST", "CONSISTENCY_CHECK")
    return [(mode, state) for mode in MODES for state in expected[mode] if mode == "active" or state not in absent]


def client_in(mode: str, state: str) -> tuple[MemorySum, AggregationClient]:
    run = memory_sum(5, active=mode == "active", seed=b"cells")
    client = run.clients["c0"]
    if state == "READY":
        return run, client
    run.start()
    if state == "ABORTED":
        run.deliver(Delivery("server", "c0", Abort(code=Code.LEFT, detail="", culprit=""), None))
    assert run.advance(lambda: client.state.name == state)
    return run, client


def secrets_within(client: AggregationClient) -> set[bytes]:
    """Every private key, seed, share and the vector that is still reachable from the client."""
    found: set[bytes] = set()
    seen: set[int] = set()
    stack: list[Any] = [value for name, value in vars(client).items() if name not in ("_signing", "_entropy", "table")]
    while stack:
        item = stack.pop()
        if id(item) in seen or isinstance(item, type) or callable(item):
            continue
        seen.add(id(item))
        if isinstance(item, AgreementKey):
            found.add(item.private)
        elif isinstance(item, HeldShares):
            found |= {item.key, item.seed}
        elif isinstance(item, np.ndarray):
            found.add(item.tobytes())
        elif type(item).__name__ == "Mask":
            found.add(item.seed)
        elif isinstance(item, bytes) and item == getattr(client, "_seed", None):
            found.add(item)
        else:
            stack += gc.get_referents(item)
    return found


SECRETS = {
    "READY": 1,
    "AWAIT_PEER_KEYS": 1 + 2,
    "AWAIT_PEER_SHARES": 1 + 2 + 1,
    "AWAIT_SURVIVORS": 1 + 2 + 1 + 10 + 5,
    "AWAIT_UNMASK_REQUEST": 1 + 2 + 1 + 10 + 5,
    "DONE": 0,
    "ABORTED": 0,
}
"""The vector; two keys; the seed; two shares of five owners and five masks."""


@pytest.mark.parametrize(("mode", "state"), reachable(CLIENT))
def test_every_message_to_a_client(mode: str, state: str, audit: Audit) -> None:
    for kind in MESSAGES:
        run, client = client_in(mode, state)
        assert len(secrets_within(client)) == SECRETS[state]
        outputs = client.receive("server", garbage(run, kind, "server"), run.now)
        code = Code.MALFORMED if kind in CLIENT[mode][state] else Code.UNEXPECTED
        assert client.ignored == 0
        if state in ("DONE", "ABORTED"):
            (report,) = outputs
            assert isinstance(report, Report)
            assert (report.event, report.fields["code"]) == ("refused", "UNEXPECTED")
            assert client.state.name == state
        else:
            abort, aborted = outputs
            assert isinstance(abort, Send)
            assert isinstance(abort.message, Abort)
            assert isinstance(aborted, ClientAborted)
            assert (abort.to, abort.message.code, abort.message.culprit) == ("server", code, "server")
            assert (aborted.code, aborted.culprit) == (code, "server")
            assert abort.message.detail == aborted.detail
            assert kind in aborted.detail or code is Code.MALFORMED
            assert client.state is ClientState.ABORTED
        assert client.deadline is None or state in ("DONE", "ABORTED")
        assert secrets_within(client) == set()
        # The server does without it: four of five are left, which both thresholds allow.
        run.emit("c0", outputs)
        if state == "READY":
            for name in ("c1", "c2", "c3", "c4"):
                run.emit(name, run.clients[name].start(run.now))
        run.settle()
        survivors = audit(run)
        assert isinstance(survivors, Summed)
        in_sum = state in ("AWAIT_SURVIVORS", "AWAIT_UNMASK_REQUEST", "DONE")
        assert survivors.survivors == tuple(run.agreement.cohort[0 if in_sum else 1 :])


@pytest.mark.parametrize(("mode", "state"), reachable(CLIENT))
def test_every_trigger_on_a_client(mode: str, state: str) -> None:
    row = CLIENT[mode][state]
    _, client = client_in(mode, state)
    if "drop" in row:
        (aborted,) = client.trigger(Trigger.DROP, 0.0, "the link is lost")
        assert isinstance(aborted, ClientAborted)
        assert (aborted.code, aborted.detail, aborted.culprit) == (Code.LEFT, "the link is lost", "server")
        assert client.state is ClientState.ABORTED
        assert secrets_within(client) == set()
    else:
        with pytest.raises(LocalProtocolError, match=f"cannot drop in state {state}"):
            client.trigger(Trigger.DROP, 0.0, "the link is lost")
    _, client = client_in(mode, state)
    if "expire" in row:
        assert client.deadline is not None
        assert client.expire(np.nextafter(client.deadline, 0)) == []
        assert client.state.name == state
        (aborted,) = client.expire(client.deadline)
        assert (aborted.code, aborted.culprit) == (Code.TIMEOUT, "server")
        assert client.state is ClientState.ABORTED
        assert secrets_within(client) == set()
    else:
        assert client.deadline is None
        assert client.expire(1e9) == []
    _, client = client_in(mode, state)
    if "start" not in row:
        with pytest.raises(LocalProtocolError, match=f"cannot start in state {state}"):
            client.start(0.0)


def server_in(mode: str, state: str, *, answered: bool) -> MemorySum:
    """A run whose server just entered the state; c0 may have answered in it already, the others have not."""
    run = memory_sum(5, active=mode == "active", seed=b"cells")
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
VECTORS_IN = ("CONSISTENCY_CHECK", "UNMASK")


@pytest.mark.parametrize(
    ("mode", "state", "answered"),
    [
        (mode, state, answered)
        for mode, state in reachable(SERVER)
        for answered in ([False] if state in TERMINAL else [False, True])
    ],
)
def test_every_message_to_the_server(mode: str, state: str, answered: bool, audit: Audit) -> None:
    terminal = state in TERMINAL
    for kind in MESSAGES:
        run = server_in(mode, state, answered=answered)
        server = run.server
        before = set(server.waiting), server.deadline, server.ignored
        verdict = SERVER[mode][state].get(kind)
        repeated = answered and kind != "abort" and isinstance(verdict, set)
        outputs = server.receive("c0", garbage(run, kind, "c0"), run.now)
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
            report, told = outputs
            assert isinstance(report, Report)
            assert (report.event, report.fields["member"], report.fields["code"]) == ("dropped", "c0", code.name)
            assert isinstance(told, Send)
            assert isinstance(told.message, Abort)
            assert (told.to, told.message.code, told.message.culprit) == ("c0", code, "c0")
            assert server.waiting == before[0] - {0}
            (drop,) = server.drops
            assert (drop.member, drop.phase, drop.code) == ("c0", state, code)
        if state == "ABORTED":
            continue
        run.emit("server", outputs)
        run.settle()
        outcome = audit(run)
        assert isinstance(outcome, Summed)
        in_sum = not outputs or state in VECTORS_IN or (state == "MASKED_INPUT" and answered)
        assert outcome.survivors == tuple(run.agreement.cohort[0 if in_sum else 1 :])
        assert {client.state for client in list(run.clients.values())[1:]} == {ClientState.DONE}


@pytest.mark.parametrize(("mode", "state"), reachable(SERVER))
def test_every_trigger_on_the_server(mode: str, state: str) -> None:
    terminal = state in TERMINAL
    run = server_in(mode, state, answered=False)
    outputs = run.server.drop("c0", Code.LEFT, "gone", run.now)
    assert [output.event for output in outputs] == ([] if terminal else ["dropped"])
    assert run.server.drop("c0", Code.LEFT, "gone", run.now) == []
    assert run.server.drop("a stranger", Code.LEFT, "gone", run.now) == []
    assert run.server.state.name == state
    run = server_in(mode, state, answered=not terminal)
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


@pytest.mark.parametrize("mode", MODES)
def test_genuine_messages_take_every_legal_row(mode: str, audit: Audit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement_module, "CHUNK_BYTES", 64)
    run = memory_sum(5, active=mode == "active", length=40)
    machines: dict[str, Any] = {"server": run.server, **run.clients}
    seen: dict[str, set[tuple[str, str, str]]] = {"server": set(), "client": set()}
    previous: list[tuple[str, str, str]] = []

    def note() -> None:
        for receiver, before, kind in previous:
            role = "server" if receiver == "server" else "client"
            seen[role].add((before, kind, machines[receiver].state.name))
        previous.clear()

    def hook(delivery: Delivery) -> list[Delivery]:
        note()
        previous.append((delivery.receiver, machines[delivery.receiver].state.name, delivery.kind))
        return [delivery]

    run.hook = hook
    run.run()
    note()
    assert isinstance(audit(run), Summed)
    rows = {
        (state, kind, following)
        for state, row in CLIENT[mode].items()
        for kind, verdict in row.items()
        if kind in MESSAGES and kind != "abort"
        for following in verdict
    }
    assert seen["client"] == rows
    # On the server a message keeps the state; the last one of a phase leads on.
    order = [state for state in SERVER[mode] if SERVER[mode][state] and state != "ABORTED"]
    last = {"MASKED_INPUT": "vector-chunk"}
    rows = set()
    for state, following in pairwise(order):
        for kind, verdict in SERVER[mode][state].items():
            if kind in MESSAGES and isinstance(verdict, set) and kind != "abort":
                rows.add((state, kind, state))
                if last.get(state, kind) == kind:
                    rows.add((state, kind, following))
    assert seen["server"] == rows


def test_a_vector_that_is_no_vector_of_the_ring_is_the_callers_mistake() -> None:
    run = memory_sum(3, active=True)
    for vector in (np.zeros(4, "<u4"), np.zeros(5, "<u8"), np.zeros((5, 1), "<u4")):
        with pytest.raises(LocalProtocolError, match="not 5 ring words"):
            AggregationClient(run.agreement, "c0", signing=run.signing["c0"], vector=vector, entropy=run.entropy)
