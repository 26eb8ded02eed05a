"""Recording of transcripts: worlds that record the inputs and outputs of their machines.

The hook of a world may change messages on their way: a message that is delivered, and that no machine has sent, is
recorded as well.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, ClassVar, ParamSpec, TypeVar

from msgspec import structs

from tacit.protocol.core.machine import Entropy, Output, Transmit
from tacit.protocol.core.primitives import SigningKey
from tacit.simulate.conformance.notation import written
from tacit.simulate.conformance.transcripts import (
    PLAYED,
    TranscriptFile,
    TranscriptMessage,
    TranscriptStep,
    deadline_of,
    event_of,
    outputs_of,
    plain,
    state_of,
)
from tacit.simulate.world.adaptation import MemoryAdaptation
from tacit.simulate.world.federation import MemoryFederation
from tacit.simulate.world.inference import MemoryInference
from tacit.simulate.world.world import Parcel, World

Made = TypeVar("Made")
Settings = ParamSpec("Settings")

_RECEIVING = ("feed", "hear")
_NOT_GIVEN = ("entropy", "now")
"""Parameters for which a step has fields."""


class Recorder:
    def __init__(self, protocol: str) -> None:
        self.protocol = protocol
        self.steps: list[TranscriptStep] = []
        self.messages: list[TranscriptMessage] = []
        self.delivered = Parcel("", "", ())
        """The message that was delivered last."""
        self._machines: list[tuple[str, object]] = []
        """Every machine with its name: some are settings of others."""
        self._places: dict[TranscriptMessage, int] = {}
        self._drawn = bytearray()
        """The random bytes that were drawn since the last step."""
        self._calling = False

    def make(self, name: str, kind: Callable[..., Made], now: float, /, *settings: Any, **more: Any) -> Made:
        given = inspect.signature(kind).bind(*settings, **more)
        if "entropy" in given.arguments:
            given.arguments["entropy"] = self._watched(given.arguments["entropy"])
        machine = kind(*given.args, **given.kwargs)
        self._machines.append((name, machine))
        title, role = next(pair for pair in PLAYED[self.protocol].roles.items() if kind in (pair[1].make, pair[1].made))
        self._note(name, machine, [], do="create", role=title, now=now, given=self._written(given))
        for call in filter(lambda call: hasattr(machine, call), (*_RECEIVING, *role.calls)):
            setattr(machine, call, self._recorded(name, machine, call))
        return machine

    def _watched(self, entropy: Entropy) -> Entropy:
        def draw(length: int) -> bytes:
            drawn = entropy(length)
            self._drawn += drawn
            return drawn

        return draw

    def _recorded(self, name: str, machine: Any, call: str) -> Callable[..., Any]:
        act = getattr(machine, call)
        signature = inspect.signature(act)

        def recorded(*arguments: Any, **more: Any) -> Any:
            if self._calling:  # A machine calls itself.
                return act(*arguments, **more)
            self._calling = True
            try:
                result = act(*arguments, **more)
            finally:
                self._calling = False
            given = signature.bind(*arguments, **more)
            now = given.arguments.get("now", self.steps[-1].now)
            if call in _RECEIVING:
                message = self._numbered(self.delivered)
                self._note(name, machine, outputs_of(result), do="receive", message=message, now=now)
            else:
                self._note(name, machine, outputs_of(result), do=call, given=self._written(given), now=now)
            return result

        return recorded

    def _note(self, name: str, machine: Any, outputs: list[Output], **what: Any) -> None:
        party = name.split("/")[0]
        sent = [Parcel(party, each.to, tuple(each.frames)) for each in outputs if isinstance(each, Transmit)]
        step = TranscriptStep(
            machine=name,
            entropy=self._drawn.hex(),
            sends=tuple(map(self._numbered, sent)),
            events=tuple(event for output in outputs if (event := event_of(output)) is not None),
            state=state_of(machine),
            deadline=deadline_of(machine),
            **what,
        )
        self.steps.append(step)
        self._drawn.clear()

    def _numbered(self, parcel: Parcel) -> int:
        frames = tuple(written(bytes(frame)) for frame in parcel.frames)
        return self.place_of(TranscriptMessage(sender=parcel.sender, receiver=parcel.receiver, frames=frames))

    def place_of(self, message: TranscriptMessage) -> int:
        """Return the index of a message, which is added if it is not there."""
        if message not in self._places:
            self._places[message] = len(self.messages)
            self.messages.append(message)
        return self._places[message]

    def _written(self, given: inspect.BoundArguments) -> dict[str, Any]:
        """Return settings or arguments in the notation of transcripts, without those that have their defaults."""
        parameters = given.signature.parameters
        return {
            name: self._plain(value)
            for name, value in given.arguments.items()
            if name not in _NOT_GIVEN and value is not parameters[name].default
        }

    def _plain(self, value: Any) -> Any:
        if isinstance(value, SigningKey):
            return plain(bytes(value._key))
        return next((name for name, machine in self._machines if machine is value), None) or plain(value)

    def transcript(self, about: str, steps: Sequence[TranscriptStep] = ()) -> TranscriptFile:
        """Make a transcript of these steps; of all that were recorded if none are given."""
        steps = steps or self.steps
        kept = sorted({*(step.message for step in steps if step.message is not None)}.union(*(s.sends for s in steps)))
        places = {number: place for place, number in enumerate(kept)}
        common = _common(self.protocol, [step for step in steps if step.do == "create"])
        return TranscriptFile(
            protocol=self.protocol,
            version=PLAYED[self.protocol].kinds.version,
            about=about,
            common=common,
            messages=tuple(self.messages[number] for number in kept),
            steps=tuple(
                structs.replace(
                    step,
                    given={
                        name: value
                        for name, value in step.given.items()
                        if step.do != "create" or name not in common or value != common[name]
                    },
                    message=None if step.message is None else places[step.message],
                    sends=tuple(places[number] for number in step.sends),
                )
                for step in steps
            ),
        )


def _common(protocol: str, created: Sequence[TranscriptStep]) -> dict[str, Any]:
    """Return the settings that all machines have which can have them, several of them with this value."""
    roles, common = PLAYED[protocol].roles, dict[str, Any]()
    for name in dict.fromkeys(name for step in created for name in step.given):
        able = [step for step in created if name in inspect.signature(roles[step.role].make).parameters]
        values = [step.given[name] for step in able if name in step.given]
        often, value = max(((values.count(value), value) for value in values), key=lambda pair: pair[0])
        if often > 1 and len(values) == len(able):
            common[name] = value
    return common


class RecordedWorld(World[Parcel]):
    protocol: ClassVar[str]

    @cached_property
    def recorder(self) -> Recorder:
        return Recorder(self.protocol)

    def make(
        self, name: str, kind: Callable[Settings, Made], /, *settings: Settings.args, **more: Settings.kwargs
    ) -> Made:
        return self.recorder.make(name, kind, self.now, *settings, **more)

    def hand_over(self, item: Parcel) -> list[Output]:
        self.recorder.delivered = item
        return super().hand_over(item)


class RecordedFederation(RecordedWorld, MemoryFederation):
    protocol = "federation"


class RecordedInference(RecordedWorld, MemoryInference):
    protocol = "private inference"


class RecordedAdaptation(RecordedWorld, MemoryAdaptation):
    protocol = "double-blind adaptation"
