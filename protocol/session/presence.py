"""Who is there in a session, as its server sees it: who has a link, whose link is lost for the moment, who is barred.

A member is there from its hello on; a lost link has a grace before it counts as gone. When it comes back the
conversation goes on, if nothing was lost; else the member is gone, and may say hello. Who is barred is not heard again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tacit.protocol.core.codec import Frame, Packet, decode
from tacit.protocol.core.link import NO_SESSION, Link, Traffic
from tacit.protocol.core.members import encode_members
from tacit.protocol.core.messages import Message
from tacit.protocol.core.outputs import Transmit
from tacit.protocol.session.messages import MESSAGES, Hello


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
        """When links that are lost count as gone."""
        return self._lost.values()

    def overdue(self, now: float) -> list[str]:
        """Whose grace is over."""
        return [member for member, until in self._lost.items() if now >= until]

    def heard(self, sender: str) -> bool:
        """Whether what this party says matters at all."""
        return sender in self._clients and sender not in self.barred

    def join(self, member: str) -> None:
        """A member begins its conversation, or begins it anew."""
        self._lost.pop(member, None)
        self._links[member] = self._link(member, self.session)

    def leave(self, member: str) -> bool:
        """A member is gone; whether it was there."""
        self._lost.pop(member, None)
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
        self._lost = {}

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
