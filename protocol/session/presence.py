"""Who is there in a session, as its server sees it: who has a link, whose link is lost for the moment, who is barred.

A member is there from its hello on; a lost link has a grace before it counts as gone. When it is back the member asks
to go on with the conversation, and is told what it missed. Who is barred is not heard again.

A hello is answered with the whole configuration, and who goes on is told much again. So a member has a few answers of
either kind, and gets one back from time to time. One too many is no offence: it waits for its turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from tacit.protocol.core.codec import Envelope, Frame, Packet, decode
from tacit.protocol.core.errors import Code
from tacit.protocol.core.link import NO_SESSION, Link, Traffic
from tacit.protocol.core.members import encode_members
from tacit.protocol.core.messages import Abort, Message, Resume
from tacit.protocol.core.outputs import Transmit
from tacit.protocol.session.messages import MESSAGES, Hello

HELLOS: Final = 5
"""Hellos and resumptions of a member that are answered at once."""
HELLO_SECONDS: Final = 10
"""After so many seconds a member has one of them back."""


class Presence:
    """The clients of a session. grace: seconds for a lost link to come back."""

    def __init__(self, own: str, clients: tuple[str, ...], session: bytes, grace: float) -> None:
        self.traffic = Traffic()
        self.barred: set[str] = set()
        self.missing: frozenset[str] = frozenset()
        """Who will not come, as somebody knows who starts them all."""
        self.grace = grace
        self._own = own
        self._clients = clients
        self.session = session
        self._links: dict[str, Link] = {}
        self.over = False
        """Whether the session has ended: who asks to go on is told the end, and nobody else is heard."""
        self._lost: dict[str, float] = {}
        """Until when lost links may come back."""
        self._greeted: dict[str, float] = {}
        """By member, when it has all its hellos back."""
        self._waiting: dict[str, float] = {}
        """When hellos and resumptions that wait are answered."""
        self._numbers: dict[str, int] = {}
        """Of the links that members said hello on."""
        self._asked: dict[str, Envelope] = {}
        """Which conversations members asked to go on with, the last time."""

    def __contains__(self, member: str) -> bool:
        return member in self._links

    @property
    def members(self) -> tuple[str, ...]:
        """Everybody with a conversation, in the order of their hellos."""
        return tuple(self._links)

    @property
    def there(self) -> tuple[str, ...]:
        """Everybody with a conversation, in the order of the roster."""
        return tuple(name for name in self._clients if name in self._links)

    @property
    def linked(self) -> tuple[str, ...]:
        """Those of them whose link is not lost for the moment."""
        return tuple(name for name in self.there if name not in self._lost)

    @property
    def untold(self) -> bool:
        """Whether the session has ended, and somebody may still come back to be told so."""
        return self.over and bool(self._lost)

    @property
    def possible(self) -> tuple[str, ...]:
        """Everybody who can be there at all, in the order of the roster."""
        return tuple(name for name in self._clients if name not in self.barred | self.missing)

    def deadlines(self) -> Iterable[float]:
        """When links that are lost count as gone, and when members that wait are answered."""
        return *self._lost.values(), *self._waiting.values()

    def overdue(self, now: float) -> list[str]:
        """Whose grace is over."""
        return [member for member, until in self._lost.items() if now >= until]

    def heard(self, sender: str) -> bool:
        """Whether what this party says matters at all."""
        return sender in self._clients and sender not in self.barred

    def turn(self, member: str, now: float) -> float:
        """When a hello or a resumption of this member may be answered."""
        return max(now, self._greeted.get(member, now) - (HELLOS - 1) * HELLO_SECONDS)

    def wait(self, member: str, until: float) -> None:
        """The hello of a member, whose conversation is over, or its resumption, waits for its turn."""
        self._waiting[member] = until

    def waited(self, now: float) -> list[str]:
        """Whose turn has come."""
        return [member for member, until in self._waiting.items() if now >= until]

    def spend(self, member: str, now: float) -> None:
        """One of its answers."""
        self._waiting.pop(member, None)
        self._greeted[member] = max(now, self._greeted.get(member, now)) + HELLO_SECONDS

    def join(self, member: str, now: float) -> None:
        """A member begins its conversation, or begins it anew."""
        self._lost.pop(member, None)
        self.spend(member, now)
        self._links[member] = self._link(member)

    def asks(self, member: str, asked: Envelope) -> bool:
        """Whether this was a member's last word about going on, and fits its conversation."""
        return self._asked.get(member) is asked

    def go_on(self, member: str, now: float) -> list[Transmit] | None:
        """Go on with a member that asked: what it missed, or None if that is not kept any more."""
        self._lost.pop(member, None)
        self.spend(member, now)
        return self._links[member].answer()

    def refuse(self, member: str, detail: str, asked: Envelope | None = None) -> Transmit:
        """The answer to a member whose conversation cannot go on, as the next message that it expects."""
        asked = self._asked[member] if asked is None else asked
        link = self._link(member, asked.session, number=asked.link, said=asked.received)
        return link.transmit(Abort(code=Code.LEFT, detail=detail, culprit=member), round=0)

    def leave(self, member: str) -> bool:
        """A member is gone; whether it was there."""
        self._lost.pop(member, None)
        self._waiting.pop(member, None)
        return self._links.pop(member, None) is not None

    def link_lost(self, member: str, now: float) -> None:
        """The link to a member is down; the grace begins."""
        if member in self._links and not self.over:
            self._lost[member] = now + self.grace
            self._links[member].broken = True

    def link_back(self, member: str) -> None:
        """The link is up again. At the end of the session that is not enough, until the member goes on."""
        if not self.over:
            self._lost.pop(member, None)

    def end(self) -> None:
        """Nobody is waited for any more, but members who miss the end because their links are lost for the moment."""
        self.over, self._waiting = True, {}

    def read(self, sender: str, frames: Sequence[Frame]) -> Packet | None:
        """The next message of a member; None from who has not said hello, and of what comes too late to matter."""
        packet = decode(frames, MESSAGES)
        envelope, link = packet.envelope, self._links.get(sender)
        if self.over and packet.kind is not Resume:
            return None
        if packet.kind is Hello:
            self._numbers[sender] = envelope.link
            if link is not None:
                # A hello ends the conversation before it, also one that is refused: its sender expects a first answer.
                self._links[sender] = self._link(sender)
            return self._link(sender, NO_SESSION).accept(packet)
        if packet.kind is Resume:
            if link is None or not link.may_be_asked(envelope):
                # Of another conversation than it has here, if any.
                return self._link(sender, envelope.session).of_peer(packet)
            if not link.late(packet):
                self._asked[sender] = link.asked(packet).envelope
                return packet
        if link is None or link.late(packet):
            return None
        link.accept(packet)
        link.check_heard(envelope.round)
        return packet

    def transmit(self, member: str, message: Message, *, round: int, payload: Frame | None = None) -> Transmit:
        """A message on its way to a member; on a link of its own, if that has no conversation."""
        link = self._links.get(member) or self._link(member)
        return link.transmit(message, round=round, payload=payload)

    def bitmap(self, names: Iterable[str]) -> bytes:
        """These clients, over those of the roster in its order."""
        return encode_members([self._clients.index(name) for name in names], len(self._clients))

    def _link(self, member: str, session: bytes | None = None, number: int | None = None, said: int = 0) -> Link:
        number = self._numbers.get(member, 0) if number is None else number
        session = self.session if session is None else session
        return Link(self._own, member, session, self.traffic, MESSAGES, number=number, said=said)
