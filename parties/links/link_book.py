"""Which links a server has open, to whom, and which of a member's several links messages to it take: the newest."""

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from tacit.parties.links.endpoint import Event, LinkLost, LinkUp, NotConnectedError

LinkT = TypeVar("LinkT", bound=Hashable)


class LinkBook(Generic[LinkT]):
    """Reports LinkUp and LinkLost as members come and go; LinkT is whatever tells links apart."""

    def __init__(self, report: Callable[[Event], None]) -> None:
        self._report = report
        self._members: dict[LinkT, str] = {}
        """All open links, oldest first."""
        self._current: dict[str, LinkT] = {}

    def __contains__(self, link: LinkT) -> bool:
        return link in self._members

    def links(self) -> tuple[LinkT, ...]:
        """All open links."""
        return tuple(self._members)

    def current(self, name: str) -> LinkT:
        """The link that messages to this member take. Raises NotConnectedError when it has none."""
        try:
            return self._current[name]
        except KeyError:
            raise NotConnectedError(f"{name!r} has no link at the moment; it has to connect again") from None

    def open(self, link: LinkT, name: str) -> None:
        """A link was opened; it takes the place of an older one of this member."""
        self._members[link] = name
        if name in self._current:
            self._report(LinkLost(name))
        self._current[name] = link
        self._report(LinkUp(name))

    def end(self, link: LinkT) -> None:
        """A link is gone; an older one of this member, if it has any, takes its place. Ending twice is harmless."""
        name = self._members.pop(link, None)
        if name is None or self._current[name] != link:
            return
        del self._current[name]
        self._report(LinkLost(name))
        older = next((other for other, member in self._members.items() if member == name), None)
        if older is not None:
            self._current[name] = older
            self._report(LinkUp(name))
