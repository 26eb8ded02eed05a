"""Both ends of links within one event loop, without ZeroMQ: for tests and for parties that share a process.

A MemoryNetwork is the world in which addresses mean something. A message goes straight into the inbox of its receiver,
which holds `Limits.queue_messages` of each peer; frames are passed on as they are, as views that cannot be written to.
No key is checked: a peer has the name in the keys that it connects with.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, Self, TypeVar

from tacit.parties.links.client_endpoint import UnreachableError
from tacit.parties.links.endpoint import (
    AddressError,
    Endpoint,
    Event,
    Limits,
    LinkLost,
    LinkUp,
    PeerStalledError,
    Received,
)
from tacit.parties.links.keys import PartyKeys
from tacit.parties.links.link_book import LinkBook
from tacit.protocol.core.roster import Member, Roster

Frames = Sequence[bytes | memoryview]


class Joining(Protocol):
    """A client that has, or wants, a link."""

    address: str

    @property
    def linked(self) -> bool:
        """Whether it has one."""


ServerT = TypeVar("ServerT")
ClientT = TypeVar("ClientT", bound=Joining)


class MemoryNetwork(Generic[ServerT, ClientT]):
    """Who listens where, and who wants a link there. Addresses are any strings."""

    def __init__(self) -> None:
        self.servers: dict[str, ServerT] = {}
        self.clients: list[ClientT] = []

    def join(self) -> None:
        """Link every client that has no link with the server at its address."""
        for client in self.clients:
            server: Any = self.servers.get(client.address)
            if server is not None and not client.linked:
                server.admit(client)


class Inbox(Protocol):
    """Where a message can be put."""

    bell: asyncio.Event

    def has_room(self, sender: str, messages: int) -> bool:
        """Whether fewer than so many messages of that peer are in it."""

    def take(self, sender: str, frames: Frames) -> None:
        """Put in a message."""


class MemoryEndpoint(Endpoint):
    """What both ends share: an inbox, and a bell that rings whenever something about this end changes."""

    def __init__(self, address: str, name: str, limits: Limits, network: MemoryNetwork[Any, Any]) -> None:
        super().__init__(address, limits)
        self.name = name
        self._network = network
        self.bell = asyncio.Event()
        self._order: dict[str, asyncio.Lock] = {}
        self._unread: Counter[str] = Counter()

    async def receive(self) -> Event:
        self._check_open()
        while not self._pending:
            await self.bell.wait()
            self._check_open()
        event = self._pending.popleft()
        if isinstance(event, Received):
            self._unread[event.sender] -= 1
            self._wake()
        return event

    def take(self, sender: str, frames: Frames) -> None:
        self._deliver(sender, [memoryview(frame).cast("B") for frame in frames])

    def has_room(self, sender: str, messages: int) -> bool:
        return self._unread[sender] < messages

    def _report(self, event: Event) -> None:
        if isinstance(event, Received):
            self._unread[event.sender] += 1
        super()._report(event)

    def _wake(self) -> None:
        # Everybody who waits now looks again; whoever waits later waits for the next time.
        self.bell.set()
        self.bell.clear()

    async def _send(self, receiver: str, frames: Frames, route: Callable[[], Inbox]) -> None:
        """Hand a message to the end that `route` names at that time, once it has room, in order of the calls."""
        self._check_outgoing(frames)
        async with self._order.setdefault(receiver, asyncio.Lock()):
            self._check_open()
            try:
                async with asyncio.timeout(self._limits.send_seconds):
                    while not (target := route()).has_room(self.name, self._limits.queue_messages):
                        await target.bell.wait()
                        self._check_open()
            except TimeoutError:
                raise PeerStalledError(
                    f"{receiver!r} at {self.address} took no message for {self._limits.send_seconds:g} s although its "
                    "queue is full; is it overloaded or stopped?"
                ) from None
            target.take(self.name, frames)
        self._count_sent(receiver, frames)


class MemoryServerEndpoint(MemoryEndpoint):
    """Accepts links from the clients of the roster. Made by bind(); closed by close() or `async with`."""

    def __init__(
        self, address: str, name: str, roster: Roster, limits: Limits, network: MemoryNetwork[Any, Any]
    ) -> None:
        super().__init__(address, name, limits, network)
        self._roster = roster
        self._links = LinkBook[MemoryClientEndpoint](self._report)

    @classmethod
    async def bind(
        cls,
        address: str,
        *,
        network: MemoryNetwork[Any, Any],
        keys: PartyKeys,
        roster: Roster,
        limits: Limits | None = None,
    ) -> Self:
        """Listen at this address. Raises AddressError when somebody else does."""
        if address in network.servers:
            raise AddressError(f"cannot listen at {address}: another endpoint does; use another address")
        endpoint = network.servers[address] = cls(address, keys.name, roster, limits or Limits(), network)
        network.join()
        return endpoint

    async def send(self, name: str, frames: Frames) -> None:
        """As ServerEndpoint.send()."""
        self._roster.member(name)
        await self._send(name, frames, lambda: self._links.current(name))

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        del self._network.servers[self.address]
        for client in self._links.links():
            client.lose()
        self._wake()

    def admit(self, client: "MemoryClientEndpoint") -> None:
        """Open the link that a client wants; who is not in the roster gets no answer."""
        if client.name in self._roster.clients:
            self._links.open(client, client.name)
            client.gain(self)

    def dismiss(self, client: "MemoryClientEndpoint") -> None:
        """The client has closed its end."""
        self._links.end(client)


class MemoryClientEndpoint(MemoryEndpoint):
    """A link to one server. Made by connect(); closed by close() or `async with`."""

    def __init__(self, address: str, name: str, server: str, limits: Limits, network: MemoryNetwork[Any, Any]) -> None:
        super().__init__(address, name, limits, network)
        self._server = server
        self._held = _Held(self.bell)
        self._link: MemoryServerEndpoint | None = None

    @classmethod
    async def connect(
        cls,
        address: str,
        *,
        network: MemoryNetwork[Any, Any],
        keys: PartyKeys,
        server: Member,
        limits: Limits | None = None,
        connect_deadline: float = 30.0,
    ) -> Self:
        """As ClientEndpoint.connect(); the only failure is UnreachableError."""
        endpoint = cls(address, keys.name, server.name, limits or Limits(), network)
        network.clients.append(endpoint)
        network.join()
        try:
            async with asyncio.timeout(connect_deadline):
                while not endpoint.linked:
                    await endpoint.bell.wait()
        except TimeoutError:
            await endpoint.close()
            raise UnreachableError(f"nobody who knows {keys.name!r} listens at {address}: start the server") from None
        except BaseException:
            await endpoint.close()
            raise
        return endpoint

    @property
    def linked(self) -> bool:
        """Whether there is a link now."""
        return self._link is not None

    async def send(self, frames: Frames) -> None:
        """As ClientEndpoint.send()."""
        await self._send(self._server, frames, lambda: self._link or self._held)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._network.clients.remove(self)
        if self._link is not None:
            self._link.dismiss(self)
        self._wake()

    def gain(self, server: MemoryServerEndpoint) -> None:
        """The link is there: what was held for it goes on its way."""
        self._link = server
        self._report(LinkUp(self._server))
        for frames in self._held.release():
            server.take(self.name, frames)

    def lose(self) -> None:
        """The server has closed its end."""
        self._link = None
        self._report(LinkLost(self._server))


class _Held:
    """Messages of a client that has no link."""

    def __init__(self, bell: asyncio.Event) -> None:
        self.bell = bell
        self._messages: list[Frames] = []

    def has_room(self, sender: str, messages: int) -> bool:
        return len(self._messages) < messages

    def take(self, sender: str, frames: Frames) -> None:
        self._messages.append(frames)

    def release(self) -> list[Frames]:
        """Everything, once."""
        messages, self._messages = self._messages, []
        return messages
