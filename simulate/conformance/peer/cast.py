"""Our parties, which are those of a world in memory, and their links to the live one.

What one of ours has for the live party leaves the world by way of `relay`, which may bend it; what comes over the links
is heard one after the other. No time passes in the world: the kit has a deadline of its own, for any sign of the live
party.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from tacit.parties.links.client_endpoint import ClientEndpoint
from tacit.parties.links.endpoint import EndpointError, Event, Limits, NotConnectedError, PeerStalledError, Received
from tacit.parties.links.keys import PartyKeys
from tacit.parties.links.server_endpoint import ServerEndpoint
from tacit.protocol.core.codec import Envelope, Frame
from tacit.protocol.core.errors import RemoteProtocolError
from tacit.protocol.core.link import Link
from tacit.protocol.core.messages import Kinds, Message
from tacit.protocol.core.roster import Member, Roster
from tacit.protocol.session.messages import MESSAGES
from tacit.simulate.conformance.peer.script import PeerVerdict, Saying, with_received
from tacit.simulate.world.network import Parcel
from tacit.simulate.world.world import World

Arrivals = asyncio.Queue[tuple[str, Event | EndpointError]]
"""By whom of ours."""


class Line:
    """The link of one of ours to the live party, which can be closed and opened again. make: opens an endpoint."""

    def __init__(self, own: str, live: str, make: Callable[[], Awaitable[ClientEndpoint | ServerEndpoint]]) -> None:
        self.own = own
        self.endpoint: ClientEndpoint | ServerEndpoint | None = None
        self._live = live
        self._make = make
        self._receiver: asyncio.Task[None] | None = None

    async def open(self, arrivals: Arrivals) -> None:
        """Open it unless it is open. Raises EndpointError."""
        if self.endpoint is None:
            self.endpoint = await self._make()
            self._receiver = asyncio.create_task(self._receive(self.endpoint, arrivals))

    async def close(self) -> None:
        """Close it; closing twice is harmless."""
        if self.endpoint is None or self._receiver is None:
            return
        self._receiver.cancel()
        await asyncio.gather(self._receiver, return_exceptions=True)
        await self.endpoint.close()
        self.endpoint = None

    async def send(self, frames: Sequence[Frame]) -> None:
        """Say this, if anybody is there to hear it: who refuses the first of several messages may have gone."""
        with contextlib.suppress(NotConnectedError, PeerStalledError):
            if isinstance(self.endpoint, ServerEndpoint):
                await self.endpoint.send(self._live, frames)
            elif self.endpoint is not None:
                await self.endpoint.send(frames)

    async def _receive(self, endpoint: ClientEndpoint | ServerEndpoint, arrivals: Arrivals) -> None:
        try:
            while True:
                arrivals.put_nowait((self.own, await endpoint.receive()))
        except EndpointError as error:
            arrivals.put_nowait((self.own, error))


def connecting(
    keys: PartyKeys, live: Member, address: str, wait: float, limits: Limits | None = None
) -> Callable[[], Awaitable[ClientEndpoint]]:
    """Opens a link to a live party that listens."""
    return lambda: ClientEndpoint.connect(address, keys=keys, server=live, limits=limits, connect_deadline=wait)


def listening(
    keys: PartyKeys, roster: Roster, address: str, limits: Limits | None = None
) -> Callable[[], Awaitable[ServerEndpoint]]:
    """Opens an end at which the live party finds us."""
    return lambda: ServerEndpoint.bind(address, keys=keys, roster=roster, limits=limits)


class Cast:
    """Plays cases one after the other. live: the party under test; wait: seconds for anything from it."""

    def __init__(self, live: str, lines: Iterable[Line], *, wait: float) -> None:
        self.live = live
        self.lines = {line.own: line for line in lines}
        self.wait = wait
        self._arrivals: Arrivals = asyncio.Queue()

    def kinds(self, own: str) -> Kinds:
        """The messages of the link of one of ours."""
        return MESSAGES

    async def play(self, case: Any) -> PeerVerdict:
        """Tell the lie of the case, and see what follows. Raises EndpointError when the live party is out of reach."""
        raise NotImplementedError

    async def take(self, own: str, event: Event) -> None:
        """Something has come over the link of one of ours."""
        if not isinstance(event, Received) or event.sender != self.live:
            return
        parcel, envelope, message = with_received(Parcel(self.live, own, event.frames, self.kinds(own)), 0), None, None
        with contextlib.suppress(RemoteProtocolError):
            packet = parcel.packet
            envelope = packet.envelope
            message = packet.parse()
        await self.hear(parcel, envelope, message)

    async def hear(self, parcel: Parcel, envelope: Envelope | None, message: Message | None) -> None:
        """The live party has said something to one of ours. envelope, message: None if they cannot be read."""
        raise NotImplementedError

    async def relay(self, parcel: Parcel) -> None:
        """Say what one of ours has for the live party, or what the lie makes of it."""
        raise NotImplementedError

    async def open(self) -> None:
        """Open all links that are not open."""
        for line in self.lines.values():
            await line.open(self._arrivals)

    async def close(self) -> None:
        """Close all links."""
        for line in self.lines.values():
            await line.close()

    async def listen(self, until: Callable[[], bool]) -> None:
        """Take part until this holds. TimeoutError if the live party is silent, EndpointError if it is gone."""
        while not until():
            async with asyncio.timeout(self.wait):
                own, event = await self._arrivals.get()
            if isinstance(event, EndpointError):
                raise event
            await self.take(own, event)

    async def go_on(self, world: World[Parcel]) -> None:
        """Let our parties talk until they wait for the live one."""
        world.advance()
        while world.due:
            await self.relay(world.due.pop(0))
            world.advance()

    async def say(self, said: Saying, link: Link) -> None:
        """Say this to the live party."""
        frames = said.frames(link)
        for _ in range(said.times):
            await self.lines[link.own].send(frames)
