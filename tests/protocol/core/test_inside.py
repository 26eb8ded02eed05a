"""A machine inside another: what it hears, its deadlines, its way out, what it comes to, and its end."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import pytest

from tacit.protocol.core.codec import Envelope, Packet, decode
from tacit.protocol.core.errors import Code, LocalProtocolError, RemoteProtocolError
from tacit.protocol.core.link import Link, Traffic
from tacit.protocol.core.machine import (
    IGNORE,
    Heard,
    Input,
    Inside,
    Machine,
    Output,
    Result,
    Row,
    Send,
    Step,
    Table,
    Trigger,
)
from tacit.protocol.core.messages import Abort, Chunk, Fetch, Message
from tacit.protocol.session.messages import MESSAGES, Finish
from tests.cases import cases


class Work(Enum):
    WORKING = "work"
    DONE = "done"


class State(Enum):
    IDLE = "idle"
    BUSY = "busy"
    ENDED = "ended"


@dataclass(frozen=True)
class Finished(Result):
    by: str


@dataclass(frozen=True)
class Said(Output):
    text: str


@dataclass(frozen=True)
class Refused(Output):
    by: str
    code: Code
    round: int


class Own(Input):
    BEGIN = "begin"


class Worker(Machine[Work], outputs=Send | Said | Refused | Finished):
    def __init__(self) -> None:
        super().__init__(INNER, Work.WORKING)
        self.data = "secret"
        self.deadline = 5.0

    def hears(self, sender: str, envelope: Envelope) -> bool:
        return envelope.round == 1

    def on_fetch(self, heard: Heard[Fetch], now: float) -> Step[Work]:
        if heard.message.chunk:
            raise RemoteProtocolError(Code.UNEXPECTED, "there is one chunk")
        return Step(Work.WORKING, (Send(heard.sender, Chunk(chunk=0), b"raw"), Said("asked")))

    def on_finish(self, heard: Heard[Finish], now: float) -> Step[Work]:
        return Step(Work.DONE, (Send("eve", Finish()), Finished(heard.sender)))

    def on_drop(self, member: str, now: float) -> Step[Work]:
        return Step(Work.DONE, (Finished(f"the end of {member}"),))

    def on_expire(self, now: float) -> Step[Work]:
        return Step(Work.DONE, (Finished("the clock"),))

    def refuse(self, sender: str, error: RemoteProtocolError, now: float) -> Step[Work]:
        return Step(self.state, (Refused("worker", error.code, error.round),))


INNER: Table[Work] = {
    (Work.WORKING, Fetch): Row(Worker.on_fetch, (Work.WORKING,)),
    (Work.WORKING, Finish): Row(Worker.on_finish, (Work.DONE,)),
    (Work.WORKING, Trigger.DROP): Row(Worker.on_drop, (Work.DONE,)),
    (Work.WORKING, Trigger.EXPIRE): Row(Worker.on_expire, (Work.DONE,)),
}


class Container(Machine[State], outputs=Send | Said | Refused, contains={"work": (State.BUSY,)}):
    work: Worker | None

    def __init__(self) -> None:
        super().__init__(OUTER, State.IDLE)
        self.trigger(Own.BEGIN, 0.0)

    def pass_on(self, part: Machine[Any], send: Send) -> Sequence[Output]:
        assert isinstance(part, Worker)
        return (Send(f"dear {send.to}", send.message, send.payload),)

    def on_begin(self, now: float) -> Step[State]:
        def commit() -> None:
            self.work = Worker()

        return Step(State.BUSY, (), commit, deadline=7.0)

    def on_finished(self, result: Finished, now: float) -> Step[State]:
        return Step(State.IDLE, (Said(f"{result.by} finished"),))

    def on_finish(self, heard: Heard[Finish], now: float) -> Step[State]:
        return Step(State.ENDED, (Said("finish outside"),))

    def on_abort(self, heard: Heard[Abort], now: float) -> Step[State]:
        return Step(State.ENDED)

    def on_expire(self, now: float) -> Step[State]:
        return Step(State.ENDED, (Said("expired"),))

    def refuse(self, sender: str, error: RemoteProtocolError, now: float) -> Step[State]:
        return Step(State.ENDED, (Refused("container", error.code, error.round),))


OUTER: Table[State] = {
    (State.IDLE, Own.BEGIN): Row(Container.on_begin, (State.BUSY,)),
    (State.BUSY, Fetch): Inside("work"),
    (State.BUSY, Finish): Inside("work", Row(Container.on_finish, (State.ENDED,))),
    (State.BUSY, Chunk): Inside("work", IGNORE),
    (State.BUSY, Abort): Row(Container.on_abort, (State.ENDED,)),
    (State.BUSY, Trigger.DROP): Inside("work"),
    (State.BUSY, Trigger.EXPIRE): Row(Container.on_expire, (State.ENDED,)),
    (State.BUSY, Finished): Row(Container.on_finished, (State.IDLE,)),
}


def packet(message: Message, *, round: int = 1) -> Packet:
    return decode(Link("bob", "server", bytes(32), Traffic(), MESSAGES).frames(message, round=round), MESSAGES)


def hear(outer: Container, message: Message, *, round: int = 1) -> list[Output]:
    return outer.receive("bob", packet(message, round=round), 1.0)


def test_what_is_for_the_machine_inside_goes_to_it_and_it_judges_what_it_refuses() -> None:
    outer = Container()
    assert hear(outer, Fetch(chunk=0)) == [Send("dear bob", Chunk(chunk=0), b"raw"), Said("asked")]
    assert outer.state is State.BUSY
    outer = Container()
    assert hear(outer, Fetch(chunk=1)) == [Refused("worker", Code.UNEXPECTED, 1)]
    assert outer.state is State.BUSY


def test_what_it_comes_to_is_a_transition_of_the_outer_one_which_then_forgets_it() -> None:
    outer = Container()
    work = outer.work
    outputs = hear(outer, Finish())
    assert outputs == [Send("dear eve", Finish()), Said("bob finished")]
    assert (outer.state, outer.work, outer.deadline) == (State.IDLE, None, None)
    assert work is not None
    assert (work.data, work.deadline) == (None, None)


@cases(
    ("message", "state", "outputs"),
    [
        (Fetch(chunk=0), State.ENDED, [Refused("container", Code.UNEXPECTED, 2)]),  # refused
        (Finish(), State.ENDED, [Said("finish outside")]),  # a row
        (Chunk(chunk=0), State.BUSY, []),  # ignored
    ],
)
@cases("there", [True, False])
def test_what_it_does_not_hear(there: bool, message: Message, state: State, outputs: list[Output]) -> None:
    outer = Container()
    if not there:
        outer.work = None
    assert hear(outer, message, round=2) == outputs
    assert (outer.state, outer.ignored) == (state, int(isinstance(message, Chunk)))
    assert outer.work is None or state is State.BUSY


def test_the_end_of_the_outer_one_is_its_end() -> None:
    outer = Container()
    work = outer.work
    outer.receive("bob", packet(Abort(code=Code.LEFT, detail="", culprit="")), 1.0)
    assert (outer.state, outer.work) == (State.ENDED, None)
    assert work is not None
    assert work.data is None
    outer = Container()
    work = outer.work
    outer.forget()
    assert work is not None
    assert (outer.work, outer.next_deadline, work.data) == (None, None, None)


def test_the_next_deadline_is_that_of_the_first_of_both() -> None:
    outer = Container()
    assert outer.next_deadline == 5.0
    assert outer.expire(4.9) == []
    assert outer.expire(5.0) == [Said("the clock finished")]
    assert (outer.state, outer.next_deadline) == (State.IDLE, None)
    outer = Container()
    assert outer.work is not None
    outer.work.deadline = None
    assert outer.next_deadline == 7.0
    assert outer.expire(7.0) == [Said("expired")]
    assert outer.work is None


def test_internal_transitions_go_inside_too() -> None:
    outer = Container()
    assert outer.trigger(Trigger.DROP, 1.0, "bob") == [Said("the end of bob finished")]
    busy = Container()
    busy.work = None
    assert busy.trigger(Trigger.DROP, 1.0, "bob") == []


def test_a_result_that_no_row_takes_is_a_bug() -> None:
    outer = Container()
    outer.state = State.IDLE
    with pytest.raises(LocalProtocolError, match="Container cannot take a Finished in state IDLE"):
        outer.relay(Worker(), [Finished("bob")], 1.0)
