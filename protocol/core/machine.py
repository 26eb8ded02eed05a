"""The core of every state machine: a table, a handler per row, and one order of doing things.

A role is a subclass with a table that maps (state, trigger) to a Row or to IGNORE. A trigger is the type of a received
message or one of the internal ones: DROP (a member is gone), COMPLETE (nobody is waited for any more), EXPIRE (the
deadline passed), or what the shell or a machine inside this one brings (Trigger). What the table does not mention is
refused: the exchange fails closed.

What happens to a message:

1. The table decides from its type alone whether it is legal now; IGNORE is counted, anything absent is refused.
2. Its body is parsed, and the handler of the row computes a Step: the successor state, the outputs, and a `commit`
   that stores what was learnt. Until then nothing has changed; a handler refuses by raising RemoteProtocolError.
3. The step is committed, then its outputs are released. A refused message changes nothing but the verdict, which the
   role's `refuse` turns into a step of its own (a server excludes the sender, a client aborts).
4. If the table has a COMPLETE row for the new state and nobody is waited for, that row follows at once.

Machines do no I/O, read no clock and draw no randomness: `now` (seconds) and `entropy` are arguments, so that a run
replays bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Generic, TypeVar

from tacit.protocol.core.codec import Frame, Packet
from tacit.protocol.core.errors import Code, LocalProtocolError, RemoteProtocolError
from tacit.protocol.core.messages import Message

Entropy = Callable[[int], bytes]
"""Given n, draws n fresh random bytes: the operating system's, except in vectors and in-memory tests."""


class Trigger(Enum):
    """Transitions that no message causes."""

    START = "start"
    DROP = "drop"
    COMPLETE = "complete"
    EXPIRE = "expire"
    CONTRIBUTE = "contribute"
    SUM_OVER = "leave the secure sum"
    AGREE = "agree on a group key"
    KEY_OVER = "leave the agreement on a group key"
    PROVIDE = "provide the model"
    DISTRIBUTE = "distribute the last model"
    NEXT_ROUND = "start the next round"
    FINISH = "finish"
    ASK = "ask for a pass"
    BEGIN = "begin a pass"
    GIVE = "give what is to be opened"
    ORDER = "order material"
    DELIVER = "deliver material"


@dataclass(frozen=True)
class Send:
    """Output: say this to that member."""

    to: str
    message: Message
    payload: Frame | None = None


@dataclass(frozen=True)
class Report:
    """Output: something for the event log and the screen. Fields are plain numbers, strings and lists of them."""

    event: str
    fields: Mapping[str, Any]


Output = Any
"""Send, Report, or a typed result that a role defines (Record, Summed, ...)."""

StateT = TypeVar("StateT", bound=Enum)


def _nothing() -> Sequence[Output]:
    return ()


@dataclass(frozen=True)
class Step(Generic[StateT]):
    """What a handler decided: the next state, what to say, and how to store what was learnt.

    commit: stores, and must not fail; it may return more outputs, where what to say follows from what is stored.
    """

    state: StateT
    outputs: tuple[Output, ...] = ()
    commit: Callable[[], Sequence[Output] | None] = _nothing


@dataclass(frozen=True)
class Row(Generic[StateT]):
    """A legal transition: the method that handles it, and every state that it may lead to."""

    handler: str
    to: tuple[StateT, ...]


class Ignore(Enum):
    """A message that is legal but late, or a repetition: counted, without effect."""

    IGNORE = "ignore"


IGNORE: Final = Ignore.IGNORE
Cause = type[Message] | Trigger
Table = Mapping[tuple[StateT, Cause], Row[StateT] | Ignore]


class Machine(Generic[StateT]):
    """A role in one exchange. Subclasses supply the table, the handlers, and `refuse`."""

    def __init__(self, table: Table[StateT], state: StateT) -> None:
        self.table = table
        self.state = state
        self.deadline: float | None = None
        """When the shell must call `expire`, in the seconds of `now`; None while nothing is waited for."""
        self.ignored = 0
        """How many late or repeated messages were ignored."""

    def admits(self, cause: Cause) -> bool:
        """Whether the table has a row for it in this state."""
        return isinstance(self.table.get((self.state, cause)), Row)

    def receive(self, sender: str, packet: Packet, now: float) -> list[Output]:
        """Feed one message of an authenticated sender."""
        row = self.table.get((self.state, packet.kind))
        if row is IGNORE or (row is not None and self.late(sender, packet)):
            self.ignored += 1
            return []
        try:
            if not isinstance(row, Row):
                raise self.unexpected(packet.kind)
            step = getattr(self, row.handler)(sender, packet.parse(), packet.payload, now)
        except RemoteProtocolError as error:
            return self.reject(sender, error, now)
        return self._take(step, row, now)

    def reject(self, sender: str, error: RemoteProtocolError, now: float) -> list[Output]:
        """Apply the verdict on a sender whose message broke a rule, here or already on the link."""
        return self._take(self.refuse(sender, error.blaming(sender), now), None, now)

    def expire(self, now: float) -> list[Output]:
        """Tell the machine the time; it acts only if its deadline has passed."""
        if self.deadline is None or now < self.deadline:
            return []
        return self.trigger(Trigger.EXPIRE, now)

    def trigger(self, trigger: Trigger, now: float, *arguments: Any) -> list[Output]:
        """Run an internal transition; LocalProtocolError where the table has none."""
        row = self.table.get((self.state, trigger))
        if row is IGNORE:
            return []
        if not isinstance(row, Row):
            raise LocalProtocolError(f"{type(self).__name__} cannot {trigger.value} in state {self.state.name}")
        return self._take(getattr(self, row.handler)(*arguments, now), row, now)

    def refuse(self, sender: str, error: RemoteProtocolError, now: float) -> Step[StateT]:
        """The verdict on a broken rule."""
        raise NotImplementedError

    def late(self, sender: str, packet: Packet) -> bool:
        """Whether a legal message repeats what this sender said before."""
        return False

    def complete(self) -> bool:
        """Whether the present state waits for nobody any more."""
        return False

    def unexpected(self, kind: type[Message]) -> RemoteProtocolError:
        """The refusal of a message that the table does not admit."""
        return RemoteProtocolError(Code.UNEXPECTED, f"{kind.TYPE} is not expected in state {self.state.name}")

    def _take(self, step: Step[StateT], row: Row[StateT] | None, now: float) -> list[Output]:
        if row is not None and step.state not in row.to:
            raise LocalProtocolError(f"{row.handler} led to {step.state.name}, which its row does not name")
        self.state = step.state  # First: what a commit sets off may lead further.
        more = step.commit()
        outputs = [*step.outputs, *(more or ())]
        if (self.state, Trigger.COMPLETE) in self.table and self.complete():
            outputs += self.trigger(Trigger.COMPLETE, now)
        return outputs
