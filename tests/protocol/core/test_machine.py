"""The order of doing things, on a machine made for it: table, handler, commit, output, COMPLETE."""

from collections.abc import Sequence
from enum import Enum

import pytest

from tacit.protocol.core.codec import Packet, decode
from tacit.protocol.core.errors import Code, LocalProtocolError, RemoteProtocolError
from tacit.protocol.core.link import Link, Traffic
from tacit.protocol.core.machine import IGNORE, Machine, Output, Report, Row, Step, Table, Trigger
from tacit.protocol.core.messages import Abort, Message
from tacit.protocol.session.messages import MESSAGES, FetchModel, Finish


class State(Enum):
    COLLECTING = "collect"
    CLOSING = "close"
    DONE = "done"
    REFUSED = "refused"


TABLE: Table[State] = {
    (State.COLLECTING, FetchModel): Row("on_fetch", (State.COLLECTING,)),
    (State.COLLECTING, Abort): IGNORE,
    (State.COLLECTING, Trigger.COMPLETE): Row("on_full", (State.CLOSING,)),
    (State.COLLECTING, Trigger.EXPIRE): Row("on_expire", (State.DONE,)),
    (State.COLLECTING, Trigger.DROP): Row("on_drop", (State.DONE,)),
    (State.CLOSING, Trigger.COMPLETE): Row("on_closed", (State.DONE,)),
    (State.CLOSING, Trigger.EXPIRE): IGNORE,
    (State.DONE, Trigger.START): Row("on_wrong", (State.DONE,)),
}


class Collector(Machine[State]):
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

    def on_fetch(self, sender: str, message: FetchModel, payload: None, now: float) -> Step[State]:
        assert message.chunk not in self.chunks
        if message.chunk == 9:
            raise RemoteProtocolError(Code.MODEL, "there is no chunk 9")

        def commit() -> Sequence[Output]:
            self.chunks.append(message.chunk)
            self.calls.append(f"commit {message.chunk} in {self.state.name}")
            return ["from the commit"]

        return Step(State.COLLECTING, (f"{sender} {message.chunk} at {now:g}",), commit)

    def on_full(self, now: float) -> Step[State]:
        return Step(State.CLOSING, (f"full at {now:g}",), lambda: self.calls.append(f"full {self.chunks}"))

    def on_closed(self, now: float) -> Step[State]:
        return Step(State.DONE, (f"closed at {now:g}",))

    def on_expire(self, now: float) -> Step[State]:
        return Step(State.DONE, (f"expired at {now:g}",))

    def on_drop(self, member: str, now: float) -> Step[State]:
        return Step(State.DONE, (f"{member} dropped at {now:g}",))

    def on_wrong(self, now: float) -> Step[State]:
        return Step(State.CLOSING, commit=lambda: self.calls.append("never"))

    def refuse(self, sender: str, error: RemoteProtocolError, now: float) -> Step[State]:
        report = Report("refused", {"sender": error.culprit, "code": error.code, "detail": error.detail})
        return Step(State.REFUSED, (report,), lambda: ["told"])


def packet(message: Message, *, body: bytes | None = None) -> Packet:
    frames = Link("a", "b", bytes(32), Traffic(), MESSAGES).frames(message, round=1)
    return decode(frames if body is None else [frames[0], body], MESSAGES)


def test_commit_comes_before_the_output_is_released() -> None:
    machine = Collector()
    assert machine.receive("bob", packet(FetchModel(chunk=3)), 1.5) == ["bob 3 at 1.5", "from the commit"]
    assert machine.calls == ["late fetch-model", "commit 3 in COLLECTING"]
    assert machine.state is State.COLLECTING


def test_complete_rows_follow_at_once_and_from_each_other() -> None:
    machine = Collector()
    machine.receive("bob", packet(FetchModel(chunk=3)), 1.0)
    outputs = machine.receive("eve", packet(FetchModel(chunk=4)), 2.0)
    assert outputs == ["eve 4 at 2", "from the commit", "full at 2", "closed at 2"]
    assert machine.state is State.DONE
    assert machine.calls[-1] == "full [3, 4]"


@pytest.mark.parametrize(
    ("message", "body", "code", "detail"),
    [
        pytest.param(FetchModel(chunk=9), None, Code.MODEL, "there is no chunk 9", id="by the handler"),
        pytest.param(Finish(), None, Code.UNEXPECTED, "finish is not expected in state COLLECTING", id="by the table"),
        pytest.param(Finish(), b"\xc1", Code.UNEXPECTED, "finish is not expected in state COLLECTING", id="unread"),
        pytest.param(FetchModel(chunk=1), b"\xc1", Code.MALFORMED, "FetchModel is malformed", id="by the codec"),
    ],
)
def test_a_refusal_changes_nothing_but_the_verdict(
    message: Message, body: bytes | None, code: Code, detail: str
) -> None:
    machine = Collector()
    machine.receive("bob", packet(FetchModel(chunk=3)), 1.0)
    report, told = machine.receive("eve", packet(message, body=body), 2.0)
    assert (report.fields["sender"], report.fields["code"]) == ("eve", code)
    assert report.fields["detail"].startswith(detail)
    assert told == "told"
    assert (machine.state, machine.chunks, machine.ignored) == (State.REFUSED, [3], 0)


def test_a_refusal_names_the_member_at_fault_before_the_sender() -> None:
    machine = Collector()
    report, _ = machine.reject("server", RemoteProtocolError(Code.KEYS, "twice", culprit="eve"), 1.0)
    assert report.fields["sender"] == "eve"


@pytest.mark.parametrize(
    ("sender", "message"), [("bob", Abort(code=Code.LEFT, detail="", culprit="")), ("latecomer", FetchModel(chunk=1))]
)
def test_ignored_messages_are_counted_and_not_read(sender: str, message: Message) -> None:
    machine = Collector()
    assert machine.receive(sender, packet(message, body=b"\xc1"), 1.0) == []
    assert (machine.state, machine.chunks, machine.ignored) == (State.COLLECTING, [], 1)


def test_lateness_does_not_excuse_what_the_table_does_not_have() -> None:
    machine = Collector()
    machine.receive("latecomer", packet(Finish()), 1.0)
    assert machine.state is State.REFUSED
    assert machine.calls == []


@pytest.mark.parametrize(
    ("deadline", "now", "outputs"), [(None, 9.0, []), (5.0, 4.9, []), (5.0, 5.0, ["expired at 5"])]
)
def test_expire_acts_from_the_deadline_on(deadline: float | None, now: float, outputs: list[str]) -> None:
    machine = Collector()
    machine.deadline = deadline
    assert machine.expire(now) == outputs
    assert machine.state is (State.DONE if outputs else State.COLLECTING)


def test_triggers() -> None:
    machine = Collector()
    assert machine.trigger(Trigger.DROP, 3.0, "bob") == ["bob dropped at 3"]
    with pytest.raises(LocalProtocolError, match="Collector cannot drop in state DONE"):
        machine.trigger(Trigger.DROP, 3.0, "bob")
    closing = Collector()
    closing.state = State.CLOSING
    assert closing.trigger(Trigger.EXPIRE, 3.0) == []
    assert closing.state is State.CLOSING


def test_a_handler_cannot_lead_where_its_row_does_not_say() -> None:
    machine = Collector()
    machine.state = State.DONE
    with pytest.raises(LocalProtocolError, match="on_wrong led to CLOSING, which its row does not name"):
        machine.trigger(Trigger.START, 1.0)
    assert machine.state is State.DONE
    assert machine.calls == []


def test_admits_what_has_a_row() -> None:
    machine = Collector()
    admitted = {cause for _, cause in TABLE if machine.admits(cause)}
    assert admitted == {FetchModel, Trigger.COMPLETE, Trigger.EXPIRE, Trigger.DROP}


def test_a_role_must_say_what_a_refusal_means() -> None:
    with pytest.raises(NotImplementedError):
        Machine(TABLE, State.DONE).receive("bob", packet(Finish()), 1.0)


class Ending(Collector):
    """Its commit sets off another transition, as a member's leaving may end a round."""

    def on_fetch(self, sender: str, message: FetchModel, payload: None, now: float) -> Step[State]:
        return Step(State.COLLECTING, ("heard",), lambda: self.trigger(Trigger.DROP, now, sender))


def test_a_transition_set_off_by_a_commit_stands() -> None:
    machine = Ending()
    assert machine.receive("bob", packet(FetchModel(chunk=1)), 1.0) == ["heard", "bob dropped at 1"]
    assert machine.state is State.DONE
