"""The states of one real machine, numbered, and what every event does to them.

A machine is a function of its state and an event, so each pair is computed once, by the real code on a copy of the
machine, and looked up ever after. Two machines are in the same state if everything they hold is equal, except what
cannot influence what they do: reasons told to people, counters, and times. The clock is left out altogether: a deadline
that is set may pass at any moment, whatever else is under way, as between parties whose clocks run at any speed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, fields, is_dataclass
from functools import singledispatch
from typing import Any, Final

import numpy as np

from tacit.protocol.core.codec import Envelope, Packet, encode_structure
from tacit.protocol.core.errors import Code
from tacit.protocol.core.machine import IGNORE, Machine, Output, Send, Trigger
from tacit.protocol.core.messages import Abort, Message
from tacit.protocol.group_key.agreement import Transcript
from tacit.protocol.sum.states import VERSION
from tacit.protocol.sum.vector_sum import VectorSum
from tests.exploration.symbols import SymbolicEntropy

CONSTANT: Final = frozenset(
    {
        *("agreement", "_agreement", "table", "name", "member", "_signing"),
        *("_roster", "_configuration", "_session", "_policy", "_server"),
    }
)
"""Attributes of machines that never change."""
WITHOUT_EFFECT: Final = frozenset({"ignored", "masks"})
"""Attributes that count for people or measure time."""
UNPRINTED: Final = CONSTANT | WITHOUT_EFFECT


@singledispatch
def duplicate(value: Any) -> Any:
    return value


@duplicate.register
def _(value: dict) -> Any:  # type: ignore[type-arg]
    return {key: duplicate(part) for key, part in value.items()}


@duplicate.register(list)
@duplicate.register(set)
@duplicate.register(deque)
def _(value: Any) -> Any:
    return type(value)(map(duplicate, value))


@duplicate.register
def _(value: np.ndarray) -> Any:
    return value.copy()


@duplicate.register(Machine)
@duplicate.register(VectorSum)
@duplicate.register(SymbolicEntropy)
def _(value: Any) -> Any:
    copied = object.__new__(type(value))
    for name, part in value.__dict__.items():
        copied.__dict__[name] = part if name in CONSTANT else duplicate(part)
    return copied


@singledispatch
def fingerprint(value: Any) -> Any:
    if is_dataclass(value):  # What a state of a machine holds, among others.
        return type(value), _of_fields((field.name, getattr(value, field.name)) for field in fields(value))
    return value


@fingerprint.register
def _(value: dict) -> Any:  # type: ignore[type-arg]
    return frozenset([(key, fingerprint(part)) for key, part in value.items()])


@fingerprint.register(list)
@fingerprint.register(deque)
def _(value: Any) -> Any:
    return tuple(map(fingerprint, value))


@fingerprint.register
def _(value: set) -> Any:  # type: ignore[type-arg]
    return frozenset(value)


@fingerprint.register
def _(value: np.ndarray) -> Any:
    return value.tobytes()


@fingerprint.register
def _(value: Transcript) -> Any:
    return value.digest


@fingerprint.register(Machine)
@fingerprint.register(VectorSum)
@fingerprint.register(SymbolicEntropy)
def _(value: Any) -> Any:
    return _of_fields(value.__dict__.items())


def _of_fields(items: Iterable[tuple[str, Any]]) -> Any:
    return frozenset([(name, _abstract(name, part)) for name, part in items if name not in UNPRINTED])


def _abstract(name: str, value: Any) -> Any:
    if name == "deadline":
        return value is not None
    if name == "dropped":  # Phase and reason are told to people.
        return frozenset(value)
    return fingerprint(value)


@dataclass(frozen=True, eq=False)
class Letter:
    """A message with its raw frame, as it is read by its receiver. Equal letters are one object (PostOffice)."""

    number: int
    message: Message
    packet: Packet


Event = int | Trigger
"""A letter that arrives, or what the shell does: START, DROP, EXPIRE."""


class PostOffice:
    def __init__(self, session: bytes) -> None:
        self._session = session
        self._numbers: dict[tuple[Message, Hashable], int] = {}
        self.letters: list[Letter] = []

    def letter(self, message: Message, payload: Any = None) -> int:
        """The number of a letter. What an Abort tells people is taken out: machines only pass it on to them."""
        if isinstance(message, Abort):
            message = Abort(code=Code.LEFT, detail="", culprit="")
        key = message, None if payload is None else bytes(payload)
        if key not in self._numbers:
            envelope = Envelope(
                version=VERSION, type=message.TYPE, session=self._session, round=0, sender="", sequence=0
            )
            self._numbers[key] = len(self.letters)
            packet = Packet(envelope, encode_structure(message), key[1], type(message))
            self.letters.append(Letter(len(self.letters), message, packet))
        return self._numbers[key]

    def name(self, event: Event) -> str:
        return self.letters[event].message.TYPE if isinstance(event, int) else event.value


History = tuple[Hashable, ...]
Remember = Callable[[History, Output, Message | None, Any], History]
"""(history, output, the message that caused it, the machine afterwards) -> history: what the rules need of its past."""


class States:
    """The numbered states of one machine. State 0 is `machine`; a state includes its history.

    vector: what it contributes as soon as it has started, if it contributes anything.
    """

    def __init__(self, machine: Machine[Any], post: PostOffice, remember: Remember, *, vector: Any = None) -> None:
        self.post = post
        self._vector = vector
        self._remember = remember
        self._numbers: dict[Hashable, int] = {}
        self._machines: list[Machine[Any]] = []
        self.histories: list[History] = []
        self._results: dict[tuple[int, str, Event], tuple[int, tuple[tuple[str, int], ...]]] = {}
        # Where the table has no row, no handler can run, and what the machine still holds is without effect.
        self._open = {state for (state, _), row in machine.table.items() if row is not IGNORE}
        self._enter(machine, ())

    def __len__(self) -> int:
        return len(self._machines)

    def machine(self, number: int) -> Machine[Any]:
        return self._machines[number]

    def ended(self, number: int) -> bool:
        return self._machines[number].state not in self._open

    def after(self, number: int, event: Event, peer: str) -> tuple[int, tuple[tuple[str, int], ...]]:
        """The state that an event leads to, and the letters sent, with their receivers.

        peer: who sent the letter or left.
        """
        key = number, peer, event
        if key not in self._results:
            self._results[key] = self._apply(number, event, peer)
        return self._results[key]

    def _apply(self, number: int, event: Event, peer: str) -> tuple[int, tuple[tuple[str, int], ...]]:
        machine = duplicate(self._machines[number])
        cause = None
        if isinstance(event, int):
            letter = self.post.letters[event]
            cause = letter.message
            outputs = machine.receive(peer, letter.packet, 0.0)
        elif event is Trigger.EXPIRE:
            deadline = machine.next_deadline
            outputs = [] if deadline is None else machine.expire(deadline)
        elif event is Trigger.DROP:
            outputs = self._dropped(machine, peer)
        else:
            outputs = machine.start(0.0)
            outputs += [] if self._vector is None else machine.contribute(self._vector, 0.0)
        history, sent = self.histories[number], []
        for output in outputs:
            history = self._remember(history, output, cause, machine)
            if isinstance(output, Send):
                sent.append((output.to, self.post.letter(output.message, output.payload)))
        return self._enter(machine, history), tuple(sent)

    @staticmethod
    def _dropped(machine: Machine[Any], peer: str) -> list[Output]:
        if hasattr(machine, "drop"):
            outputs: list[Output] = machine.drop(peer, Code.LEFT, "", 0.0)
            return outputs
        return machine.trigger(Trigger.DROP, 0.0, "") if machine.admits(Trigger.DROP) else []

    def _enter(self, machine: Machine[Any], history: History) -> int:
        ended = machine.state not in self._open
        key = machine.state if ended else fingerprint(machine), history
        if key not in self._numbers:
            self._numbers[key] = len(self._machines)
            self._machines.append(machine)
            self.histories.append(history)
        return self._numbers[key]
