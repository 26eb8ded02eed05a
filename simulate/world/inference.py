"""Private inference in memory: one model owner, one dealer, and any number of data owners.

Parties can be killed and restarted. Nothing is computed: placeholders for shares and corrections follow from their
sender and their place.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Final, Literal, Self, TypeVar

import msgspec

from tacit.protocol.core.codec import Frame
from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.link import NO_SESSION
from tacit.protocol.core.machine import Machine, Output, Transmit
from tacit.protocol.core.messages import Kinds, Message
from tacit.protocol.core.primitives import KEY_BYTES
from tacit.protocol.core.roster import Role, Roster
from tacit.protocol.inference.audit import AuditPicked
from tacit.protocol.inference.data_owner import InferenceDataOwner, InferencePolicy, InferenceRequest
from tacit.protocol.inference.dealer import InferenceDealer
from tacit.protocol.inference.material import MaterialOwner
from tacit.protocol.inference.messages import INFERENCE_MESSAGES, Terms
from tacit.protocol.inference.model_owner import InferenceModelOwner
from tacit.protocol.inference.quota import Quota, Spent
from tacit.protocol.inference.results import (
    Agreed,
    Charged,
    Deal,
    InferenceEnded,
    MaterialArrived,
    MaterialKey,
    Opened,
    PassAsked,
    PassBegun,
)
from tacit.protocol.inference.schedule import LOGITS, RANGE, Round, Sizes, weight_bytes
from tacit.protocol.inference.service import DealerService, ModelOwnerService
from tacit.protocol.inference.states import DealerState, InferenceState
from tacit.simulate.world.world import Parcel, Streams, Timer, World, new_members, written

MODEL_OWNER: Final = "model-owner"
DEALER: Final = "dealer"
PATIENCE: Final = 60.0
Side = Literal["owners", "dealer"]
Kind = TypeVar("Kind")


@dataclass(frozen=True)
class MachineOutput:
    """An output that is no message, and the machine that made it."""

    party: str
    data_owner: str
    side: Side
    """Whether it concerns the exchange between the owners or the one with the dealer."""
    output: Output


def content(size: int, *what: object) -> bytes:
    """Return placeholder bytes for shares."""
    return hashlib.shake_256(repr(what).encode()).digest(size)


def small_terms(**changes: Any) -> Terms:
    """Return terms of a tiny model, for up to three images in passes of up to two; changes: other sizes and fields."""
    sizes = {
        name: changes.pop(name, size)
        for name, size in {
            "side": 4, "channels": 1, "patch": 2, "width": 4, "heads": 1, "hidden": 4, "blocks": 1, "classes": 2,
        }.items()
    }  # fmt: skip
    fields: dict[str, Any] = {
        "sizes": Sizes(**sizes), "results": LOGITS, "weights": bytes(range(32)), "most_images": 3,
        "most_batch": 2, "audited": 0, "arithmetic": b"scales",
    }  # fmt: skip
    return Terms(**(fields | changes))


def data_owner_names(count: int) -> tuple[str, ...]:
    return tuple(f"data-owner-{number}" for number in range(count))


@dataclass
class Owner:
    """Shell of one owner in one session: its machine towards the other owner, and the one towards the dealer."""

    world: MemoryInference
    name: str
    data_owner: str
    machine: InferenceDataOwner | InferenceModelOwner
    material: MaterialOwner | None = None
    ordered: int = 0
    candidates: range = range(0)
    """The last ones, which are not audited yet."""
    picked: tuple[int, ...] = ()
    """Requests picked by the last coin."""
    due: set[int] = field(default_factory=set)
    """Ordered requests whose corrections have not arrived."""
    schedule: tuple[Round, ...] = ()
    given: set[int] = field(default_factory=set)
    """Rounds of the pass in which this owner has opened something."""
    opened: set[int] = field(default_factory=set)
    """Rounds of the pass in which the peer has."""

    @property
    def rank(self) -> int:
        """0: the model owner, 1: the data owner."""
        return int(isinstance(self.machine, InferenceDataOwner))

    @property
    def openings(self) -> list[int]:
        """Return the bytes that it opens in each round of the pass."""
        return [sizes[self.rank] for _, *sizes in self.schedule]

    def begin(self) -> None:
        assert isinstance(self.machine, InferenceDataOwner)
        self.tell("owners", self.machine.start(self.world.now))

    def order(self, requests: bytes, sizes: Sequence[int]) -> None:
        if self.material is None or self.material.over:
            return
        corrections = [(number, size) for number, size in enumerate(sizes, self.ordered) if size]
        self.candidates = range(self.ordered, self.ordered + len(sizes))
        self.ordered += len(sizes)
        self.due.update(number for number, _ in corrections)
        self.tell("dealer", self.material.order(requests, len(sizes), corrections, self.world.now))

    def tell(self, side: Side, outputs: Sequence[Output]) -> None:
        """Send the messages; act on the rest."""
        for output in outputs:
            if isinstance(output, Transmit):
                self.world.send(self.name, output)
                continue
            self.world.note(MachineOutput(self.name, self.data_owner, side, output))
            self._act(side, output)
        self.go_on()

    def machines(self) -> Iterator[tuple[Side, Machine[Any]]]:
        yield "owners", self.machine
        if self.material is not None:
            yield "dealer", self.material

    def go_on(self) -> None:
        machine, world = self.machine, self.world
        if not self.ordered or self.due or self.name in world.idle:
            return
        if machine.state is InferenceState.REVEALING:
            keys = [content(KEY_BYTES, "key", self.name, self.data_owner, number) for number in self.picked]
            self.tell("owners", machine.reveal(keys, world.now))
        elif machine.state is InferenceState.AUDITING or (
            machine.state is InferenceState.PREPARING and machine.unaudited
        ):
            contribution = world.streams.of(self.name)(KEY_BYTES)
            self.tell("owners", machine.audit(contribution, self.candidates, world.now))
        elif isinstance(machine, InferenceModelOwner) and machine.state is InferenceState.PREPARING:
            self.tell("owners", machine.begin(world.weights, world.clock, world.now))
        elif isinstance(machine, InferenceDataOwner) and machine.state is InferenceState.IDLE:
            if machine.number < machine.agreed.passes:
                asked = machine.ask(world.clock, world.now)
                world.order(self)
                self.tell("owners", asked)
            else:
                self.tell("owners", machine.finish(world.now))
        elif machine.state is InferenceState.COMPUTING:
            self._open()

    def _mask(self) -> None:
        machine = self.machine
        if isinstance(machine, InferenceModelOwner) and machine.state is InferenceState.MASKING:
            for layer, size in enumerate(weight_bytes(machine.agreed.terms.sizes)):
                masked = content(size, "masked", self.data_owner, layer)
                self.tell("owners", machine.mask(layer, masked, self.world.now))

    def _open(self) -> None:
        """Open the scheduled data, up to the first round in which the peer still has to open something."""
        for step, (_, *sizes) in enumerate(self.schedule):
            own, peers = sizes[self.rank], sizes[1 - self.rank]
            if own and step not in self.given:
                self.given.add(step)
                self.tell("owners", self.machine.give(step, self._words(step, own), self.world.now))
            if self.machine.state is not InferenceState.COMPUTING or (peers and step not in self.opened):
                return

    def _words(self, step: int, size: int) -> bytes:
        """Return its opening in a round: in the range check 0, or 1 at a data owner whose pass is refused."""
        if self.schedule[step].operation == RANGE:
            refused = (self.name, self.machine.number) in self.world.out_of_range
            return refused.to_bytes(size, "little")
        return content(size, "opening", self.name, self.data_owner, self.machine.number, step)

    def _act(self, side: Side, output: Output) -> None:
        world, machine = self.world, self.machine
        match output:
            case Agreed():
                self.material = world.make(
                    f"{self.name}/{world.dealer_name}/{self.data_owner}",
                    MaterialOwner,
                    self.name,
                    world.roster,
                    dealer=world.dealer_name,
                    agreed=output,
                    entropy=world.streams.of(self.name),
                    patience=PATIENCE,
                )
                self.tell("dealer", self.material.start(world.now))
            case MaterialKey():
                world.order(self)
                self._mask()
            case MaterialArrived(number=number):
                self.due.remove(number)
            case PassAsked():
                world.order(self)
            case AuditPicked(numbers=numbers) if numbers:
                self.picked = numbers
                world.order(self, len(numbers))
            case PassBegun():
                self.schedule, self.given, self.opened = output.rounds, set(), set()
            case Charged():
                world.spent[self.name, output.peer] = output.spent
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


class MemoryInference(World[Parcel]):
    """`told` collects all outputs that are no messages, with their exchange.

    inference_requests: of the data owners by name; policies: of those without the default one. requests: both owners'
    orders for every pass, as bytes of corrections for the model owner and for the data owner. roster: replaces a new
    one.
    """

    KINDS: ClassVar[Kinds] = INFERENCE_MESSAGES
    """Messages between both owners; with the dealer they use private inference."""
    DATA_OWNER_MACHINE: ClassVar[type[InferenceDataOwner]] = InferenceDataOwner
    MODEL_OWNER_MACHINE: ClassVar[type[InferenceModelOwner]] = InferenceModelOwner
    SHELL: ClassVar[type[Owner]] = Owner

    def __init__(
        self,
        inference_requests: Mapping[str, InferenceRequest],
        *,
        terms: Terms | None = None,
        policies: Mapping[str, InferencePolicy] | None = None,
        requests: Sequence[tuple[int, int]] = ((24, 0), (0, 16)),
        seed: bytes = b"inference",
        roster: Roster | None = None,
    ) -> None:
        super().__init__(Streams(seed))
        self.inference_requests, self.terms, self.policies = inference_requests, terms or small_terms(), policies or {}
        self.requests = requests
        data_owners: dict[str, Role] = dict.fromkeys(inference_requests, "client")
        roles: dict[str, Role] = {MODEL_OWNER: "server", **data_owners, DEALER: "dealer"}
        self.roster = roster or new_members(roles, self.streams)[0]
        self.host = self.roster.server.name
        self.dealer_name = next(member.name for member in self.roster.members if member.role == "dealer")
        self.weights = self.terms.weights
        """Commitment to the current model."""
        self.out_of_range: set[tuple[str, int]] = set()
        """Refused passes: data owner and number."""
        self.quota = Quota()
        self.spent: dict[tuple[str, str], Spent] = {}
        """Peers' use of quotas on the disk of an owner: the owner, and the peer."""
        self.clock = 0.0
        """Unix time."""
        self.told: list[MachineOutput] = []
        self.idle: set[str] = set()
        """Parties that do nothing by themselves: they neither open nor deal."""
        self.service = ModelOwnerService(self.serve, self.KINDS)
        self.dealers = DealerService(self.roster, self._deal_for)
        self.served: dict[str, Owner] = {}
        """The model owner's side of every session, by data owner."""
        self.owners: dict[str, Owner] = {}
        """Every data owner's side."""

    @property
    def shells(self) -> list[Owner]:
        return [*self.served.values(), *self.owners.values()]

    def run(self) -> Self:
        self.start()
        return self.settle()

    def start(self, *names: str) -> None:
        """Start these data owners, or all; one that had a session has forgotten it."""
        for name in names or self.inference_requests:
            self.join(name)
            self.owners[name].begin()

    def join(self, name: str) -> InferenceDataOwner:
        """Make a new session of a data owner, which is yet to start."""
        self.network.forget(lambda link: link[1] == name)
        machine = self.make(name, self.DATA_OWNER_MACHINE, name, self.roster, **self.data_owner_settings(name))
        self.owners[name] = self.SHELL(self, name, name, machine)
        return machine

    def serve(self, data_owner: str) -> InferenceModelOwner:
        """Make a new session of the model owner, which is yet to be greeted."""
        settings = self.model_owner_settings(data_owner)
        machine = self.make(f"{self.host}/{data_owner}", self.MODEL_OWNER_MACHINE, data_owner, self.roster, **settings)
        self.served[data_owner] = self.SHELL(self, self.host, data_owner, machine)
        return machine

    def data_owner_settings(self, name: str) -> dict[str, Any]:
        return {
            "request": self.inference_requests[name], "policy": self.policies.get(name, InferencePolicy()),
            "patience": PATIENCE, "spent": self.spent_of(name, self.host),
        }  # fmt: skip

    def model_owner_settings(self, data_owner: str) -> dict[str, Any]:
        return {
            "terms": self.terms, "entropy": self.streams.of(self.host), "patience": PATIENCE, "quota": self.quota,
            "spent": self.spent_of(self.host, data_owner),
        }  # fmt: skip

    def spent_of(self, owner: str, peer: str) -> Spent:
        return self.spent.get((owner, peer), Spent())

    def note(self, told: MachineOutput) -> None:
        self.told.append(told)

    def order(self, owner: Owner, again: int = 0) -> None:
        """Let an owner order its requests: first for the weights, then for every pass; again: or so many requests that
        replace audited ones."""
        layers = len(weight_bytes(owner.machine.agreed.terms.sizes))
        requests = [*self.requests[:1]] * again or (self.requests if owner.ordered else [(0, 0)] * layers)
        owner.order(msgspec.msgpack.encode(requests), [sizes[owner.rank] for sizes in requests])

    def timers(self) -> Iterator[Timer]:
        for tell, machine in self.living():
            yield machine.deadline, partial(self._tell_time, tell, machine)
        yield self.service.next_turn, self._take_turns
        yield self.dealers.next_turn, self._take_turns

    def _take_turns(self) -> None:
        for machine, outputs in self.service.take_turns(self.now):
            self.served[machine.peer].tell("owners", outputs)
        for dealer, outputs in self.dealers.take_turns(self.now):
            self.tell_dealer(dealer, outputs)

    def _tell_time(self, tell: Callable[[list[Output]], None], machine: Machine[Any]) -> None:
        tell(machine.expire(self.now))

    def hand_over(self, item: Parcel) -> list[Output]:
        sender, receiver, frames = item.sender, item.receiver, item.frames
        if receiver == self.dealer_name:
            for dealer, outputs in self.dealers.feed(sender, frames, self.now):
                self.tell_dealer(dealer, outputs)
        elif sender == self.dealer_name:
            for owner in self.shells:  # Of several sessions only that of the message takes notice.
                if owner.name == receiver and owner.material is not None:
                    owner.tell("dealer", owner.material.feed(frames, self.now))
        elif receiver == self.host:
            for machine, outputs in self.service.feed(sender, frames, self.now):
                self.served[machine.peer].tell("owners", outputs)
        elif receiver in self.owners:
            owner = self.owners[receiver]
            owner.tell("owners", owner.machine.feed(frames, self.now))
        return []

    def kill(self, name: str) -> None:
        """Remove the party; all others notice at once."""
        super().kill(name)
        lost = f"the link to {name} is lost"
        for dealer, outputs in self.dealers.drop(name, lost, self.now):
            self.tell_dealer(dealer, outputs)
        for owner in self.shells:
            if owner.name in self.dead:
                continue
            if name == owner.machine.peer:
                owner.tell("owners", owner.machine.drop(lost, self.now))
            if name == self.dealer_name and owner.material is not None:
                owner.tell("dealer", owner.material.drop(lost, self.now))

    def tell_dealer(self, dealer: InferenceDealer, outputs: Sequence[Output]) -> None:
        """Send the dealer's messages, and deal."""
        for output in outputs:
            if isinstance(output, Transmit):
                self.send(self.dealer_name, output)
                continue
            self.note(MachineOutput(self.dealer_name, dealer.owners[1], "dealer", output))
            if isinstance(output, Deal) and self.dealer_name not in self.idle:
                self.deal(dealer, output)

    def deal(self, dealer: InferenceDealer, deal: Deal) -> None:
        for number, sizes in enumerate(msgspec.msgpack.decode(deal.requests), deal.first):
            for owner, size in zip(dealer.owners, sizes, strict=True):
                if size:
                    data = content(size, "correction", dealer.owners, owner, number)
                    self.tell_dealer(dealer, dealer.deliver(owner, number, data, self.now))

    def send(self, sender: str, transmit: Transmit) -> None:
        frames = tuple(bytes(frame) for frame in transmit.frames)
        self.network.send(Parcel(sender, transmit.to, frames, self.kinds(sender, transmit.to)), self.now)

    def kinds(self, *link: str) -> Kinds:
        return INFERENCE_MESSAGES if self.dealer_name in link else self.KINDS

    def forge(
        self, sender: str, receiver: str, message: Message, *, payload: Frame | None = None, **changes: Any
    ) -> Parcel:
        """Make the next message on that link, as if that party had sent it; changes: fields of the envelope."""
        (data_owner,) = {sender, receiver} & self.inference_requests.keys() or {next(iter(self.inference_requests))}
        session = changes.get("session", self.session(data_owner))
        sequence = sum(
            (parcel.sender, parcel.receiver, parcel.packet.envelope.session) == (sender, receiver, session)
            for parcel in self.log
        )
        fields: dict[str, Any] = {"session": session, "round": 0, "sequence": sequence} | changes
        return written(sender, receiver, message, payload=payload, kinds=self.kinds(sender, receiver), **fields)

    def session(self, data_owner: str) -> bytes:
        """Return the latest session with this data owner: that of the last answer to it."""
        link = self.host, data_owner
        sent = [
            *(parcel for parcel in self.log if (parcel.sender, parcel.receiver) == link),
            *self.network.under_way(*link),
        ]
        return sent[-1].packet.envelope.session if sent else NO_SESSION

    def dealer(self, data_owner: str) -> InferenceDealer:
        return self.dealers.sessions[data_owner]

    def outcome(self, kind: type[Kind], party: str | None = None, data_owner: str | None = None) -> list[Kind]:
        """Return the outputs of one kind, of all parties or of one, about all sessions or those with one data owner."""
        return [
            told.output
            for told in self.told
            if isinstance(told.output, kind) and party in (None, told.party) and data_owner in (None, told.data_owner)
        ]

    def ended(self, party: str, side: Side = "owners", data_owner: str | None = None) -> InferenceEnded | None:
        """Return the end of a party's latest exchange on that side, with the first data owner by default."""
        data_owner = data_owner or next(iter(self.inference_requests))
        found = [
            told.output for told in self.told if (told.party, told.data_owner, told.side) == (party, data_owner, side)
        ]
        return next((output for output in reversed(found) if isinstance(output, InferenceEnded)), None)

    def _deal_for(self, data_owner: str, session: bytes, now: float) -> InferenceDealer:
        return self.make(
            f"{self.dealer_name}/{data_owner}",
            InferenceDealer,
            self.dealer_name,
            self.roster,
            data_owner=data_owner,
            session=session,
            entropy=self.streams.of(self.dealer_name),
            patience=PATIENCE,
            now=now,
        )

    def verdicts(self, *, unheard: bool = False) -> set[tuple[Code | None, str]]:
        """Return the codes and culprits of all ended exchanges. RuntimeError if one is not over, or has a deadline.

        unheard: the dealer may not know that both owners are done; it keeps a session while it has their links.
        """
        for _, machine in self.living():
            over = machine.state.name in ("CLOSED", "ABORTED") or (unheard and machine.state is DealerState.SERVING)
            if not over or machine.deadline is not None:
                raise RuntimeError(f"{type(machine).__name__} is in state {machine.state.name}")
        return {(ended.code, ended.culprit) for ended in self.outcome(InferenceEnded)}

    def living(self) -> Iterator[tuple[Callable[[list[Output]], None], Machine[Any]]]:
        for owner in self.shells:
            if owner.name not in self.dead:
                for side, machine in owner.machines():
                    yield partial(owner.tell, side), machine
        if self.dealer_name not in self.dead:
            for dealer in self.dealers.sessions.values():
                yield partial(self.tell_dealer, dealer), dealer
