"""A data owner and the model owner of private inference over a network that delays, reorders, repeats, loses, replays.

Whatever was ever sent may arrive at its receiver at any time, any number of times, or never; so may the letters of a
former session of the same two, one of every type. Hence the network has no state but the set of what was sent. An owner
does what it has to at once or later, any deadline may pass, and any pass may be out of range. The machines and their
links are the real ones; what is opened or masked stands for its place in its session, so that whoever takes one thing
for another is seen to do so.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator
from copy import copy
from typing import Any, ClassVar, Final

from tacit.protocol.core.codec import decode
from tacit.protocol.core.link import Link
from tacit.protocol.core.machine import Output, Transmit
from tacit.protocol.core.messages import Abort, Kinds
from tacit.protocol.core.roster import Member, Roster
from tacit.protocol.inference.data_owner import InferenceDataOwner, InferencePolicy, InferenceRequest
from tacit.protocol.inference.material import Arrivals
from tacit.protocol.inference.messages import INFERENCE_MESSAGES, InferenceHello, Terms
from tacit.protocol.inference.model_owner import InferenceModelOwner
from tacit.protocol.inference.quota import Quota, Spent
from tacit.protocol.inference.results import InferenceEnded, MaskedLayer, Opened, PassAsked
from tacit.protocol.inference.schedule import LOGITS, RANGE, Round, Sizes, pass_rounds, weight_bytes
from tacit.protocol.inference.session import PassRounds
from tacit.protocol.inference.states import InferenceState
from tests.exploration.machines import duplicate, fingerprint
from tests.exploration.symbols import SymbolicEntropy

DATA_OWNER: Final = "data-owner"
MODEL_OWNER: Final = "model-owner"
PATIENCE: Final = 1.0
SIZES: Final = Sizes(side=1, channels=1, patch=1, width=1, heads=1, hidden=1, blocks=1, classes=1)
ROUNDS: Final = pass_rounds(SIZES, 1)
Owner = InferenceDataOwner | InferenceModelOwner
Frames = tuple[bytes, ...]
InferenceWorldState = tuple[int, int, int]
"""Numbers of both owners' states, and the letters that were sent: a bit for each."""


@duplicate.register
def _(value: Link) -> Any:
    return copy(value)


@duplicate.register(Arrivals)
@duplicate.register(PassRounds)
def _(value: Any) -> Any:
    copied = copy(value)
    copied.__dict__.update({name: duplicate(part) for name, part in value.__dict__.items()})
    return copied


@duplicate.register
def _(value: bytearray) -> Any:
    return bytearray(value)


@fingerprint.register
def _(value: bytearray) -> Any:
    return bytes(value)


@fingerprint.register(Link)
@fingerprint.register(Arrivals)
@fingerprint.register(PassRounds)
def _(value: Any) -> Any:
    unchanging = ("traffic", "_kinds")
    return tuple(fingerprint(part) for name, part in value.__dict__.items() if name not in unchanging)


def content(size: int, *place: object) -> bytes:
    return hashlib.shake_256(repr(place).encode()).digest(size)


class InferenceWorld:
    """One session, after a former one. passes: of one image each, which the data owner asks for, maybe none; sessions:
    that the model owner may begin.

    Greetings that are replayed begin sessions at the model owner, which nobody takes part in.
    """

    KINDS: ClassVar[Kinds] = INFERENCE_MESSAGES
    ROUNDS: ClassVar[tuple[Round, ...]] = ROUNDS
    PATIENT: ClassVar[Collection[InferenceState]] = (InferenceState.AWAIT_HELLO, InferenceState.READY)
    """Where an owner may wait without a deadline."""

    def __init__(self, *, passes: int = 1, sessions: int = 2) -> None:
        roles = {MODEL_OWNER: "server", DATA_OWNER: "client"}
        self._roster = Roster(
            tuple(
                Member(name=name, role=role, curve_public=content(32, name), signing_public=content(32, name, role))  # type: ignore[arg-type]
                for name, role in roles.items()
            )
        )
        self._terms = Terms(
            sizes=SIZES,
            results=LOGITS,
            weights=bytes(32),
            most_images=max(passes, 1),
            most_batch=1,
            audited=0,
            arithmetic=b"",
        )
        self._passes, self._sessions = passes, sessions
        self._range_step = next((step for step, each in enumerate(self.ROUNDS) if each.operation == RANGE), None)
        self.letters: list[tuple[str, Frames]] = []
        """Receiver and frames by number."""
        self._numbers: dict[tuple[Any, ...], int] = {}
        self.machines: list[Owner] = []
        self.faults_of: list[tuple[str, ...]] = []
        """By number of a state: what it did against a rule, on the way to it or in it."""
        self._states: dict[Any, int] = {}
        self._after: dict[tuple[int, int | str], tuple[int, int]] = {}
        self._former = self._former_letters()

    def initial(self) -> InferenceWorldState:
        return (
            self._number(self._data_owner(), ()),
            self._number(self._model_owner(SymbolicEntropy("new")), ()),
            (self._former),
        )

    def moves(self, state: InferenceWorldState) -> Iterator[tuple[str, InferenceWorldState]]:
        for place, name in enumerate((DATA_OWNER, MODEL_OWNER)):
            for event in self._events(name, state[place], state[2]):
                following, sent = self._step(state[place], event)
                reached = (following, state[1]) if place == 0 else (state[0], following)
                if (*reached, state[2] | sent) != state:
                    what = event if isinstance(event, str) else f"letter {self._type(event)} ({event}) arrives"
                    yield f"{name}: {what}", (*reached, state[2] | sent)

    def faults(self, state: InferenceWorldState) -> Iterator[str]:
        data, model, _ = state
        yield from self.faults_of[data]
        yield from self.faults_of[model]
        owners = self.machines[data], self.machines[model]
        same = owners[0].session == owners[1].session
        if owners[0].state is InferenceState.CLOSED and same and owners[1].state is not InferenceState.CLOSED:
            yield "the data owner has come to the regular end, and the model owner has not"
        if owners[0].state is InferenceState.CLOSED and owners[0].number != self._passes:
            yield "the data owner has come to the regular end before its last pass"

    def outcome(self, state: InferenceWorldState) -> str:
        return " / ".join(self.machines[number].state.name for number in state[:2])

    def _events(self, name: str, number: int, sent: int) -> Iterator[int | str]:
        machine = self.machines[number]
        if machine.over and name == DATA_OWNER:
            return
        if self._act(machine) is not None:
            yield "acts"
        if name == DATA_OWNER and self._next_round(machine) == self._range_step:
            yield "is out of range"
        if machine.deadline is not None:
            yield "waits no longer"
        for letter, (receiver, _) in enumerate(self.letters):
            if receiver == name and sent >> letter & 1:
                yield letter

    def _step(self, number: int, event: int | str) -> tuple[int, int]:
        if (number, event) not in self._after:
            machine: Owner = duplicate(self.machines[number])
            self._after[number, event] = self._reached(machine, event)
        return self._after[number, event]

    def _reached(self, machine: Owner, event: int | str) -> tuple[int, int]:
        judged = machine.data._word if isinstance(machine.data, PassRounds) else None
        if event in ("acts", "is out of range"):
            act = self._act(machine, out_of_range=event != "acts")
            outputs = act() if act is not None else []
        elif isinstance(event, str):
            outputs = machine.expire(PATIENCE)
        else:
            frames = self.letters[event][1]
            if isinstance(machine, InferenceModelOwner) and decode(frames, self.KINDS).kind is InferenceHello:
                # As ModelOwnerService does: a hello begins another session, whatever became of the one before.
                entropy = machine._entropy
                if machine.state is not InferenceState.AWAIT_HELLO and entropy.drawn < self._sessions:  # type: ignore[attr-defined]
                    machine = self._another(machine)
            outputs = machine.feed(frames, 0.0)
        sent = 0
        for output in outputs:
            if isinstance(output, Transmit):
                sent |= 1 << self._letter(output.to, tuple(bytes(frame) for frame in output.frames))
        return self._number(machine, outputs, judged), sent

    def _next_round(self, machine: Owner) -> int | None:
        rounds = machine.data
        if not isinstance(rounds, PassRounds) or rounds.owed is None:
            return None
        return rounds.owed if rounds.arrivals.next is None or rounds.arrivals.next >= rounds.owed else None

    def _act(self, machine: Owner, *, out_of_range: bool = False) -> Any:
        """What it is to do by itself now, as a call without arguments; None if there is nothing."""
        state, step = machine.state, self._next_round(machine)
        if step is not None:
            words = self._words(machine.own, machine.session, machine.number, step, out_of_range=out_of_range)
            return lambda: machine.give(step, words, 0.0)
        if isinstance(machine, InferenceModelOwner):
            if state is InferenceState.MASKING:
                layer = machine.data
                words = content(weight_bytes(SIZES)[layer], "layer", machine.session, layer)
                return lambda: machine.mask(layer, words, 0.0)
            return (lambda: machine.begin(self._terms.weights, 0.0, 0.0)) if state is InferenceState.PREPARING else None
        if state is InferenceState.READY:
            return lambda: machine.start(0.0)
        if state is InferenceState.IDLE:
            done = machine.number == self._passes
            return (lambda: machine.finish(0.0)) if done else (lambda: machine.ask(0.0, 0.0))
        return None

    def _words(self, own: str, session: bytes, number: int, step: int, *, out_of_range: bool = False) -> bytes:
        each = self.ROUNDS[step]
        size = each.model_owner_bytes if own == MODEL_OWNER else each.data_owner_bytes
        if step == self._range_step:
            return out_of_range.to_bytes(size, "little")
        return content(size, own, session, number, step)

    def _number(self, machine: Owner, outputs: list[Output] | tuple[()], judged: int | None = None) -> int:
        faults = (*self._broken(machine, outputs, judged),)
        # Of what is over only the end matters, and whether another session may begin.
        end = (
            machine.state,
            machine.session,
            machine.number,
            *(fingerprint(getattr(machine, name, None)) for name in ("_entropy", "_sums", "performed")),
        )
        key = machine.own, end if machine.over else fingerprint(machine), faults
        if key not in self._states:
            self._states[key] = len(self.machines)
            self.machines.append(machine)
            self.faults_of.append(faults)
        return self._states[key]

    def _broken(self, machine: Owner, outputs: list[Output] | tuple[()], judged: int | None) -> Iterator[str]:
        """judged: the word about the range that it knew before, its own or the other's."""
        for output in outputs:
            if isinstance(output, Opened):
                meant = [
                    self._words(machine.peer, machine.session, machine.number, output.step, out_of_range=refused)
                    for refused in (False, True)
                ]
                if output.data not in meant:
                    yield f"{machine.own} takes something else for the opening of round {output.step}"
                if self._range_step is not None and output.step > self._range_step and judged != 0:
                    yield f"{machine.own} is told the result of a pass that is not in range"
            elif isinstance(output, MaskedLayer):
                if output.data != content(len(output.data), "layer", machine.session, output.layer):
                    yield f"{machine.own} takes something else for layer {output.layer}"
            elif isinstance(output, PassAsked) and output.number > self._passes:
                yield f"{machine.own} prepares a pass too many"
        waits = machine.state not in self.PATIENT and not machine.over
        if waits and machine.deadline is None and self._act(machine) is None:
            yield f"{machine.own} waits for ever in {machine.state.name}"

    def _former_letters(self) -> int:
        owners: dict[str, Owner] = {
            DATA_OWNER: self._data_owner(),
            MODEL_OWNER: self._model_owner(SymbolicEntropy("former")),
        }
        found: dict[type, tuple[str, Frames]] = {}
        ended = 0
        while ended < len(owners):
            outputs: list[Output] = []
            for owner in owners.values():
                if (act := self._act(owner)) is not None:
                    outputs += act()
            while outputs:
                output = outputs.pop(0)
                ended += isinstance(output, InferenceEnded)
                if isinstance(output, Transmit):
                    frames = tuple(bytes(frame) for frame in output.frames)
                    found.setdefault(decode(frames, self.KINDS).kind, (output.to, frames))
                    outputs += owners[output.to].feed(frames, 0.0)
        return sum(1 << self._letter(*letter) for letter in found.values())

    def _letter(self, receiver: str, frames: Frames) -> int:
        packet = decode(frames, self.KINDS)
        # Explanations are for people.
        said = packet.parse().code if packet.kind is Abort else packet.body  # type: ignore[attr-defined]
        number = self._numbers.setdefault((receiver, frames[0], said, frames[2:]), len(self.letters))
        if number == len(self.letters):
            self.letters.append((receiver, frames))
        return number

    def _type(self, letter: int) -> str:
        return decode(self.letters[letter][1], self.KINDS).envelope.type

    def _data_owner(self) -> InferenceDataOwner:
        request = InferenceRequest(images=max(self._passes, 1), batch=1, channels=1, side=1)
        policy = InferencePolicy()
        return InferenceDataOwner(
            DATA_OWNER, self._roster, request=request, policy=policy, patience=PATIENCE, spent=Spent()
        )

    def _model_owner(self, entropy: SymbolicEntropy) -> InferenceModelOwner:
        return InferenceModelOwner(
            DATA_OWNER,
            self._roster,
            terms=self._terms,
            entropy=entropy,
            patience=PATIENCE,
            quota=Quota(),
            spent=Spent(),
        )

    def _another(self, machine: InferenceModelOwner) -> InferenceModelOwner:
        return self._model_owner(machine._entropy)  # type: ignore[arg-type]
