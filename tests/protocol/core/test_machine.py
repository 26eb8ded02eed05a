"""The order of doing things, on a machine made for it: table, handler, commit, output, COMPLETE."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import pytest

from tacit.protocol.core.codec import Packet, decode
from tacit.protocol.core.errors import Code, LocalProtocolError, RemoteProtocolError
from tacit.protocol.core.link import Link, Traffic
from tacit.protocol.core.machine import (
    IGNORE,
    Heard,
    Inside,
    Machine,
    Output,
    Row,
    Send,
    Step,
    Table,
    Trigger,
)
from tacit.protocol.core.messages import Abort, Fetch, Message
from tacit.protocol.session.messages import MESSAGES, Finish


class State(Enum):
    COLLECTING = "collect"
    CLOSING = "close"
    DONE = "done"
    REFUSED = "refused"


@dataclass(frozen=True)
class Said(Output):
    text: str


@dataclass(frozen=True)
class Refused(Output):
    culprit: str
    code: Code
    detail: str


class Collector(Machine[State], outputs=Said | Refused):
    """Collects two chunk numbers, refuses number 9, treats a number that it has as late."""

    def __init__(self) -> None:
        super().__init__(TABLE, State.COLLECTING)
        self.chunks: list[int] = []
        self.calls: list[str] = []

    def late(self, sender: str, packet: Packet) -> bool:
        self.calls.append(f"late {packet.kind.TYPE}")
        return sender == "latecomer"

    def complete(self) -> bool:
        return len(self.chunks) == 2

    def on_fetch(self, heard: Heard[Fetch], now: float) -> Step[State]:
        message = heard.message
        assert message.chunk not in self.chunks
        if message.chunk == 9:
            raise RemoteProtocolError(Code.MODEL, "there is no chunk 9")

        def commit() -> Sequence[Output]:
            self.chunks.append(message.chunk)
            self.calls.append(f"commit {message.chunk} in {self.state.name}")
            return [Said("from the commit")]

        return Step(State.COLLECTING, (Said(f"{heard.sender} {message.chunk} at {now:g}"),), commit)

    def on_full(self, now: float) -> Step[State]:
        return Step(State.CLOSING, (Said(f"full at {now:g}"),), lambda: self.calls.append(f"full {self.chunks}"))

    def on_closed(self, now: float) -> Step[State]:
        return Step(State.DONE, (Said(f"closed at {now:g}"),))

    def on_expire(self, now: float) -> Step[State]:
        return Step(State.DONE, (Said(f"expired at {now:g}"),))

    def on_drop(self, member: str, now: float) -> Step[State]:
        return Step(State.DONE, (Said(f"{member} dropped at {now:g}"),))

    def on_wrong(self, now: float) -> Step[State]:
        return Step(State.CLOSING, commit=lambda: self.calls.append("never"))

    def refuse(self, sender: str, error: RemoteProtocolError, now: float) -> Step[State]:
        refused = Refused(error.culprit, error.code, error.detail)
        return Step(State.REFUSED, (refused,), lambda: [Said("told")])


TABLE: Table[State] = {
    (State.COLLECTING, Fetch): Row(Collector.on_fetch, (State.COLLECTING,)),
    (State.COLLECTING, Abort): IGNORE,
    (State.COLLECTING, Trigger.COMPLETE): Row(Collector.on_full, (State.CLOSING,)),
    (State.COLLECTING, Trigger.EXPIRE): Row(Collector.on_expire, (State.DONE,)),
    (State.COLLECTING, Trigger.DROP): Row(Collector.on_drop, (State.DONE,)),
    (State.CLOSING, Trigger.COMPLETE): Row(Collector.on_closed, (State.DONE,)),
    (State.CLOSING, Trigger.EXPIRE): IGNORE,
    (State.DONE, Trigger.START): Row(Collector.on_wrong, (State.DONE,)),
}


def packet(message: Message, *, body: bytes | None = None) -> Packet:
    frames = Link("a", "b", bytes(32), Traffic(), MESSAGES).frames(message, round=1)
    return decode(frames if body is None else [frames[0], body], MESSAGES)


def test_commit_comes_before_the_output_is_released() -> None:
    machine = Collector()
    assert machine.receive("bob", packet(Fetch(chunk=3)), 1.5) == [Said("bob 3 at 1.5"), Said("from the commit")]
    assert machine.calls == ["late fetch", "commit 3 in COLLECTING"]
    assert machine.state is State.COLLECTING


def test_complete_rows_follow_at_once_and_from_each_other() -> None:
    machine = Collector()
    machine.receive("bob", packet(Fetch(chunk=3)), 1.0)
    outputs = machine.receive("eve", packet(Fetch(chunk=4)), 2.0)
    assert outputs == [Said(text) for text in ("eve 4 at 2", "from the commit", "full at 2", "closed at 2")]
    assert machine.state is State.DONE
    assert machine.calls[-1] == "full [3, 4]"


def test_a_refusal_changes_nothing_but_the_verdict_and_names_the_member_at_fault() -> None:
    for message, body, code, detail in [
        (Fetch(chunk=9), None, Code.MODEL, "there is no chunk 9"),  # by the handler
        (Finish(), None, Code.UNEXPECTED, "finish is not expected in state COLLECTING"),  # by the table
        (Finish(), b"\xc1", Code.UNEXPECTED, "finish is not expected in state COLLECTING"),  # unread
        (Fetch(chunk=1), b"\xc1", Code.MALFORMED, "Fetch is malformed"),  # by the codec
    ]:
        machine = Collector()
        machine.receive("bob", packet(Fetch(chunk=3)), 1.0)
        refused, told = machine.receive("eve", packet(message, body=body), 2.0)
        assert isinstance(refused, Refused)
        assert (refused.culprit, refused.code) == ("eve", code)
        assert refused.detail.startswith(detail)
        assert told == Said("told")
        assert (machine.state, machine.chunks, machine.ignored) == (State.REFUSED, [3], 0)
    machine = Collector()
    refused, _ = machine.reject("server", RemoteProtocolError(Code.KEYS, "twice", culprit="eve"), 1.0)
    assert isinstance(refused, Refused)
    assert refused.culprit == "eve"


def test_ignored_messages_are_counted_and_not_read() -> None:
    for sender, message in [("bob", Abort(code=Code.LEFT, detail="", culprit="")), ("latecomer", Fetch(chunk=1))]:
        machine = Collector()
        assert machine.receive(sender, packet(message, body=b"\xc1"), 1.0) == []
        assert (machine.state, machine.chunks, machine.ignored) == (State.COLLECTING, [], 1)
    machine = Collector()
    machine.receive("latecomer", packet(Finish()), 1.0)
    assert machine.state is State.REFUSED
    assert machine.calls == []


def test_triggers_and_deadlines() -> None:
    for deadline, now, outputs in [(None, 9.0, []), (5.0, 4.9, []), (5.0, 5.0, [Said("expired at 5")])]:
        machine = Collector()
        machine.deadline = deadline
        assert machine.expire(now) == outputs
        assert machine.state is (State.DONE if outputs else State.COLLECTING)
    machine = Collector()
    assert machine.trigger(Trigger.DROP, 3.0, "bob") == [Said("bob dropped at 3")]
    with pytest.raises(LocalProtocolError, match="Collector cannot drop in state DONE"):
        machine.trigger(Trigger.DROP, 3.0, "bob")
    closing = Collector()
    closing.state = State.CLOSING
    assert closing.trigger(Trigger.EXPIRE, 3.0) == []
    assert closing.state is State.CLOSING
    machine = Collector()
    admitted = {cause for _, cause in TABLE if machine.admits(cause)}
    assert admitted == {Fetch, Trigger.COMPLETE, Trigger.EXPIRE, Trigger.DROP}


def test_what_a_role_must_not_do_is_a_bug() -> None:
    machine = Collector()
    machine.state = State.DONE
    with pytest.raises(LocalProtocolError, match="on_wrong led to CLOSING, which its row does not name"):
        machine.trigger(Trigger.START, 1.0)
    assert machine.state is State.DONE
    assert machine.calls == []
    with pytest.raises(NotImplementedError):
        Machine(TABLE, State.DONE).receive("bob", packet(Finish()), 1.0)

    class Talkative(Collector):
        def on_expire(self, now: float) -> Step[State]:
            return Step(State.DONE, (Send("bob", Finish()),))

    with pytest.raises(LocalProtocolError, match="Talkative gives no Send"):
        Talkative().trigger(Trigger.EXPIRE, 1.0)


class Ending(Collector):
    """Its commit sets off another transition, as a member's leaving may end a round."""

    def on_fetch(self, heard: Heard[Fetch], now: float) -> Step[State]:
        return Step(State.COLLECTING, (Said("heard"),), lambda: self.trigger(Trigger.DROP, now, heard.sender))


def test_a_transition_set_off_by_a_commit_stands() -> None:
    machine = Ending()
    assert machine.receive("bob", packet(Fetch(chunk=1)), 1.0) == [Said("heard"), Said("bob dropped at 1")]
    assert machine.state is State.DONE


def test_what_a_state_holds_and_its_deadline_end_with_it() -> None:
    class Holding(Collector):
        def on_fetch(self, heard: Heard[Fetch], now: float) -> Step[State]:
            data = heard.message if heard.message.chunk else None
            return Step(State.COLLECTING, data=data, deadline=now + 1 if data else None)

    machine = Holding()
    machine.receive("bob", packet(Fetch(chunk=3)), 1.0)
    assert (machine.at(Fetch), machine.deadline) == (Fetch(chunk=3), 2.0)
    machine.receive("bob", packet(Fetch(chunk=0)), 1.5)
    assert (machine.at(Fetch), machine.deadline) == (Fetch(chunk=3), 2.0)
    with pytest.raises(LocalProtocolError, match="Holding has no Finish in state COLLECTING"):
        machine.at(Finish)
    machine.expire(2.0)
    assert (machine.state, machine.data, machine.deadline) == (State.DONE, None, None)
    with pytest.raises(LocalProtocolError, match="Holding has no Fetch in state DONE"):
        machine.at(Fetch)


def test_a_machine_inside_must_be_declared_for_the_state() -> None:
    class Holding(Machine[State], contains={"inner": (State.COLLECTING,)}):
        pass

    for name in ("colector", "inner"):
        with pytest.raises(TypeError, match=f"Holding contains no '{name}', which its table names for Fetch in DONE"):
            Holding({(State.DONE, Fetch): Inside(name)}, State.DONE)
