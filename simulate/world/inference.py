"""Private inference in memory: the real machines of owners and dealer, joined by queues of frames.

It serves tests, vectors and exploration, as memory_federation.py does for federations. There are one model owner, one
dealer, and any number of data owners. A hook sees every message before it is delivered and may drop, repeat or replace
it; parties can be killed and started again. Each pair of parties has a queue in either direction, and `choose` says
which speaks next. Time passes only when nothing is under way, and then to the next deadline. Nothing is computed: what
stands for shares and corrections follows from who sends it, and where.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import msgspec

from tacit.protocol.core.codec import VERSION, Envelope, Frame, Packet, decode, encode
from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.link import NO_SESSION
from tacit.protocol.core.machine import Entropy, Machine, Output
from tacit.protocol.core.messages import Message
from tacit.protocol.core.outputs import Transmit
from tacit.protocol.core.primitives import KEY_BYTES, SigningKey
from tacit.protocol.core.roster import Member, Role, Roster
from tacit.protocol.inference.data_owner import InferenceDataOwner, InferencePolicy, Wish
from tacit.protocol.inference.dealer import InferenceDealer
from tacit.protocol.inference.messages import INFERENCE_MESSAGES, Terms
from tacit.protocol.inference.model_owner import InferenceModelOwner
from tacit.protocol.inference.results import Deal, InferenceEnded
from tacit.protocol.inference.schedule import Sizes
from tacit.protocol.inference.service import DealerService, ModelOwnerService
from tacit.protocol.inference.tables import DealerState
from tacit.simulate.world.memory_federation import Hook, Parcel, stream
from tacit.simulate.world.memory_inference_owner import DEALER as DEALER
from tacit.simulate.world.memory_inference_owner import MODEL_OWNER as MODEL_OWNER
from tacit.simulate.world.memory_inference_owner import PATIENCE as PATIENCE
from tacit.simulate.world.memory_inference_owner import Owner, Side, Told
from tacit.simulate.world.memory_inference_owner import content as content

Kind = TypeVar("Kind")
Link = tuple[str, str]


@dataclass(frozen=True)
class InferenceParcel(Parcel):
    """A message under way, as frames."""

    @property
    def packet(self) -> Packet:
        """The envelope, read, and the body."""
        return decode(self.frames, INFERENCE_MESSAGES)


def small_terms(**changes: Any) -> Terms:
    """Terms of a very small model, for up to three images in passes of up to two; changes: other sizes and fields."""
    sizes = {
        name: changes.pop(name, size)
        for name, size in {
            "side": 4, "channels": 1, "patch": 2, "width": 4, "heads": 1, "hidden": 4, "blocks": 1, "classes": 2,
        }.items()
    }  # fmt: skip
    fields: dict[str, Any] = {
        "sizes": Sizes(**sizes), "input": "known", "weights": bytes(range(32)), "most_images": 3, "most_batch": 2,
        "arithmetic": b"scales",
    }  # fmt: skip
    return Terms(**(fields | changes))


def data_owner_names(count: int) -> tuple[str, ...]:
    """The data owners of a world."""
    return tuple(f"data-owner-{number}" for number in range(count))


@dataclass
class MemoryInference:
    """`told` collects everything that is no message, `log` every message that was delivered.

    wishes: of the data owners by name; policies: of those that do not hold the default one. requests: what both owners
    order for every pass, as of Owner.order. choose: which of the links with something under way speaks next.
    """

    wishes: Mapping[str, Wish]
    terms: Terms = field(default_factory=small_terms)
    policies: Mapping[str, InferencePolicy] = field(default_factory=dict)
    requests: Sequence[tuple[int, int]] = ((24, 0), (0, 16))
    entropy: Entropy = field(default_factory=lambda: stream(b"inference"))
    hook: Hook = lambda parcel: [parcel]
    choose: Callable[[list[Link]], Link] = lambda links: links[0]
    now: float = 0.0

    def __post_init__(self) -> None:
        roles: dict[str, Role] = {MODEL_OWNER: "server", **dict.fromkeys(self.wishes, "client"), DEALER: "dealer"}
        self.roster = Roster(
            tuple(
                Member(
                    name=name,
                    role=role,
                    curve_public=self.entropy(KEY_BYTES),
                    signing_public=SigningKey(self.entropy(KEY_BYTES)).public,
                )
                for name, role in roles.items()
            )
        )
        self.weights = self.terms.weights
        """The commitment to the model as it is now."""
        self.told: list[Told] = []
        self.log: list[Parcel] = []
        self.idle: set[str] = set()
        """Parties that do nothing by themselves: they neither open nor deal."""
        self.dead: set[str] = set()
        self.service = ModelOwnerService(self.serve)
        self.dealers = DealerService(self.roster, self._deal_for)
        self.served: dict[str, Owner] = {}
        """The model owner's side of every session, by data owner,"""
        self.owners: dict[str, Owner] = {}
        """and the data owner's."""
        self._queues: defaultdict[Link, deque[Parcel]] = defaultdict(deque)

    def run(self) -> MemoryInference:
        """Start all data owners and settle."""
        self.start()
        return self.settle()

    def start(self, *names: str) -> None:
        """Start these data owners, or all; one that had a session has forgotten it."""
        for name in names or self.wishes:
            self.join(name)
            self.owners[name].begin()

    def join(self, name: str) -> InferenceDataOwner:
        """A new session of a data owner, which is yet to start."""
        for link in filter(lambda link: link[1] == name, self._queues):
            self._queues[link].clear()
        policy = self.policies.get(name, InferencePolicy())
        machine = InferenceDataOwner(name, self.roster, wish=self.wishes[name], policy=policy, patience=PATIENCE)
        self.owners[name] = Owner(self, name, name, machine)
        return machine

    def serve(self, data_owner: str) -> InferenceModelOwner:
        """A new session of the model owner, which is yet to be greeted."""
        machine = InferenceModelOwner(
            data_owner, self.roster, terms=self.terms, entropy=self.entropy, patience=PATIENCE
        )
        self.served[data_owner] = Owner(self, MODEL_OWNER, data_owner, machine)
        return machine

    def advance(self, until: Callable[[], bool] = lambda: False) -> bool:
        """Deliver what is under way until the condition holds; whether it does. No time passes."""
        while not (reached := until()) and (links := [link for link, queue in self._queues.items() if queue]):
            original = self._queues[self.choose(links)].popleft()
            for parcel in self.hook(original):
                self.put(parcel)
        return reached

    def settle(self) -> MemoryInference:
        """Deliver everything; then let time pass to the next deadline, until there is none."""
        self.advance()
        while deadlines := [each.deadline for _, each in self.living() if each.deadline is not None]:
            self.now = min(deadlines)
            for tell, machine in self.living():
                tell(machine.expire(self.now))
            self.advance()
        return self

    def put(self, parcel: Parcel) -> None:
        """Deliver this message now, past the hook."""
        sender, receiver, frames = parcel.sender, parcel.receiver, parcel.frames
        if {sender, receiver} & self.dead:
            return
        self.log.append(parcel)
        if receiver == DEALER:
            for dealer, outputs in self.dealers.feed(sender, frames, self.now):
                self.emit(dealer, outputs)
        elif receiver == MODEL_OWNER and sender != DEALER:
            for machine, outputs in self.service.feed(sender, frames, self.now):
                self.served[machine.peer].tell("owners", outputs)
        elif sender == DEALER:
            for owner in self._addressed(parcel):
                if owner.material is not None:
                    owner.tell("dealer", owner.material.feed(frames, self.now))
        elif receiver in self.owners:
            owner = self.owners[receiver]
            owner.tell("owners", owner.machine.feed(frames, self.now))

    def kill(self, name: str) -> None:
        """The party is gone: nothing more comes from it, and all others notice at once."""
        self.dead.add(name)
        for link in filter(lambda link: name in link, self._queues):
            self._queues[link].clear()
        lost = f"the link to {name} is lost"
        for dealer, outputs in self.dealers.drop(name, lost, self.now):
            self.emit(dealer, outputs)
        for owner in (*self.served.values(), *self.owners.values()):
            if owner.name in self.dead:
                continue
            if name == owner.machine.peer:
                owner.tell("owners", owner.machine.drop(lost, self.now))
            if name == DEALER and owner.material is not None:
                owner.tell("dealer", owner.material.drop(lost, self.now))

    def emit(self, dealer: InferenceDealer, outputs: Sequence[Output]) -> None:
        """Send the dealer's messages, and deal."""
        for output in outputs:
            if isinstance(output, Transmit):
                self.send(DEALER, output)
                continue
            self.told.append(Told(DEALER, dealer.owners[1], "dealer", output))
            if isinstance(output, Deal) and DEALER not in self.idle:
                self.deal(dealer, output)

    def deal(self, dealer: InferenceDealer, deal: Deal) -> None:
        """Deliver the corrections of an order."""
        for number, sizes in enumerate(msgspec.msgpack.decode(deal.requests), deal.first):
            for owner, size in zip(dealer.owners, sizes, strict=True):
                if size:
                    data = content(size, "correction", dealer.owners, owner, number)
                    self.emit(dealer, dealer.deliver(owner, number, data, self.now))

    def send(self, sender: str, transmit: Transmit) -> None:
        """Put a message onto its link."""
        frames = tuple(bytes(frame) for frame in transmit.frames)
        self._queues[sender, transmit.to].append(InferenceParcel(sender, transmit.to, frames))

    def forge(
        self, sender: str, receiver: str, message: Message, *, payload: Frame | None = None, **changes: Any
    ) -> Parcel:
        """The next message on that link, as if that party had sent it; changes: fields of the envelope."""
        (data_owner,) = {sender, receiver} & self.wishes.keys() or {next(iter(self.wishes))}
        session = changes.get("session", self.session(data_owner))
        sequence = sum(
            (parcel.sender, parcel.receiver, parcel.packet.envelope.session) == (sender, receiver, session)
            for parcel in self.log
        )
        fields = {"session": session, "round": 0, "sequence": sequence, "sender": sender}
        envelope = Envelope(**(fields | {"version": VERSION, "type": message.TYPE} | changes))
        return InferenceParcel(sender, receiver, tuple(encode(message, envelope, payload)))

    def say_instead(self, kind: str, sender: str, make: Callable[[Parcel], list[Parcel]], *, at: int = 0) -> None:
        """Let this party say something else than its message of that kind, the first or the one after so many."""
        hook, said = self.hook, 0

        def say(original: Parcel) -> list[Parcel]:
            nonlocal said
            parcels: list[Parcel] = []
            for parcel in hook(original):
                meant = (parcel.packet.kind.TYPE, parcel.sender) == (kind, sender)
                parcels += make(parcel) if meant and said == at else [parcel]
                said += meant
            return parcels

        self.hook = say

    def session(self, data_owner: str) -> bytes:
        """The latest session with this data owner: that of the last answer to it."""
        link = MODEL_OWNER, data_owner
        sent = [*(parcel for parcel in self.log if (parcel.sender, parcel.receiver) == link), *self._queues[link]]
        return sent[-1].packet.envelope.session if sent else NO_SESSION

    def dealer(self, data_owner: str) -> InferenceDealer:
        """The dealer's machine in the latest session with this data owner."""
        return self.dealers.sessions[data_owner]

    def outcome(self, kind: type[Kind], party: str | None = None, data_owner: str | None = None) -> list[Kind]:
        """The outputs of one kind, of all parties or of one, about all sessions or those with one data owner."""
        return [
            told.output
            for told in self.told
            if isinstance(told.output, kind) and party in (None, told.party) and data_owner in (None, told.data_owner)
        ]

    def ended(self, party: str, side: Side = "owners", data_owner: str | None = None) -> InferenceEnded | None:
        """How the latest exchange of a party on that side ended, with the first data owner by default."""
        data_owner = data_owner or next(iter(self.wishes))
        found = [
            told.output
            for told in self.told
            if (told.party, told.data_owner, told.side) == (party, data_owner, side)
            and isinstance(told.output, InferenceEnded)
        ]
        return found[-1] if found else None

    def _deal_for(self, data_owner: str, session: bytes, now: float) -> InferenceDealer:
        return InferenceDealer(
            DEALER,
            self.roster,
            data_owner=data_owner,
            session=session,
            entropy=self.entropy,
            patience=PATIENCE,
            now=now,
        )

    def _addressed(self, parcel: Parcel) -> list[Owner]:
        """Whom a message of the dealer is for: the session says which; one that cannot be read is for all."""
        owners = [owner for owner in (*self.served.values(), *self.owners.values()) if owner.name == parcel.receiver]
        try:
            session = parcel.packet.envelope.session
        except RemoteProtocolError:
            return owners
        return [owner for owner in owners if owner.session == session] if len(owners) > 1 else owners

    def verdicts(self, *, unheard: bool = False) -> set[tuple[Code | None, str]]:
        """The codes and culprits that all exchanges ended with. RuntimeError if one is not over, or has a deadline.

        unheard: the dealer may not have heard that both owners are done; it keeps a session while it has their links.
        """
        for _, machine in self.living():
            over = machine.state.name in ("CLOSED", "ABORTED") or (unheard and machine.state is DealerState.SERVING)
            if not over or machine.deadline is not None:
                raise RuntimeError(f"{type(machine).__name__} is in state {machine.state.name}")
        return {(ended.code, ended.culprit) for ended in self.outcome(InferenceEnded)}

    def living(self) -> Iterator[tuple[Callable[[list[Output]], None], Machine[Any]]]:
        """Every machine of a party that lives, with what to do with its outputs."""
        for owner in (*self.served.values(), *self.owners.values()):
            if owner.name not in self.dead:
                for side, machine in owner.machines():
                    yield partial(owner.tell, side), machine
        if DEALER not in self.dead:
            for dealer in self.dealers.sessions.values():
                yield partial(self.emit, dealer), dealer
