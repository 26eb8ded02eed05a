"""A deterministic world for machines: a clock, a network, processes that die and restart.

A run is a function of a seed and a schedule. All randomness comes from named streams of the seed, one for every party
and purpose, so that a party's draws do not depend on the timing of the others; keys too, which are for memory only.
Time stands still while something can be delivered or done, and then leaps to the next event.

A link is one direction between two parties. A message arrives after a delay, and never before an earlier one on the
same link; a link may be cut for a while. A transport that breaks its promise loses a message, delivers it twice or out
of turn; machines must notice that (Conduct).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from hashlib import shake_256
from heapq import heappop, heappush
from itertools import count
from math import inf
from random import Random
from typing import Any, Final, Generic, ParamSpec, Protocol, Self, TypeVar

from msgspec import structs

from tacit.protocol.core.codec import Envelope, Frame, Packet, decode, encode
from tacit.protocol.core.machine import Entropy, Machine, Output
from tacit.protocol.core.messages import Kinds, Message
from tacit.protocol.core.primitives import KEY_BYTES, SigningKey
from tacit.protocol.core.roster import Member, Role, Roster
from tacit.protocol.session.messages import MESSAGES
from tacit.simulate.world.disk import Killed, SimulatedDisk


class Streams:
    def __init__(self, seed: bytes) -> None:
        self._seed = seed
        self._streams: dict[str, Entropy] = {}

    def of(self, name: str) -> Entropy:
        """Return the stream of this name, which resumes where it was: n -> the next n bytes."""
        return self._streams.setdefault(name, self._stream(name))

    def random(self, name: str) -> Random:
        """Return a generator that follows from the seed and the name alone."""
        return Random(self._stream(name)(32))

    def _stream(self, name: str) -> Entropy:
        prefix, counter = len(name).to_bytes(8, "little") + name.encode() + self._seed, count()
        return lambda length: shake_256(prefix + next(counter).to_bytes(8, "little")).digest(length)


def new_members(
    roles: Mapping[str, Role], streams: Streams, groups: Mapping[str, int] | None = None
) -> tuple[Roster, dict[str, SigningKey]]:
    """Make a roster of these members, and their keys. groups: numbers of the clients' groups, if any."""
    signing = {name: SigningKey(streams.of(f"{name} signing")(KEY_BYTES)) for name in roles}
    curve = {name: streams.of(f"{name} curve")(KEY_BYTES) for name in roles}
    members = (
        Member(
            name=name,
            role=role,
            curve_public=curve[name],
            signing_public=signing[name].public,
            group=(groups or {}).get(name, 0),
        )
        for name, role in roles.items()
    )
    return Roster(tuple(members)), signing


Link = tuple[str, str]
Choice = Callable[[list[Link]], Link]
"""Chooses, among the links that can deliver now, in order of sending, the one that delivers next."""


class Addressed(Protocol):
    @property
    def sender(self) -> str: ...

    @property
    def receiver(self) -> str: ...

    @property
    def kind(self) -> str:
        """Message type on the wire."""


Item = TypeVar("Item", bound=Addressed)


@dataclass(frozen=True)
class Parcel:
    sender: str
    receiver: str
    frames: tuple[Frame, ...] = field(repr=False)
    kinds: Kinds = field(default_factory=lambda: MESSAGES, repr=False, compare=False)

    @property
    def packet(self) -> Packet:
        return decode(self.frames, self.kinds)

    @property
    def kind(self) -> str:
        return self.packet.envelope.type

    @property
    def message(self) -> Message:
        return self.packet.parse()


def written(
    sender: str,
    receiver: str,
    message: Message,
    *,
    payload: Frame | None = None,
    kinds: Kinds = MESSAGES,
    **changes: Any,
) -> Parcel:
    fields: dict[str, Any] = {"version": kinds.version, "type": message.TYPE, "sender": sender}
    return Parcel(sender, receiver, tuple(encode(message, Envelope(**(fields | changes)), payload)), kinds)


def altered(parcel: Parcel, *, message: Message | None = None, payload: Frame | None = None, **changes: Any) -> Parcel:
    packet = parcel.packet
    message = packet.parse() if message is None else message
    fields = structs.asdict(packet.envelope) | {"type": message.TYPE} | changes
    kept = packet.payload if payload is None and message.PAYLOAD else payload
    return replace(parcel, frames=tuple(encode(message, Envelope(**fields), kept)))


@dataclass(frozen=True, kw_only=True)
class Conduct:
    """Behaviour of a network. Faults are drawn for every message; their probabilities are between 0 and 1."""

    least_delay: float = 0.0
    """Seconds; delays are drawn uniformly between this and the most."""
    most_delay: float = 0.0
    loss: float = 0.0
    repetition: float = 0.0
    overtaking: float = 0.0
    """Probability that a message arrives before its predecessor on the link."""


CALM: Final = Conduct()


@dataclass
class _Sent(Generic[Item]):
    item: Item
    number: int
    arrival: float


class Network(Generic[Item]):
    """The links of one world; `conduct` and `choose` may be set at any time."""

    def __init__(self, random: Random) -> None:
        self.conduct = CALM
        self.choose: Choice = lambda links: links[0]
        """For schedules that are enumerated and not drawn."""
        self.cut: set[str] = set()
        """Parties whose links are down: messages over them wait."""
        self.faults = 0
        """Number of lost, repeated or swapped messages."""
        self._random = random
        self._count = 0
        self._links: defaultdict[Link, list[_Sent[Item]]] = defaultdict(list)

    def send(self, item: Item, now: float) -> None:
        """Put a message onto its link."""
        link, conduct = self._links[item.sender, item.receiver], self.conduct
        if self._fault(conduct.loss):
            return
        for _ in range(1 + self._fault(conduct.repetition)):
            earliest = link[-1].arrival if link else now
            delay = self._random.uniform(conduct.least_delay, conduct.most_delay) if conduct.most_delay else 0.0
            link.append(_Sent(item, self._count, max(earliest, now + delay)))
            self._count += 1
        if len(link) > 1 and self._fault(conduct.overtaking):
            link[-1].item, link[-2].item = link[-2].item, link[-1].item

    def take(self, now: float) -> Item | None:
        """Remove and return the next message that arrives by this time."""
        heads = sorted((queue[0].arrival, queue[0].number, link) for link, queue in self._open())
        due = [link for arrival, _, link in heads if arrival <= now]
        return self._links[self.choose(due)].pop(0).item if due else None

    def pull(self, sender: str, receiver: str) -> Item:
        return self._links[sender, receiver].pop(0).item

    @property
    def next_arrival(self) -> float:
        return min((queue[0].arrival for _, queue in self._open()), default=inf)

    def under_way(self, *link: str) -> list[Item]:
        queues = [self._links[link[0], link[1]]] if link else self._links.values()
        return [sent.item for sent in sorted((sent for queue in queues for sent in queue), key=lambda s: s.number)]

    def forget(self, gone: Callable[[Link], bool]) -> None:
        """Drop all messages in transit on such links."""
        for link in filter(gone, self._links):
            self._links[link].clear()

    def _open(self) -> Iterator[tuple[Link, list[_Sent[Item]]]]:
        return ((link, queue) for link, queue in self._links.items() if queue and not self.cut & {*link})

    def _fault(self, probability: float) -> bool:
        happens = probability > 0 and self._random.random() < probability
        self.faults += happens
        return happens


Kind = TypeVar("Kind")
Made = TypeVar("Made")
Settings = ParamSpec("Settings")


Timer = tuple[float | None, Callable[[], object]]
"""A deadline, and the machine's function for it."""


class World(Generic[Item]):
    """The machines of some parties."""

    def __init__(self, streams: Streams) -> None:
        self.now = 0.0
        self.streams = streams
        self.network: Network[Item] = Network(self.streams.random("network"))
        self.hook: Callable[[Item], Iterable[Item]] = lambda item: [item]
        """Sees every message before delivery, and returns the messages to deliver instead."""
        self.log: list[Item] = []
        """Delivered messages."""
        self.outputs: list[tuple[str, Output]] = []
        """Outputs that are no messages, by party."""
        self.dead: set[str] = set()
        """Parties that were killed, and not restarted."""
        self.outside = ""
        """A party outside of this world: messages delivered to it are `due`."""
        self.due: list[Item] = []
        self.disks: defaultdict[str, SimulatedDisk] = defaultdict(SimulatedDisk)
        self._agenda: list[tuple[float, int, Callable[[], object]]] = []
        self._entries = count()

    def make(
        self, name: str, kind: Callable[Settings, Made], /, *settings: Settings.args, **more: Settings.kwargs
    ) -> Made:
        """Make a machine. Every one is made here, so that a recorder sees it (tests/vectors_corpus/recorder.py).

        name: of its party, followed by a slash and the peer where a party has a machine for each peer.
        """
        return kind(*settings, **more)

    def timers(self) -> Iterator[Timer]:
        """Yield the timers of every machine of a living party."""
        raise NotImplementedError

    def hand_over(self, item: Item) -> list[Output]:
        """Feed a message to the machine of its receiver, and emit the outputs."""
        raise NotImplementedError

    def carried(self, party: str, output: Output) -> Item | None:
        raise NotImplementedError

    def act(self, party: str, output: Output) -> None:
        """Act as the shell of a party on an output that is no message."""

    def work(self) -> bool:
        """Do a shell's idle work; return whether there was any."""
        return False

    def at(self, time: float, act: Callable[[], object]) -> None:
        heappush(self._agenda, (time, next(self._entries), act))

    def advance(self, until: Callable[[], bool] = lambda: False) -> bool:
        """Deliver arriving messages until the condition holds; return whether it does. No time passes."""
        while not (reached := until()) and (item := self.network.take(self.now)) is not None:
            self.deliver(item)
        return reached

    def settle(self, until: float = inf) -> Self:
        """Deliver, work, and let time pass, until nothing is left to happen, or that time."""
        while True:
            self.advance()
            if self.work():
                continue
            deadlines = [deadline for deadline, _ in self.timers() if deadline is not None]
            times = [*deadlines, *(entry[0] for entry in self._agenda[:1]), self.network.next_arrival]
            if min(times) >= until:
                self.now = max(self.now, until) if until < inf else self.now
                return self
            self.now = max(self.now, min(times))
            due = []
            while self._agenda and self._agenda[0][0] <= self.now:
                due.append(heappop(self._agenda)[2])
            for act in due:
                act()
            self.advance()
            for deadline, expire in [*self.timers()]:
                if deadline is not None and deadline <= self.now:
                    expire()

    def deliver(self, item: Item) -> None:
        """Deliver a message now, after the hook has seen it."""
        for said in self.hook(item):
            self.put(said)

    def put(self, item: Item) -> list[Output]:
        """Deliver a message now, past the hook; return its receiver's outputs."""
        if {item.sender, item.receiver} & self.dead:
            return []
        if item.receiver == self.outside:
            self.due.append(item)
            return []
        self.log.append(item)
        return self.hand_over(item)

    def emit(self, party: str, outputs: list[Output]) -> list[Output]:
        """Send the messages and let the shell do the rest, in order; keep other outputs."""
        with self.process(party):
            for output in outputs:
                if party in self.dead:
                    break
                item = self.carried(party, output)
                if item is None:
                    self.outputs.append((party, output))
                    self.act(party, output)
                else:
                    self.network.send(item, self.now)
        return outputs

    @contextmanager
    def process(self, party: str) -> Iterator[None]:
        """Guard a process's actions: they stop where its disk kills it."""
        try:
            yield
        except Killed:
            self.kill(party)

    def tell_time(self, party: str, machine: Machine[Any]) -> None:
        self.emit(party, machine.expire(self.now))

    def kill(self, name: str) -> None:
        """Kill the process of a party, with all its messages in transit."""
        self.dead.add(name)
        self.network.forget(lambda link: name in link)

    def outcome(self, kind: type[Kind], party: str | None = None) -> list[Kind]:
        return [output for name, output in self.outputs if isinstance(output, kind) and party in (None, name)]

    def say_instead(self, kind: str, sender: str, make: Callable[[Any], Sequence[Any]], *, at: int | None = 0) -> None:
        """Replace this party's message of that kind, after earlier calls' changes.

        at: the first one, or the one after so many; None: all of them.
        """
        hook, said = self.hook, 0

        def say(original: Item) -> list[Item]:
            nonlocal said
            items: list[Item] = []
            for item in hook(original):
                meant = (item.kind, item.sender) == (kind, sender)
                items += make(item) if meant and at in (None, said) else [item]
                said += meant
            return items

        self.hook = say
