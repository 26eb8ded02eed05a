"""An owner of private inference in memory: what its shell does with what its machines tell, without computing anything.

What stands for shares follows from who opens it, and in which round. inference.py is the world around it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol

import msgspec

from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.machine import Machine, Output
from tacit.protocol.core.outputs import Transmit
from tacit.protocol.core.roster import Roster
from tacit.protocol.inference.data_owner import InferenceDataOwner
from tacit.protocol.inference.material import MaterialOwner
from tacit.protocol.inference.messages import Terms
from tacit.protocol.inference.model_owner import InferenceModelOwner
from tacit.protocol.inference.results import (
    Agreed,
    InferenceEnded,
    MaterialArrived,
    MaterialKey,
    Opened,
    PassAsked,
    PassBegun,
)
from tacit.protocol.inference.schedule import Round, weight_bytes
from tacit.protocol.inference.tables import InferenceState
from tacit.simulate.world.streams import Streams

MODEL_OWNER: Final = "model-owner"
DEALER: Final = "dealer"
PATIENCE: Final = 60.0
Side = Literal["owners", "dealer"]


@dataclass(frozen=True)
class Told:
    """An output that is no message, and which machine made it."""

    party: str
    data_owner: str
    """Whose session it is about."""
    side: Side
    """Whether it is about the exchange between the owners or the one with the dealer."""
    output: Output


def content(size: int, *what: object) -> bytes:
    """What stands for shares: bytes that follow from what they are."""
    return hashlib.shake_256(repr(what).encode()).digest(size)


class Surrounded(Protocol):
    """What the owner needs of the world around it."""

    now: float
    roster: Roster
    streams: Streams
    terms: Terms
    weights: bytes
    requests: Sequence[tuple[int, int]]
    told: list[Told]
    idle: set[str]

    def send(self, sender: str, transmit: Transmit) -> None:
        """Put a message onto its link."""


@dataclass
class Owner:
    """The shell of one owner in one session: its machine towards the other owner, and the one towards the dealer."""

    world: Surrounded
    name: str
    data_owner: str
    machine: InferenceDataOwner | InferenceModelOwner
    material: MaterialOwner | None = None
    session: bytes = b""
    """Once terms are agreed on."""
    ordered: int = 0
    """How many requests are ordered."""
    due: set[int] = field(default_factory=set)
    """Ordered requests whose corrections have not arrived."""
    schedule: tuple[Round, ...] = ()
    given: set[int] = field(default_factory=set)
    """Rounds of the pass in which this owner has opened something."""
    opened: set[int] = field(default_factory=set)
    """Rounds of the pass in which the peer has."""

    def begin(self) -> None:
        """Say hello, as a data owner."""
        assert isinstance(self.machine, InferenceDataOwner)
        self.tell("owners", self.machine.start(self.world.now))

    def order(self, requests: Sequence[tuple[int, int]]) -> None:
        """Order requests with so many bytes of corrections for the model owner, and for the data owner."""
        if self.material is None or self.material.over:
            return
        own = [pair[self.name != MODEL_OWNER] for pair in requests]
        corrections = [(number, size) for number, size in enumerate(own, self.ordered) if size]
        self.ordered += len(requests)
        self.due.update(number for number, _ in corrections)
        encoded = msgspec.msgpack.encode(requests)
        self.tell("dealer", self.material.order(encoded, len(requests), corrections, self.world.now))

    def tell(self, side: Side, outputs: Sequence[Output]) -> None:
        """Send the messages; act on the rest."""
        for output in outputs:
            if isinstance(output, Transmit):
                self.world.send(self.name, output)
                continue
            self.world.told.append(Told(self.name, self.data_owner, side, output))
            self._act(side, output)
        self.go_on()

    def machines(self) -> Iterator[tuple[Side, Machine[Any]]]:
        """Those there are."""
        yield "owners", self.machine
        if self.material is not None:
            yield "dealer", self.material

    def go_on(self) -> None:
        """Do what can be done now."""
        machine, world = self.machine, self.world
        if not self.ordered or self.due or self.name in world.idle:
            return
        if isinstance(machine, InferenceModelOwner) and machine.state is InferenceState.PREPARING:
            self.tell("owners", machine.begin(world.weights, world.now))
        elif isinstance(machine, InferenceDataOwner) and machine.state is InferenceState.IDLE:
            if machine.number == machine.agreed.passes:
                self.tell("owners", machine.finish(world.now))
            else:
                self.order(world.requests)
                self.tell("owners", machine.ask(world.now))
        elif machine.state is InferenceState.COMPUTING:
            self._open()

    def _open(self) -> None:
        """Open what the schedule says, up to the first round in which the peer still has to open something."""
        for step, (_, *sizes) in enumerate(self.schedule):
            own, peers = sizes if self.name == MODEL_OWNER else sizes[::-1]
            if own and step not in self.given:
                self.given.add(step)
                data = content(own, "opening", self.name, self.data_owner, self.machine.number, step)
                self.tell("owners", self.machine.give(step, data, self.world.now))
            if peers and step not in self.opened:
                return

    def _act(self, side: Side, output: Output) -> None:
        world, machine = self.world, self.machine
        match output:
            case Agreed(session=session):
                self.session = session
                self.material = MaterialOwner(
                    self.name,
                    world.roster,
                    dealer=DEALER,
                    agreed=output,
                    entropy=world.streams.of(self.name),
                    patience=PATIENCE,
                )
                self.tell("dealer", self.material.start(world.now))
            case MaterialKey():
                sizes = weight_bytes(world.terms.sizes)
                self.order([(0, 0)] * len(sizes))
                if isinstance(machine, InferenceModelOwner):
                    for layer, size in enumerate(sizes):
                        masked = content(size, "masked", self.data_owner, layer)
                        self.tell("owners", machine.mask(layer, masked, world.now))
            case MaterialArrived(number=number):
                self.due.remove(number)
            case PassAsked():
                self.order(world.requests)
            case PassBegun():
                self.schedule, self.given, self.opened = output.rounds, set(), set()
            case Opened(step=step):
                self.opened.add(step)
            case InferenceEnded(code=None) if side == "owners" and self.material is not None:
                self.tell("dealer", self.material.finish(world.now))
            case InferenceEnded(code=Code() as code):
                error = RemoteProtocolError(code, output.detail, culprit=output.culprit)
                if side == "dealer":
                    self.tell("owners", machine.give_up(error, world.now))
                elif self.material is not None:
                    self.tell("dealer", self.material.give_up(error, world.now))
