"""The core of every state machine: a transition table, a handler per row, and one order of processing.

A role is a subclass with a table that maps (state, cause) to a Row, to IGNORE, or to the machine Inside that handles
it. A cause is the type of a received message; an Input: DROP (a member is gone), COMPLETE (all awaited members have
answered), EXPIRE (the deadline passed), or one of the shell; or the type of a Result of an inner machine. A cause that
the table does not list is refused: the exchange fails closed.

The table decides from the type of a message whether it is legal now. Its body is parsed, and the handler computes a
Step: the successor state, the outputs, and a `commit` that stores data beyond the state. Until then nothing has
changed; a handler refuses by raising RemoteProtocolError. The step is committed, then its outputs are released. A
refused message changes nothing but the verdict, which the role's `refuse` turns into a step of its own. If the new
state has a COMPLETE row and no member is awaited, that row follows at once.

An outer machine releases the messages of an inner one in its own way (`pass_on`), and has it erase its secrets as soon
as a state is entered that does not contain it. Machines do no I/O; `now` (seconds) and `entropy` are arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Final, Generic, TypeVar

from msgspec import Struct

from tacit.protocol.core.codec import Envelope, Frame, Packet
from tacit.protocol.core.errors import Code, LocalProtocolError, RemoteProtocolError
from tacit.protocol.core.messages import Message

Entropy = Callable[[int], bytes]
"""Given n, draws n fresh random bytes: the operating system's, except in vectors and in-memory tests."""


class State(Enum):
    """Base of the states of a machine. Each protocol declares its own."""

    # Members are singletons. Enum would hash their names, in Python, at every table lookup.
    __hash__ = object.__hash__


class Input(Enum):
    """Base of the causes of a transition other than messages. Each protocol declares its own."""

    __hash__ = object.__hash__


class Trigger(Input):
    """Inputs that every machine may have."""

    START = "start"
    DROP = "drop"
    COMPLETE = "complete"
    EXPIRE = "expire"
    PROVIDE = "provide what is waited for"
    FINISH = "finish"


class Output:
    """Base of a machine's outputs. Every role declares its outputs."""


def consumed(outputs: list[Output]) -> Iterator[Output]:
    """Remove and yield the outputs one by one: messages to a thousand members are not kept beside their frames."""
    outputs.reverse()
    while outputs:
        yield outputs.pop()


class Result(Output):
    """Result of a machine: the cause of a transition in the outer machine."""


class Send(Output, Struct, frozen=True):
    """Send this message to that member."""

    to: str
    message: Message
    payload: Frame | None = None


MessageT = TypeVar("MessageT", bound=Message)


class Heard(Struct, Generic[MessageT], frozen=True):
    """A received message, as a handler gets it. sender: authenticated by the link."""

    sender: str
    envelope: Envelope
    message: MessageT
    payload: Frame | None = None

    def __repr__(self) -> str:
        return f"Heard(sender={self.sender!r}, envelope={self.envelope!r}, message={self.message!r})"


StateT = TypeVar("StateT", bound=Enum)
DataT = TypeVar("DataT")
MachineT = TypeVar("MachineT", bound="Machine[Any]")


class Step(Struct, Generic[StateT], frozen=True):
    """Decision of a handler: the next state, the outputs, and a function that stores data."""

    state: StateT
    outputs: tuple[Output, ...] = ()
    commit: Callable[[], Sequence[Output] | None] = lambda: None
    """Stores data, and must not fail. It may return more outputs, if they depend on the stored data."""
    data: Any = None
    """Data of the state, lost when it is left; None keeps the present data if the state stays the same."""
    deadline: float | None = None
    """Timeout of the state; None keeps the deadline if the state stays the same."""


Handler = Callable[..., Step[Any]]


@dataclass(frozen=True)
class Row(Generic[StateT]):
    """A legal transition: the method that handles it, which a subclass may override, and its possible states."""

    handler: Handler
    to: tuple[StateT, ...]


class Ignore(Enum):
    """A message that is legal but late, or a repetition: counted, without effect."""

    IGNORE = "ignore"


IGNORE: Final = Ignore.IGNORE


@dataclass(frozen=True)
class Inside(Generic[StateT]):
    """Handled by the inner machine in the attribute of this name."""

    machine: str
    otherwise: Row[StateT] | Ignore | None = None
    """Handling if there is no such machine now, or one that does not accept it; refused if None."""


Cause = type[Message] | type[Result] | Input
Table = Mapping[tuple[StateT, Cause], Row[StateT] | Ignore | Inside[StateT]]


class Machine(Generic[StateT]):
    """A role in one exchange. Subclasses supply the handlers, and `refuse`.

    Class arguments: `outputs`, those of its machines, and `contains`, by the name of an attribute the states in which
    it may hold an inner machine."""

    outputs: ClassVar[Any] = Output
    contains: ClassVar[Mapping[str, Collection[Enum]]] = {}

    def __init_subclass__(cls, *, outputs: Any = None, contains: Mapping[str, Collection[Enum]] | None = None) -> None:
        cls.outputs = cls.outputs if outputs is None else outputs
        cls.contains = cls.contains if contains is None else contains

    def __init__(self, table: Table[StateT], state: StateT) -> None:
        for (held_in, cause), cell in table.items():
            if isinstance(cell, Inside) and held_in not in self.contains.get(cell.machine, ()):
                where = f"{getattr(cause, '__name__', cause)} in {held_in.name}"
                raise TypeError(
                    f"{type(self).__name__} contains no {cell.machine!r}, which its table names for {where}"
                )
        self.table = table
        self.state = state
        self.data: Any = None
        """Data of the present state."""
        self.deadline: float | None = None
        """Timeout of the present state, in the seconds of `now`."""
        self.ignored = 0
        """Number of late or repeated messages that were ignored."""
        for name in self.contains:
            setattr(self, name, None)

    def at(self, kind: type[DataT]) -> DataT:
        """Data of the present state; LocalProtocolError if it has another type."""
        if not isinstance(self.data, kind):
            raise LocalProtocolError(f"{type(self).__name__} has no {kind.__name__} in state {self.state.name}")
        return self.data

    @property
    def inside(self) -> Iterator[Machine[Any]]:
        return (part for name in self.contains if (part := getattr(self, name)) is not None)

    @property
    def next_deadline(self) -> float | None:
        """Time at which the shell must call `expire`; None while nothing is awaited."""
        return min(self.deadlines(), default=None)

    def deadlines(self) -> Iterator[float]:
        if self.deadline is not None:
            yield self.deadline
        for part in self.inside:
            yield from part.deadlines()

    def admits(self, cause: Cause) -> bool:
        """Whether the table has a row for it in this state."""
        return isinstance(self.table.get((self.state, cause)), Row)

    def receive(self, sender: str, packet: Packet, now: float) -> list[Output]:
        cell = self.table.get((self.state, packet.kind))
        inside = None
        if isinstance(cell, Inside):
            part = getattr(self, cell.machine)
            inside = part if part is not None and part.hears(sender, packet.envelope) else None
            cell = cell if inside is not None else cell.otherwise
        try:
            if cell is IGNORE or (cell is not None and self.late(sender, packet)):
                self.ignored += 1
                return []
            if cell is None:
                raise self.unexpected(packet.kind)
            if isinstance(cell, Row):
                step = self._handle(cell, Heard(sender, packet.envelope, packet.parse(), packet.payload), now)
        except RemoteProtocolError as error:
            return self.reject(sender, error.within(packet.envelope.round), now)
        if inside is not None:
            return self.relay(inside, inside.receive(sender, packet, now), now)
        return self._take(step, now)

    def reject(self, sender: str, error: RemoteProtocolError, now: float) -> list[Output]:
        return self._take(self.refuse(sender, error.blaming(sender), now), now)

    def expire(self, now: float) -> list[Output]:
        """Advance the machine's time; it acts only if a deadline has passed."""
        outputs: list[Output] = []
        for part in self.inside:
            outputs += self.relay(part, part.expire(now), now)
        if self.deadline is not None and now >= self.deadline:
            outputs += self.trigger(Trigger.EXPIRE, now)
        return outputs

    def trigger(self, cause: Input | type[Result], now: float, *arguments: Any) -> list[Output]:
        """Run an internal transition; LocalProtocolError if the table has none."""
        cell = self.table.get((self.state, cause))
        if isinstance(cell, Inside):
            part = getattr(self, cell.machine)
            return [] if part is None else self.relay(part, part.trigger(cause, now, *arguments), now)
        if cell is IGNORE:
            return []
        if not isinstance(cell, Row):
            named = cause.value if isinstance(cause, Input) else f"take a {cause.__name__}"
            raise LocalProtocolError(f"{type(self).__name__} cannot {named} in state {self.state.name}")
        return self._take(self._handle(cell, *arguments, now), now)

    def relay(self, part: Machine[Any], outputs: list[Output], now: float) -> list[Output]:
        said: list[Output] = []
        for output in consumed(outputs):
            if isinstance(output, Send):
                said += self.pass_on(part, output)
            elif isinstance(output, Result):
                said += self.trigger(type(output), now, output)
            else:
                said.append(output)
        return said

    def pass_on(self, part: Machine[Any], send: Send) -> Sequence[Output]:
        """Release a message of `part`: of an inner machine, or of this one."""
        return (send,)

    def forget(self) -> None:
        """Drop all data of this machine and inner ones. It is of no use afterwards."""
        self.data = self.deadline = None
        for name, part in [(name, getattr(self, name)) for name in self.contains]:
            if part is not None:
                part.forget()
                setattr(self, name, None)

    def refuse(self, sender: str, error: RemoteProtocolError, now: float) -> Step[StateT]:
        """The verdict on a broken rule."""
        raise NotImplementedError

    def hears(self, sender: str, envelope: Envelope) -> bool:
        """Whether a message that the outer machine passes on concerns this one."""
        return True

    def late(self, sender: str, packet: Packet) -> bool:
        """Whether a legal message repeats an earlier one of this sender."""
        return False

    def complete(self) -> bool:
        """Whether the present state awaits no member any more."""
        return False

    def unexpected(self, kind: type[Message]) -> RemoteProtocolError:
        """The refusal of a message that the table does not admit."""
        return RemoteProtocolError(Code.UNEXPECTED, f"{kind.TYPE} is not expected in state {self.state.name}")

    def _handle(self, row: Row[StateT], *arguments: Any) -> Step[StateT]:
        name = row.handler.__name__
        step: Step[StateT] = getattr(self, name)(*arguments)
        if step.state not in row.to:
            raise LocalProtocolError(f"{name} led to {step.state.name}, which its row does not name")
        return step

    def _take(self, step: Step[StateT], now: float) -> list[Output]:
        # The state first: a commit's outputs may cause further transitions.
        if step.state is not self.state:
            self.state, self.data, self.deadline = step.state, step.data, step.deadline
            for name, states in self.contains.items():
                part = getattr(self, name)
                if part is not None and step.state not in states:
                    part.forget()
                    setattr(self, name, None)
        else:
            self.data = self.data if step.data is None else step.data
            self.deadline = self.deadline if step.deadline is None else step.deadline
        outputs: list[Output] = []
        for output in (*step.outputs, *(step.commit() or ())):
            outputs += self.pass_on(self, output) if isinstance(output, Send) else (output,)
        for kind in set(map(type, outputs)):
            if not issubclass(kind, self.outputs):
                raise LocalProtocolError(f"{type(self).__name__} gives no {kind.__name__}")
        if (self.state, Trigger.COMPLETE) in self.table and self.complete():
            outputs += self.trigger(Trigger.COMPLETE, now)
        return outputs


class Transmit(Output, Struct, frozen=True):
    """Send these frames over the link to that party."""

    to: str
    frames: list[Frame]
    phase: str

    def __repr__(self) -> str:
        return f"Transmit(to={self.to!r}, phase={self.phase!r})"


@dataclass(frozen=True)
class Ended(Output):
    """The machine is finished; code None if all rounds are done. final: this party is no member any more, or has other
    keys, as the operator of its roster has signed."""

    code: Code | None
    detail: str
    final: bool = False
