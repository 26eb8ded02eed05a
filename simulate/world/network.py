"""What is under way between the parties, on links that keep their order.

A link is one direction between two parties. What is sent over it arrives after a delay, and never before what was sent
earlier over the same link; between links anything may overtake. That much every connection does, and so may a link be
cut for a while, after which what waits arrives: machines must bear both. A transport that breaks its promise loses a
message, delivers it twice or out of turn; machines must notice that (Conduct).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from math import inf
from random import Random
from typing import Any, Final, Generic, Protocol, TypeVar

from msgspec import structs

from tacit.protocol.core.codec import Envelope, Frame, Packet, decode, encode
from tacit.protocol.core.messages import Kinds, Message
from tacit.protocol.session.messages import MESSAGES

Link = tuple[str, str]
"""Sender and receiver."""
Choice = Callable[[list[Link]], Link]
"""Of the links with something that can arrive now, in the order of sending: which delivers next."""


class Addressed(Protocol):
    """What can be under way."""

    @property
    def sender(self) -> str: ...

    @property
    def receiver(self) -> str: ...

    @property
    def kind(self) -> str:
        """Its type on the wire."""


Item = TypeVar("Item", bound=Addressed)


@dataclass(frozen=True)
class Parcel:
    """A message under way, as frames."""

    sender: str
    receiver: str
    frames: tuple[Frame, ...] = field(repr=False)
    kinds: Kinds = field(default_factory=lambda: MESSAGES, repr=False, compare=False)
    """What is spoken there."""

    @property
    def packet(self) -> Packet:
        """The envelope, read, and the body."""
        return decode(self.frames, self.kinds)

    @property
    def kind(self) -> str:
        """Its type on the wire."""
        return self.packet.envelope.type

    @property
    def message(self) -> Message:
        """The message."""
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
    """A parcel with this message; changes: fields of the envelope."""
    fields: dict[str, Any] = {"version": kinds.version, "type": message.TYPE, "sender": sender}
    return Parcel(sender, receiver, tuple(encode(message, Envelope(**(fields | changes)), payload)), kinds)


def altered(parcel: Parcel, *, message: Message | None = None, payload: Frame | None = None, **changes: Any) -> Parcel:
    """The parcel with another message, payload, or fields of the envelope."""
    packet = parcel.packet
    message = packet.parse() if message is None else message
    fields = structs.asdict(packet.envelope) | {"type": message.TYPE} | changes
    kept = packet.payload if payload is None and message.PAYLOAD else payload
    return replace(parcel, frames=tuple(encode(message, Envelope(**fields), kept)))


@dataclass(frozen=True, kw_only=True)
class Conduct:
    """How a network behaves. Faults are drawn for every message; their probabilities are between 0 and 1."""

    least_delay: float = 0.0
    """Seconds; delays are drawn uniformly between this and the most."""
    most_delay: float = 0.0
    loss: float = 0.0
    repetition: float = 0.0
    overtaking: float = 0.0
    """That a message arrives before the one sent before it over its link."""


CALM: Final = Conduct()
"""Everything arrives at once."""


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
        """Parties whose links are down: what is sent over them waits."""
        self.faults = 0
        """How many messages were lost, repeated or swapped."""
        self._random = random
        self._count = 0
        self._links: defaultdict[Link, list[_Sent[Item]]] = defaultdict(list)

    def send(self, item: Item, now: float) -> None:
        """Put something onto its link."""
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
        """What arrives next, by this time."""
        heads = sorted((queue[0].arrival, queue[0].number, link) for link, queue in self._open())
        due = [link for arrival, _, link in heads if arrival <= now]
        return self._links[self.choose(due)].pop(0).item if due else None

    def pull(self, sender: str, receiver: str) -> Item:
        """The next of this link, before its turn."""
        return self._links[sender, receiver].pop(0).item

    @property
    def next_arrival(self) -> float:
        """When something arrives next; infinity if nothing does."""
        return min((queue[0].arrival for _, queue in self._open()), default=inf)

    def under_way(self, *link: str) -> list[Item]:
        """What is under way, in the order of sending; link: on that one only."""
        queues = [self._links[link[0], link[1]]] if link else self._links.values()
        return [sent.item for sent in sorted((sent for queue in queues for sent in queue), key=lambda s: s.number)]

    def forget(self, gone: Callable[[Link], bool]) -> None:
        """What is under way on such links never arrives."""
        for link in filter(gone, self._links):
            self._links[link].clear()

    def _open(self) -> Iterator[tuple[Link, list[_Sent[Item]]]]:
        return ((link, queue) for link, queue in self._links.items() if queue and not self.cut & {*link})

    def _fault(self, probability: float) -> bool:
        happens = probability > 0 and self._random.random() < probability
        self.faults += happens
        return happens
