"""Plays: machines that talk to each other while every operation is recorded.

Messages are delivered in the order in which they were sent. A change may replace or withhold one on its way. From a
recorded play the part of one party can be cut out: the same inputs for it, with the frames written out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tacit.protocol.adaptation.messages import ADAPTATION_MESSAGES
from tacit.protocol.core.codec import Packet, decode, encode_structure
from tacit.protocol.core.messages import Kinds, Message
from tacit.protocol.inference.messages import INFERENCE_MESSAGES
from tacit.protocol.session.messages import MESSAGES
from tests.vectors_corpus.script import Script

SERVER: Final = "server"
KINDS: Final[dict[str, Kinds]] = {
    "private inference": INFERENCE_MESSAGES,
    "double-blind adaptation": ADAPTATION_MESSAGES,
}
"""What is spoken where it is not what federations speak."""


@dataclass(frozen=True)
class Parcel:
    """A message under way."""

    number: int
    sender: str
    receiver: str
    frames: tuple[bytes, ...]
    """Empty where no vector has them: of a message with an explanation, or with a long frame."""
    kinds: Kinds

    @property
    def kind(self) -> str:
        """Its type on the wire; empty where the frames are."""
        return self.packet.envelope.type if self.frames else ""

    @property
    def message(self) -> Any:
        """The message."""
        return self.packet.parse()

    @property
    def packet(self) -> Packet:
        """The envelope, read, and the body."""
        return decode(self.frames, self.kinds)

    def saying(self, message: Message) -> tuple[bytes, ...]:
        """The frames with another message of the same type."""
        return (self.frames[0], encode_structure(message), *self.frames[2:])


Change = Callable[[Parcel], Sequence[bytes] | None]
"""The frames that are delivered: the parcel's own, others, or None to lose it."""


def unchanged(parcel: Parcel) -> Sequence[bytes]:
    """Deliver it as it is."""
    return parcel.frames


class Play(Script):
    """One file with machines. `now` is the time of what happens next."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.parcels: list[Parcel] = []
        self.now = 0.0
        self._delivered = 0
        self._kinds = KINDS.get(self.protocol, MESSAGES)

    def act(self, actor: str, name: str, /, **inputs: Any) -> Any:
        """Perform an operation of a party, and number what it sends."""
        done = self.do(name, **inputs)
        for sent in done["sends"]:
            written = sent.get("frames", ())
            abbreviated = any(frame.startswith("sha256") for frame in written)
            frames = () if abbreviated else tuple(bytes.fromhex(frame) for frame in written)
            self.parcels.append(Parcel(len(self.parcels), actor, sent["to"], frames, self._kinds))
        return done

    def give(self, parcel: Parcel, frames: Sequence[bytes] | None = None) -> Any:
        """Deliver a message, or other frames in its place."""
        what = {"message": parcel.number} if frames is None else {"frames": frames}
        return self.act(parcel.receiver, "receive", party=parcel.receiver, sender=parcel.sender, **what, **self.at())

    def deliver(self, change: Change = unchanged) -> None:
        """Deliver everything under way, and what follows from it."""
        while self._delivered < len(self.parcels):
            parcel = self.parcels[self._delivered]
            self._delivered += 1
            frames = change(parcel)
            if frames is not None:
                self.give(parcel, None if tuple(frames) == parcel.frames else frames)

    def at(self) -> dict[str, float]:
        """The time as an input, if it is not 0."""
        return {"now": self.now} if self.now else {}

    def expire(self, party: str, now: float) -> Any:
        """Let time pass, and tell a party."""
        self.now = now
        return self.act(party, "expire", party=party, now=now)


def faulty_part(
    play: Play, begin: dict[str, Any], parcel: Parcel, frames: Sequence[bytes], about: str
) -> tuple[Play, Any]:
    """The receiver's part of a play up to a message in whose place it gets these frames, and what it does then.

    begin: the inputs of the first operation, with nobody but the receiver.
    """
    part = Play(play.protocol, play.level, about)
    part.do(play.steps[0].do, **begin)
    for step in play.steps[1:]:
        inputs = dict(step.inputs)
        if inputs.get("party", SERVER) != parcel.receiver:
            continue
        number = inputs.pop("message", None)
        if number == parcel.number:
            break
        if number is not None:
            inputs["frames"] = play.parcels[number].frames
        part.act(parcel.receiver, step.do, **inputs)
    return part, part.give(parcel, frames)


def ending(play: Play, event: str, code: str | None = None) -> Play:
    """The play, if it has this event; ValueError otherwise."""
    events: list[dict[str, Any]] = [
        one for step in play.steps if isinstance(step.expect, dict) for one in step.expect.get("events", ())
    ]
    if not any(one["event"] == event and one.get("code") == code for one in events):
        raise ValueError(f"{play.about}: {events}")
    return play
