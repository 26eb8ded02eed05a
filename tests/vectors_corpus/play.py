"""Plays: machines that talk to each other while their transcript is recorded.

Messages are delivered in the order in which they were sent. A change may replace or withhold one on its way. The part
of one machine can be played again up to a message, in whose place it gets another.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from msgspec import structs

from tacit.protocol.core.codec import Packet, decode, encode_structure
from tacit.protocol.core.machine import Entropy, Output, Transmit
from tacit.protocol.core.messages import Kinds, Message
from tacit.simulate.conformance.transcripts import PLAYED, TranscriptFile, TranscriptStep, event_of, outputs_of
from tacit.simulate.world.world import Parcel as Delivery
from tests.vectors_corpus.recorder import Recorder

SERVER: Final = "server"


@dataclass(frozen=True)
class Parcel:
    number: int
    sender: str
    receiver: str
    frames: tuple[bytes, ...]
    kinds: Kinds

    @property
    def kind(self) -> str:
        return self.packet.envelope.type

    @property
    def message(self) -> Any:
        return self.packet.parse()

    @property
    def packet(self) -> Packet:
        return decode(self.frames, self.kinds)

    def saying(self, message: Message) -> tuple[bytes, ...]:
        return (self.frames[0], encode_structure(message), *self.frames[2:])


Change = Callable[[Parcel], Sequence[bytes] | None]
"""The frames that are delivered: the parcel's own, others, or None to lose it."""


def unchanged(parcel: Parcel) -> Sequence[bytes]:
    return parcel.frames


def entropy_of(draws: bytes) -> Entropy:
    """Randomness that is given: the next bytes of `draws`; ValueError when they are used up."""
    place = 0

    def entropy(length: int) -> bytes:
        nonlocal place
        place += length
        if place > len(draws):
            raise ValueError(f"{len(draws)} bytes of entropy are too few")
        return draws[place - length : place]

    return entropy


@dataclass(frozen=True)
class Making:
    """How a machine is made. draws: the random bytes that it draws, None where it draws none."""

    kind: Callable[..., Any]
    settings: Mapping[str, Any]
    draws: bytes | None = None

    def but(self, **changes: Any) -> Making:
        return Making(self.kind, {**self.settings, **changes}, self.draws)


@dataclass(frozen=True)
class Input:
    machine: str
    call: str
    given: Mapping[str, Any]
    parcel: Parcel | None
    now: float


class Play:
    """One run. `now` is the time of what happens next."""

    def __init__(self, protocol: str, about: str) -> None:
        self.protocol, self.about = protocol, about
        self.recorder = Recorder(protocol)
        self.machines: dict[str, Any] = {}
        """By their names in transcripts."""
        self.made: dict[str, Making] = {}
        self.inputs: list[Input] = []
        self.parcels: list[Parcel] = []
        self.outputs: list[tuple[str, Output]] = []
        """With the machine that made each."""
        self.now = 0.0
        self.hidden: set[str] = set()
        """Machines that are not in the transcript."""
        self.kinds = PLAYED[protocol].kinds
        self._delivered = 0

    def make(self, name: str, making: Making) -> Any:
        settings = dict(making.settings)
        if making.draws is not None:
            settings["entropy"] = entropy_of(making.draws)
        if "now" in inspect.signature(making.kind).parameters:
            settings["now"] = self.now
        self.made[name] = making
        self.machines[name] = self.recorder.make(name, making.kind, self.now, **settings)
        return self.machines[name]

    def act(self, name: str, call: str, /, **given: Any) -> TranscriptStep:
        self.inputs.append(Input(name, call, given, None, self.now))
        machine = self.machines[name]
        result = getattr(machine, call)(**given, **self._at(type(machine), call))
        self.sent(name, outputs_of(result))
        return self.recorder.steps[-1]

    def _at(self, kind: Any, call: str) -> dict[str, float]:
        return {"now": self.now} if "now" in _parameters(kind, call) else {}

    def sent(self, name: str, outputs: Iterable[Output]) -> None:
        party = name.split("/")[0]
        for output in outputs:
            if isinstance(output, Transmit):
                frames = tuple(bytes(frame) for frame in output.frames)
                self.parcels.append(Parcel(len(self.parcels), party, output.to, frames, self.kinds))
            else:
                self.outputs.append((name, output))

    def give(self, parcel: Parcel, frames: Sequence[bytes] | None = None) -> TranscriptStep | None:
        """Deliver a message, or other frames in its place. Returns the last step, if there is any."""
        given = tuple(parcel.frames if frames is None else frames)
        self.recorder.delivered = Delivery(parcel.sender, parcel.receiver, given)
        answers = self.answers(parcel, given)
        for name, outputs in answers:
            self.sent(name, outputs)
        return self.recorder.steps[-1] if self.recorder.steps else None

    def answers(self, parcel: Parcel, frames: Sequence[bytes]) -> list[tuple[str, list[Output]]]:
        """The outputs of the machines that a message is for; of none where its receiver is not played."""
        name = parcel.receiver
        return [(name, self.feed(name, parcel, frames))] if name in self.machines else []

    def feed(self, name: str, parcel: Parcel, frames: Sequence[bytes]) -> list[Output]:
        self.inputs.append(Input(name, "feed", {"frames": frames}, parcel, self.now))
        machine = self.machines[name]
        given: dict[str, Any] = {"frames": list(frames), **self._at(type(machine), "feed")}
        if "sender" in _parameters(type(machine), "feed"):
            given["sender"] = parcel.sender
        outputs: list[Output] = machine.feed(**given)
        return outputs

    def deliver(self, change: Change = unchanged) -> None:
        while self._delivered < len(self.parcels):
            parcel = self.parcels[self._delivered]
            self._delivered += 1
            frames = change(parcel)
            if frames is not None:
                self.give(parcel, frames)

    def expire(self, name: str, now: float) -> TranscriptStep:
        """Let time pass, and let a machine's deadlines take effect."""
        self.now = now
        return self.act(name, "expire")

    def said(self, kind: str, sender: str, receiver: str, number: int = 0) -> Parcel:
        links = (parcel for parcel in self.parcels if (parcel.sender, parcel.receiver) == (sender, receiver))
        return [parcel for parcel in links if parcel.kind == kind][number]

    def events(self) -> list[dict[str, Any]]:
        return [event for _, output in self.outputs if (event := event_of(output)) is not None]


def _parameters(kind: Any, call: str) -> frozenset[str]:
    return frozenset(inspect.signature(getattr(kind, call)).parameters)


def faulty_part(play: Play, parcel: Parcel, frames: Sequence[bytes], about: str, **settings: Any) -> Play:
    """The receiver's part of a play up to a message in whose place it gets these frames.

    settings: of its machine, where they are other.
    """
    part = Play(play.protocol, about)
    name = parcel.receiver
    part.make(name, play.made[name].but(**settings))
    for given in (one for one in play.inputs if one.machine == name):
        if given.parcel is parcel:
            break
        part.now = given.now
        if given.parcel is None:
            part.act(name, given.call, **given.given)
        else:
            part.give(given.parcel, given.given["frames"])
    part.outputs.clear()
    part.parcels.clear()
    part.give(parcel, frames)
    return part


def ending(play: Play, event: str, code: str | None = None) -> Play:
    """The play, if it has this event; ValueError otherwise."""
    if not any(one["event"] == event and one.get("code") == code for one in play.events()):
        raise ValueError(f"{play.about}: {play.events()}")
    return play


class Recorded(Protocol):
    """A play, or the run of a world. hidden: machines that are not in the transcript."""

    @property
    def about(self) -> str: ...
    @property
    def recorder(self) -> Recorder: ...
    @property
    def hidden(self) -> set[str]: ...


def together(about: str, plays: Iterable[Recorded]) -> TranscriptFile:
    """One transcript of several plays, one after the other; each begins with machines of its own."""
    plays = list(plays)
    whole = Recorder(plays[0].recorder.protocol)
    for play in plays:
        places = [whole.place_of(message) for message in play.recorder.messages]
        shown = [step for step in play.recorder.steps if step.machine not in play.hidden]
        for number, step in enumerate(shown):
            whole.steps.append(
                structs.replace(
                    step,
                    about="" if number or len(plays) == 1 else play.about,
                    message=None if step.message is None else places[step.message],
                    sends=tuple(places[sent] for sent in step.sends),
                )
            )
    return whole.transcript(plays[0].about if len(plays) == 1 else about)
