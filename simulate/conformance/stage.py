"""What the operations that play machines have in common: their names, messages by number, and what a party did.

The messages that the played parties send are numbered from 0 in the order of sending, over the whole file. A `receive`
names one of them, or brings frames of its own: what somebody sent who is not played, or what was changed on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from typing import Any, ClassVar, TypeVar

import msgspec

from tacit.protocol.core.codec import Frame, decode
from tacit.protocol.core.machine import Entropy, Machine, Output, Report, Transmit
from tacit.protocol.core.messages import Kinds
from tacit.protocol.session.messages import MESSAGES
from tacit.simulate.conformance.message_operations import fields_of
from tacit.simulate.conformance.notation import Octets, VectorError
from tacit.simulate.conformance.operations import Operations

KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")


class Done(msgspec.Struct, kw_only=True):
    """What a party did in one operation, and what it waits for now."""

    sends: tuple[Any, ...]
    """Receiver and frames of each message; of a message with an explanation its type and other fields instead."""
    events: tuple[Any, ...]
    state: str
    deadline: float | None
    """When it wants to be told the time."""


class Stage:
    """Base of the stages, one per file. Every public method of a subclass is an operation."""

    kinds: ClassVar[Kinds] = MESSAGES
    """The messages that its parties speak."""
    reports: ClassVar[tuple[str, ...]] = ()
    """The reports that are events; the others are figures for the log."""
    plain_events: ClassVar[Mapping[type[Output], tuple[str, ...]]] = {}
    """Other outputs that are events: the name of each, and its fields in the event."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, str, tuple[bytes, ...]]] = []
        """Sender, receiver and frames by number."""
        self._machines: dict[str, Machine[Any]] = {}
        """By party, where each has one."""

    def operations(self) -> Operations:
        """By the names that vectors use: those of the methods, with spaces."""
        stages = takewhile(lambda kind: kind is not Stage, type(self).__mro__)
        names = dict.fromkeys(name for stage in stages for name in vars(stage) if not name.startswith("_"))
        operations = {name.replace("_", " "): getattr(self, name) for name in names}
        return {name: operation for name, operation in operations.items() if callable(operation)}

    def done(self, party: str, *answers: tuple[Machine[Any], list[Output]]) -> Done:
        """What a party has come to with these machines; its state is that of the last."""
        sends, events = [], list[dict[str, Any]]()
        state, deadline = "", None
        for machine, outputs in answers:
            for output in outputs:
                if isinstance(transmit := self._transmit(party, output), Transmit):
                    sends.append(self.sent(party, transmit.to, transmit.frames))
                elif not isinstance(output, Report):
                    events += self._events(party, output)
                elif output.event in self.reports:
                    told = {name: value for name, value in output.fields.items() if name != "detail"}
                    events.append({"event": output.event.replace("-", " "), **told})
            state, deadline = machine.state.name, machine.next_deadline
        return Done(sends=tuple(sends), events=tuple(events), state=state, deadline=deadline)

    def did(self, party: str, act: Callable[[Any], list[Output]], machine: Machine[Any] | None = None) -> Done:
        """What the machine of this party makes of it, by default the only one."""
        machine = machine or found(self._machines, party, f"{party} is not played")
        return self.done(party, (machine, act(machine)))

    def _transmit(self, party: str, output: Output) -> Output:
        """The output, as frames if it is a message."""
        return output

    def _events(self, party: str, output: Output) -> list[dict[str, Any]]:
        """What an output that is neither a message nor a report is for others; KeyError if nothing says so."""
        name, *fields = self.plain_events[type(output)]
        return [event(name, output, *fields)]

    def delivered(self, party: str, sender: str, number: int | None, frames: tuple[Octets, ...]) -> list[bytes]:
        """The frames that a `receive` speaks of."""
        if number is None:
            return list(frames)
        if frames or not 0 <= number < len(self.messages) or self.messages[number][:2] != (sender, party):
            raise VectorError(f"message {number} is none that {sender} sent to {party}")
        return list(self.messages[number][2])

    def sent(self, sender: str, receiver: str, frames: Sequence[Frame]) -> dict[str, Any]:
        """Number a message, and describe it."""
        plain = tuple(bytes(frame) for frame in frames)
        self.messages.append((sender, receiver, plain))
        message = decode(plain, self.kinds).parse()
        if not getattr(message, "detail", ""):
            return {"to": receiver, "frames": plain}
        # Explanations are for people: every implementation words its own.
        fields = fields_of(message)
        del fields["detail"]
        return {"to": receiver, "type": message.TYPE, "fields": fields}


def event(name: str, output: object, *fields: str) -> dict[str, Any]:
    """An event with these fields of the output."""
    return {"event": name, **{field: getattr(output, field) for field in fields}}


def found(table: Mapping[KeyT, ValueT], key: KeyT, otherwise: str) -> ValueT:
    """What a table has under a key; VectorError with these words where it has nothing."""
    if key not in table:
        raise VectorError(otherwise)
    return table[key]


def entropy_of(draws: Octets) -> Entropy:
    """Randomness that is given: the next bytes of `draws`; VectorError when they are used up."""
    place = 0

    def entropy(length: int) -> bytes:
        nonlocal place
        place += length
        if place > len(draws):
            raise VectorError(f"{len(draws)} bytes of entropy are too few")
        return draws[place - length : place]

    return entropy
