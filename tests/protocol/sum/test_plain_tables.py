"""Every (state x message) cell of both ends of a sum without secure aggregation, brought into the state.

The expected tables are written here by hand. A cell is tried with a body that is no message at all: where the type is
legal it is refused as MALFORMED, where it is not as UNEXPECTED, which shows that legality is decided before parsing.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tacit.protocol.core.errors import Code, LocalProtocolError
from tacit.protocol.core.events import MessageRefused
from tacit.protocol.core.machine import Send, Trigger
from tacit.protocol.core.messages import Abort
from tacit.protocol.session.messages import MESSAGES
from tacit.protocol.sum.events import ClientDropped
from tacit.protocol.sum.exchange import ClientAborted, ServerAborted, Summed
from tacit.protocol.sum.plain import PLAIN_CLIENT_TABLE, PLAIN_SERVER_TABLE, PlainSumClient
from tacit.protocol.sum.states import ClientState, ServerState, SumTrigger
from tests.cases import cases
from tests.protocol.cells import IGNORED, Cells, Expected, check_table, garbage
from tests.world.exchange import Delivery
from tests.world.sums import MemorySum, memory_sum

ExactSum = Callable[[MemorySum], Summed]
CHUNKS = 7
TRAINED, PHASE = 100.0, 10.0
"""Seconds that memory_sum allows for training and for a phase."""

ENDS: Cells = {"abort": {"ABORTED"}, "drop": {"ABORTED"}, "expire": {"ABORTED"}}
CLIENT: Expected = {
    "READY": {"start": {"AWAIT_VECTOR"}, "drop": {"ABORTED"}},
    "AWAIT_VECTOR": {
        "contribute": {"AWAIT_VECTOR"},
        "complete": {"AWAIT_SURVIVORS", "DONE"},
        "fetch-vector": {"AWAIT_VECTOR"},
        "abort": {"ABORTED"},
        "drop": {"ABORTED"},
    },
    "AWAIT_SURVIVORS": {"fetch-vector": {"AWAIT_SURVIVORS", "DONE"}, **ENDS},
    "DONE": {},
    "ABORTED": {},
}
FINISHED: Cells = dict.fromkeys(("masked-input", "vector-chunk", "abort", "drop", "expire"), IGNORED)
SERVER: Expected = {
    "MASKED_INPUT": {
        **{name: {"MASKED_INPUT"} for name in ("start", "masked-input", "vector-chunk", "abort", "drop", "expire")},
        "complete": {"COMPLETED", "ABORTED"},
    },
    "COMPLETED": FINISHED,
    "ABORTED": FINISHED,
}

pytestmark = pytest.mark.usefixtures("small_chunks")


def plain_sum(clients: int) -> MemorySum:
    """A sum of random vectors that the server sees."""
    return memory_sum(clients, active=False, secure=False, length=16 * CHUNKS - 11)


@cases(
    ("table", "expected", "states"),
    [
        (PLAIN_CLIENT_TABLE, CLIENT, ClientState),  # client
        (PLAIN_SERVER_TABLE, SERVER, ServerState),  # server
    ],
)
def test_the_tables_say_what_is_written_here(table: Any, expected: Expected, states: Any) -> None:
    causes = {**MESSAGES, **{trigger.value: trigger for trigger in (*Trigger, *SumTrigger)}}
    check_table(table, states, causes, expected)


def client_in(state: str) -> tuple[MemorySum, PlainSumClient]:
    """A run of five whose c0 is in the state; the others start when the run goes on."""
    run = plain_sum(5)
    client = run.clients["c0"]
    assert isinstance(client, PlainSumClient)
    if state != "READY":
        run.contribute(*["c0"] * (state != "AWAIT_VECTOR"))
    if state == "ABORTED":
        run.deliver(Delivery("server", "c0", Abort(code=Code.LEFT, detail="", culprit=""), None))
    assert run.advance(lambda: client.state.name == state)
    return run, client


def keeps_its_vector(client: PlainSumClient) -> bool:
    return client.data is not None or any(isinstance(value, np.ndarray) for value in vars(client).values())


@cases("state", CLIENT)
@cases("kind", MESSAGES)
def test_every_message_to_a_client(state: str, kind: str, summed: ExactSum) -> None:
    run, client = client_in(state)
    over = state in ("DONE", "ABORTED")
    assert keeps_its_vector(client) != over
    outputs = client.receive("server", garbage(run.agreement, kind, "server"), run.now)
    assert client.ignored == 0
    assert client.deadline is None
    assert not keeps_its_vector(client)
    if over:
        (refused,) = outputs
        assert isinstance(refused, MessageRefused)
        assert refused.code == "UNEXPECTED"
        assert client.state.name == state
    else:
        code = Code.MALFORMED if kind in CLIENT[state] else Code.UNEXPECTED
        abort, aborted = outputs
        assert isinstance(abort, Send)
        assert isinstance(abort.message, Abort)
        assert isinstance(aborted, ClientAborted)
        assert (abort.to, abort.message.code, abort.message.culprit) == ("server", code, "server")
        assert (aborted.code, aborted.culprit, aborted.detail) == (code, "server", abort.message.detail)
        assert client.state is ClientState.ABORTED
    run.emit("c0", outputs)
    run.contribute("c1", "c2", "c3", "c4")
    run.settle()
    assert summed(run).survivors == run.agreement.cohort[0 if state == "DONE" else 1 :]


@cases("state", CLIENT)
def test_every_trigger_on_a_client(state: str) -> None:
    row = CLIENT[state]
    _, client = client_in(state)
    if "drop" in row:
        (aborted,) = client.trigger(Trigger.DROP, 0.0, "the link is lost")
        assert (aborted.code, aborted.detail, aborted.culprit) == (Code.LEFT, "the link is lost", "server")
        assert client.state is ClientState.ABORTED
        assert not keeps_its_vector(client)
    else:
        with pytest.raises(LocalProtocolError, match=f"cannot drop in state {state}"):
            client.trigger(Trigger.DROP, 0.0, "the link is lost")
    _, client = client_in(state)
    if "expire" in row:
        # The server may wait for who trains, then for transfers of ten phases, four at a time; one more for the way.
        assert client.deadline == TRAINED + (2 * 10 + 1) * PHASE
        assert client.expire(np.nextafter(client.deadline, 0)) == []
        (aborted,) = client.expire(client.deadline)
        assert (aborted.code, aborted.culprit) == (Code.TIMEOUT, "server")
        assert f"it has fetched 0 of {CHUNKS} chunks" in aborted.detail
        assert client.state is ClientState.ABORTED
        assert not keeps_its_vector(client)
    else:
        assert client.deadline is None
        assert client.expire(1e9) == []
    _, client = client_in(state)
    if "start" not in row:
        with pytest.raises(LocalProtocolError, match=f"cannot start in state {state}"):
            client.start(0.0)


def server_in(state: str, heard: str) -> MemorySum:
    """A run of five whose server is in the state. c0 may have announced its vector there, or delivered it."""
    run = plain_sum(5)
    if state == "ABORTED":
        for name in run.agreement.cohort:
            run.kill(name)
    elif state == "COMPLETED":
        run.run()
    elif heard != "nothing":
        run.contribute("c0")
        wanted = {
            "announced": lambda: any(d.kind == "masked-input" for d in run.log),
            "delivered": lambda: 0 not in run.server.waiting,
        }
        assert run.advance(wanted[heard])
    assert run.server.state.name == state
    return run


SERVER_CELLS = [(state, heard) for state in SERVER for heard in ("nothing", "announced", "delivered")
                if state == "MASKED_INPUT" or heard == "nothing"]  # fmt: skip


@cases(("state", "heard"), SERVER_CELLS)
@cases("kind", MESSAGES)
def test_every_message_to_the_server(state: str, heard: str, kind: str, summed: ExactSum) -> None:
    run = server_in(state, heard)
    server, verdict = run.server, SERVER[state].get(kind)
    before = set(server.waiting), server.deadline, server.ignored
    outputs = server.receive("c0", garbage(run.agreement, kind, "c0"), run.now)
    assert server.state.name == state
    repeated = (kind == "masked-input" and heard != "nothing") or (kind == "vector-chunk" and heard == "delivered")
    if state != "MASKED_INPUT" or repeated:
        assert outputs == []
        ignored = int(verdict is not None)
        assert (server.waiting, server.deadline, server.ignored - before[2]) == (*before[:2], ignored)
    else:
        code = Code.UNEXPECTED if verdict is None else Code.MALFORMED
        dropped, told, *invited = outputs
        # Its room is for the last of the five.
        assert [output.to for output in invited if isinstance(output, Send)] == ["c4"] * len(invited)
        assert isinstance(dropped, ClientDropped)
        assert (dropped.member, dropped.code) == ("c0", code.name)
        assert isinstance(told, Send)
        assert isinstance(told.message, Abort)
        assert (told.to, told.message.code, told.message.culprit) == ("c0", code, "c0")
        assert server.waiting == before[0] - {0}
        (drop,) = server.drops
        assert (drop.member, drop.phase, drop.code, drop.included) == ("c0", state, code, heard == "delivered")
    if state != "MASKED_INPUT":
        return
    run.emit("server", outputs)
    run.contribute(*run.agreement.cohort[heard != "nothing" :])
    run.settle()
    assert summed(run).survivors == run.agreement.cohort[0 if repeated or heard == "delivered" else 1 :]


@cases("state", SERVER)
def test_every_trigger_on_the_server(state: str) -> None:
    terminal = state != "MASKED_INPUT"
    server = server_in(state, "nothing").server
    outputs = server.drop("c0", Code.LEFT, "gone", 0.0)
    assert [type(output) for output in outputs] == ([] if terminal else [ClientDropped])
    assert server.drop("c0", Code.LEFT, "gone", 0.0) == []
    assert server.drop("a stranger", Code.LEFT, "gone", 0.0) == []
    server = server_in(state, "nothing").server
    if terminal:
        assert server.deadline is None
        assert server.trigger(Trigger.EXPIRE, 1e9) == []
        assert server.expire(1e9) == []
    else:
        assert server.deadline == TRAINED + PHASE
        assert server.expire(np.nextafter(TRAINED + PHASE, 0)) == []
        outputs = server.expire(TRAINED + PHASE)
        assert [output.to for output in outputs if isinstance(output, Send)] == ["c0", "c1", "c2", "c3", "c4"]
        assert [drop.code for drop in server.drops] == [Code.TIMEOUT] * 5
        aborted = outputs[-1]
        assert isinstance(aborted, ServerAborted)
        assert aborted.code is Code.THRESHOLD
        assert aborted.detail.startswith("only 0 clients sent a vector; 1 are needed; c0: it did not answer in time")
        assert (server.state, server.deadline) == (ServerState.ABORTED, None)
    with pytest.raises(LocalProtocolError, match="cannot start"):
        server.trigger(Trigger.START, 0.0)


def test_genuine_messages_take_every_legal_row(summed: ExactSum) -> None:
    run = plain_sum(3)
    machines: dict[str, Any] = {"server": run.server, **run.clients}
    seen: set[tuple[bool, str, str, str]] = set()
    previous: list[tuple[Any, str, str]] = []

    def note() -> None:
        seen.update((m is run.server, before, kind, m.state.name) for m, before, kind in previous)
        previous.clear()

    def hook(delivery: Delivery) -> list[Delivery]:
        note()
        machine = machines[delivery.receiver]
        previous.append((machine, machine.state.name, delivery.kind))
        return [delivery]

    run.hook = hook
    run.run()
    note()
    assert summed(run).survivors == ("c0", "c1", "c2")
    assert seen == {
        (True, "MASKED_INPUT", "masked-input", "MASKED_INPUT"),
        (True, "MASKED_INPUT", "vector-chunk", "MASKED_INPUT"),
        (True, "MASKED_INPUT", "vector-chunk", "COMPLETED"),
        (False, "AWAIT_SURVIVORS", "fetch-vector", "AWAIT_SURVIVORS"),
        (False, "AWAIT_SURVIVORS", "fetch-vector", "DONE"),
    }
