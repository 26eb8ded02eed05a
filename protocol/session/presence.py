"""Who is there in a session, as its server sees it: who has a link, whose link is lost for the moment, who is barred.

A member is there from its hello on; a lost link has a grace before it counts as gone. When it comes back the
conversation goes on, if nothing was lost; else the member is gone, and may say hello. Who is barred is not heard again.

A hello is answered with the whole configuration, so a member has a few of them, and gets one back from time to time.
One too many is no offence, a link that comes and goes looks the same: it waits for its turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from tacit.protocol.core.codec import Frame, Packet, decode
from tacit.protocol.core.link import NO_SESSION, Link, Traffic
from tacit.protocol.core.members import encode_members
from tacit.protocol.core.messages import Message
from tacit.protocol.core.outputs import Transmit
from tacit.protocol.session.messages import MESSAGES, Hello

HELLOS: Final = 5
"""Hellos of a member that are answered at once."""
HELLO_SECONDS: Final = 10
"""After so many seconds a member has one of them back."""


class Presence:
    """The clients of a session. grace: seconds for a lost link to come back."""

    def __init__(self, own: str, clients: tuple[str, ...], session: bytes, grace: float) -> None:
        self.traffic = Traffic()
        self.barred: set[str] = set()
        self.grace = grace
        self._own = own
        self._clients = clients
        self.session = session
        self._links: dict[str, Link] = {}
        self._lost: dict[str, float] = {}
        """Until when lost links may come back."""
        self._greeted: dict[str, float] = {}
        """By member, when it has all its hellos back."""
        self._waiting: dict[str, float] = {}
        """When hellos that wait are answered."""

    def __contains__(self, member: str) -> bool:
        return member in self._links

    @property
    def members(self) -> tuple[str, ...]:
        """Everybody with a conversation, in the order of their hellos."""
        return tuple(self._links)

    @property
    def there(self) -> tuple[str, ...]:
        """Everybody with a conversation and a link, in the order of the roster."""
        return tuple(name for name in self._clients if name in self._links and name not in self._lost)

    @property
    def possible(self) -> tuple[str, ...]:
        """Everybody who can be there at all, in the order of the roster."""
        return tuple(name for name in self._clients if name not in self.barred)

    def deadlines(self) -> Iterable[float]:
        """When links that are lost count as gone, and when hellos that wait are answered."""
        return *self._lost.values(), *self._waiting.values()

    def overdue(self, now: float) -> list[str]:
        """Whose grace is over."""
        return [member for member, until in self._lost.items() if now >= until]

    def heard(self, sender: str) -> bool:
        """Whether what this party says matters at all."""
        return sender in self._clients and sender not in self.barred

    def turn(self, member: str, now: float) -> float:
        """When a hello of this member may be answered."""
        return max(now, self._greeted.get(member, now) - (HELLOS - 1) * HELLO_SECONDS)

    def wait(self, member: str, until: float) -> None:
        """The hello of a member, whose conversation is over, waits for its turn."""
        self._waiting[member] = until

    def waited(self, now: float) -> list[str]:
        """Whose turn has come."""
        return [member for member, until in self._waiting.items() if now >= until]

    def join(self, member: str, now: float) -> None:
        """A member begins its conversation, or begins it anew."""
        self._lost.pop(member, None)
        self._waiting.pop(member, None)
        self._greeted[member] = max(now, self._greeted.get(member, now)) + HELLO_SECONDS
        self._links[member] = self._link(member, self.session)

    def leave(self, member: str) -> bool:
        """A member is gone; whether it was there."""
        self._lost.pop(member, None)
        self._waiting.pop(member, None)
        return self._links.pop(member, None) is not None

    def link_lost(self, member: str, now: float) -> None:
        """The link to a member is down; the grace begins."""
        if member in self._links:
            self._lost[member] = now + self.grace
            self._links[member].broken = True

    def link_back(self, member: str) -> None:
        """The link is up again."""
        self._lost.pop(member, None)

    def end(self) -> None:
        """Nobody is waited for any more."""
        self._lost, self._waiting = {}, {}

    def read(self, sender: str, frames: Sequence[Frame]) -> Packet | None:
        """The next message of a member; None from who has not said hello."""
        packet = decode(frames, MESSAGES)
        if packet.kind is Hello:
            if sender in self._links:
                # A hello ends the conversation before it, also one that is refused: its sender expects a first answer.
                self._links[sender] = self._link(sender, self.session)
            return self._link(sender, NO_SESSION).accept(packet)
        return self._links[sender].accept(packet) if sender in self._links else None

    def transmit(self, member: str, message: Message, *, round: int, payload: Frame | None = None) -> Transmit:
        """A message on its way to a member; on a link of its own, if that has no conversation."""
        link = self._links.get(member) or self._link(member, self.session)
        return link.transmit(message, round=round, payload=payload)

    def bitmap(self, names: Iterable[str]) -> bytes:
        """These clients, over those of the roster in its order."""
        return encode_members([self._clients.index(name) for name in names], len(self._clients))

    def _link(self, member: str, session: bytes) -> Link:
        return Link(self._own, member, session, self.traffic, MESSAGES)
