"""What the operations that play machines have in common: messages by number, and what a party did.

The messages that the played parties send are numbered from 0 in the order of sending, over the whole file. A `receive`
names one of them, or brings frames of its own: what somebody sent who is not played, or what was changed on the way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from tacit.protocol.core.codec import Frame, decode
from tacit.protocol.core.errors import Code
from tacit.protocol.core.machine import Entropy
from tacit.protocol.core.messages import Message
from tacit.protocol.session.messages import MESSAGES
from tacit.simulate.conformance.message_operations import fields_of
from tacit.simulate.conformance.notation import Octets, VectorError


class Done(msgspec.Struct, kw_only=True):
    """What a party did in one operation, and what it waits for now."""

    sends: tuple[Any, ...]
    """Receiver and frames of each message; of a message with an explanation its type and other fields instead."""
    events: tuple[Any, ...]
    state: str
    deadline: float | None
    """When it wants to be told the time."""


class Stage:
    """Base of the stages, one per file."""

    kinds: ClassVar[Mapping[str, type[Message]]] = MESSAGES
    """The messages that its parties speak."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, str, tuple[bytes, ...]]] = []
        """Sender, receiver and frames by number."""

    def delivered(self, party: str, sender: str, number: int | None, frames: tuple[Octets, ...]) -> list[bytes]:
        """The frames that a `receive` speaks of."""
        if number is None:
            return [bytes(frame) for frame in frames]
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


def coded(event: str, code: Code | None, **fields: Any) -> dict[str, Any]:
    """An event with the name of a code."""
    return {"event": event, "code": None if code is None else code.name, **fields}


def entropy_of(draws: Octets) -> Entropy:
    """Randomness that is given: the next bytes of `draws`; VectorError when they are used up."""
    place = 0

    def entropy(length: int) -> bytes:
        nonlocal place
        place += length
        if place > len(draws):
            raise VectorError(f"{len(draws)} bytes of entropy are too few")
        return bytes(draws[place - length : place])

    return entropy
