"""Which links a server has open, to whom, and which of a member's several links messages to it take: the newest."""

from collections.abc import Callable

from tacit.parties.links.endpoint import Event, LinkLost, LinkUp, NotConnectedError


class LinkBook:
    """Links by their routing ids; reports LinkUp and LinkLost as members come and go."""

    def __init__(self, report: Callable[[Event], None]) -> None:
        self._report = report
        self._members: dict[bytes, str] = {}
        """All open links, oldest first."""
        self._current: dict[str, bytes] = {}

    def __contains__(self, link: bytes) -> bool:
        return link in self._members

    def current(self, name: str) -> bytes:
        """The link that messages to this member take. Raises NotConnectedError when it has none."""
        try:
            return self._current[name]
        except KeyError:
            raise NotConnectedError(f"{name!r} has no link at the moment; it has to connect again") from None

    def open(self, link: bytes, name: str) -> None:
        """A link was opened; it takes the place of an older one of this member."""
        self._members[link] = name
        if name in self._current:
            self._report(LinkLost(name))
        self._current[name] = link
        self._report(LinkUp(name))

    def end(self, link: bytes) -> None:
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
