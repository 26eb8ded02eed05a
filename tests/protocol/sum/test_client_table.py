"""Every (state x message) cell of the client in both modes, on machines that were brought into the state.

The expected table is written here by hand. A cell is tried with a body that is no message at all: where the type is
legal it is refused as MALFORMED, where it is not as UNEXPECTED, which shows that legality is decided before parsing.
"""

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tacit.protocol.core.errors import Code, LocalProtocolError
from tacit.protocol.core.events import MessageRefused
from tacit.protocol.core.machine import Send, Trigger
from tacit.protocol.core.messages import Abort
from tacit.protocol.core.primitives import AgreementKey
from tacit.protocol.session.messages import MESSAGES
from tacit.protocol.session.states import SUM_TO_CLIENT, SUM_TO_SERVER
from tacit.protocol.sum import agreement as agreement_module
from tacit.protocol.sum.client import CLIENT_TABLES, AggregationClient
from tacit.protocol.sum.exchange import ClientAborted, ServerAborted, Summed
from tacit.protocol.sum.sharing import HeldShares
from tacit.protocol.sum.states import ClientState, SumTrigger
from tests.cases import cases
from tests.protocol.cells import Cells, Expected, check_table, garbage
from tests.world.exchange import Delivery
from tests.world.sums import MemorySum, memory_sum

Audit = Callable[[MemorySum], Summed | ServerAborted]
MODES = ("active", "semi-honest")

ENDS: Cells = {"abort": {"ABORTED"}, "drop": {"ABORTED"}, "expire": {"ABORTED"}}
AT_WORK: Cells = {
    "fetch-vector": {"AWAIT_VECTOR"},
    "contribute": {"AWAIT_VECTOR"},
    "complete": {"AWAIT_SURVIVORS"},
    "abort": {"ABORTED"},
    "drop": {"ABORTED"},
}
"""While only its own vector is missing nothing of the server is, and nobody is late."""
MASKED: Cells = {kind: {"AWAIT_SURVIVORS"} for kind in ("fetch-vector", "peer-complaints")}
CLIENT: dict[str, Expected] = {
    "active": {
        "READY": {"start": {"AWAIT_PEER_KEYS"}, "drop": {"ABORTED"}},
        "AWAIT_PEER_KEYS": {"peer-keys": {"AWAIT_PEER_SHARES"}, "contribute": {"AWAIT_PEER_KEYS"}, **ENDS},
        "AWAIT_PEER_SHARES": {"peer-shares": {"AWAIT_VECTOR"}, "contribute": {"AWAIT_PEER_SHARES"}, **ENDS},
        "AWAIT_VECTOR": AT_WORK,
        "AWAIT_SURVIVORS": {**MASKED, "survivors": {"AWAIT_UNMASK_REQUEST"}, **ENDS},
        "AWAIT_UNMASK_REQUEST": {"unmask-request": {"DONE"}, **ENDS},
        "DONE": {},
        "ABORTED": {},
    },
    "semi-honest": {
        "READY": {"start": {"AWAIT_PEER_KEYS"}, "drop": {"ABORTED"}},
        "AWAIT_PEER_KEYS": {"peer-keys": {"AWAIT_PEER_SHARES"}, "contribute": {"AWAIT_PEER_KEYS"}, **ENDS},
        "AWAIT_PEER_SHARES": {"peer-shares": {"AWAIT_VECTOR"}, "contribute": {"AWAIT_PEER_SHARES"}, **ENDS},
        "AWAIT_VECTOR": AT_WORK,
        "AWAIT_SURVIVORS": {**MASKED, "unmask-request": {"DONE"}, **ENDS},
        "AWAIT_UNMASK_REQUEST": {},
        "DONE": {},
        "ABORTED": {},
    },
}


REACHABLE = [
    (mode, state) for mode in MODES for state in CLIENT[mode] if mode == "active" or state != "AWAIT_UNMASK_REQUEST"
]


@cases("mode", MODES)
def test_the_table_says_what_is_written_here(mode: str) -> None:
    causes = {**MESSAGES, **{trigger.value: trigger for trigger in (*Trigger, *SumTrigger)}}
    check_table(CLIENT_TABLES[mode], ClientState, causes, CLIENT[mode])


def client_in(mode: str, state: str) -> tuple[MemorySum, AggregationClient]:
    run = memory_sum(5, active=mode == "active", seed=b"cells")
    client = run.clients["c0"]
    if state == "READY":
        return run, client
    run.training = {"c0"} if state == "AWAIT_VECTOR" else set()
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
        elif isinstance(item, bytes) and item == getattr(client.data, "seed", None):
            found.add(item)
        else:
            stack += gc.get_referents(item)
    return found


SECRETS = {
    "READY": 0,
    "AWAIT_PEER_KEYS": 1 + 2,
    "AWAIT_PEER_SHARES": 1 + 2 + 1 + 10,
    "AWAIT_VECTOR": 8 + 10 + 5,
    "AWAIT_SURVIVORS": 1 + 8 + 10 + 5,
    "AWAIT_UNMASK_REQUEST": 1 + 10 + 5,
    "DONE": 0,
    "ABORTED": 0,
}
"""The vector; two keys; the seed; two shares for five holders, of which four may complain; two shares of five owners;
five masks, for which keys and seed are done with."""


@cases(("mode", "state"), REACHABLE)
def test_every_message_to_a_client(mode: str, state: str, audit: Audit) -> None:
    row = CLIENT[mode][state]
    # Every message of a sum, and one of a session, which no row has either. Where no row has a message the sum goes on
    # in one way, whatever it was: it is seen to once.
    for kind in (*(kind.TYPE for kind in (*SUM_TO_CLIENT, *SUM_TO_SERVER)), "abort", "fetch"):
        run, client = client_in(mode, state)
        assert len(secrets_within(client)) == SECRETS[state]
        outputs = client.receive("server", garbage(run.agreement, kind, "server"), run.now)
        code = Code.MALFORMED if kind in row else Code.UNEXPECTED
        assert client.ignored == 0
        if state in ("DONE", "ABORTED"):
            (refused,) = outputs
            assert isinstance(refused, MessageRefused)
            assert refused.code == "UNEXPECTED"
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
        if kind not in {*row, "fetch"}:
            continue
        # The server does without it: four of five are left, which both thresholds allow.
        run.emit("c0", outputs)
        if state == "READY":
            run.start()
        run.settle()
        survivors = audit(run)
        assert isinstance(survivors, Summed)
        in_sum = state in ("AWAIT_SURVIVORS", "AWAIT_UNMASK_REQUEST", "DONE")
        assert survivors.survivors == tuple(run.agreement.cohort[0 if in_sum else 1 :])


@cases(("mode", "state"), REACHABLE)
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
    run, client = client_in(mode, state)
    # A vector is given once, and where the sum is begun and not yet over.
    if state == "AWAIT_VECTOR":
        run.contribute("c0")
        assert client.state is ClientState.AWAIT_SURVIVORS
    else:
        said = "a second vector" if "contribute" in row else f"cannot contribute in state {state}"
        with pytest.raises(LocalProtocolError, match=said):
            client.contribute(run.vectors["c0"], 0.0)


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
        if delivery.receiver != "server":
            machine = machines[delivery.receiver]
            previous.append((machine, machine.state.name, delivery.kind))
        return spoil(run, delivery, {2: (0,)})  # type: ignore[no-any-return]

    run.hook = hook
    run.training = {"c0"}
    run.start()
    run.advance()
    run.contribute("c0")
    run.settle()
    note()
    assert isinstance(audit(run), Summed)
    # Whose vector is there already masks it as soon as the shares have come.
    assert seen - {("AWAIT_PEER_SHARES", "peer-shares", "AWAIT_SURVIVORS")} == {
        (state, kind, following)
        for state, row in CLIENT[mode].items()
        for kind, verdict in row.items()
        if kind in MESSAGES and kind != "abort"
        for following in verdict
    }


def test_a_vector_that_is_no_vector_of_the_ring_is_the_callers_mistake() -> None:
    run = memory_sum(3, active=True)
    run.clients["c0"].start(0.0)
    for vector in (np.zeros(4, "<u4"), np.zeros(5, "<u8"), np.zeros((5, 1), "<u4")):
        with pytest.raises(LocalProtocolError, match="not 5 ring words"):
            run.clients["c0"].contribute(vector, 0.0)
