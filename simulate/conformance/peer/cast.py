"""Our parties in a conformance case, from a world in memory, with links to the live party; and their files.

docs/conformance.md lists the files of the kit's directory. Our messages for the live party leave the world through
`relay`, which may alter them. No time passes in the world: the kit has its own deadline for any sign of the live party.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from tacit.parties.links.client_endpoint import ClientEndpoint
from tacit.parties.links.endpoint import EndpointError, Event, Limits, NotConnectedError, PeerStalledError, Received
from tacit.parties.links.keys import PartyKeys, load
from tacit.parties.links.roster import read_roster
from tacit.parties.links.server_endpoint import ServerEndpoint
from tacit.protocol.core.codec import Envelope, Frame, decode_structure
from tacit.protocol.core.errors import RemoteProtocolError
from tacit.protocol.core.link import Link
from tacit.protocol.core.messages import BODY_LIMIT, Kinds, Message
from tacit.protocol.core.primitives import SigningKey
from tacit.protocol.core.roster import Member, Roster
from tacit.protocol.inference.messages import TERMS_LIMIT
from tacit.protocol.session.messages import MESSAGES
from tacit.protocol.sum.configuration import Configuration
from tacit.simulate.conformance.peer.script import PeerError, PeerVerdict, Saying, with_received
from tacit.simulate.world.federation import small_configuration
from tacit.simulate.world.world import Parcel, World

T = TypeVar("T", bound=msgspec.Struct)
ROSTER_FILE, CONFIGURATION_FILE, TERMS_FILE = "roster.toml", "configuration.msgpack", "terms.msgpack"


@dataclass(frozen=True)
class Keyring:
    roster: Roster
    keys: dict[str, PartyKeys] = field(repr=False)
    directory: Path

    @property
    def signing(self) -> dict[str, SigningKey]:
        return {name: SigningKey(own.signing_secret) for name, own in self.keys.items()}

    @property
    def ours(self) -> tuple[str, ...]:
        return tuple(name for name in self.roster.clients if name in self.keys)


def read_keyring(directory: Path, *, fewest: int) -> Keyring:
    """Read the roster, with enough clients for the scripts, and every key file. Raises RosterFileError, KeyFileError or
    PeerError."""
    roster = read_roster(directory / ROSTER_FILE)
    keys = {}
    for path in sorted(directory.glob("*.key")):
        own = load(path)
        members = {member.name: member for member in roster.members}
        if own.name not in members or own.member(members[own.name].role) != members[own.name]:
            raise PeerError(f"{path}: {ROSTER_FILE} has no {own.name!r} with these keys; use the files that fit it")
        keys[own.name] = own
    if len(roster.clients) < fewest:
        raise PeerError(f"{directory / ROSTER_FILE}: {len(roster.clients)} clients; the scripts need {fewest} or more")
    return Keyring(roster, keys, directory)


def needed(keyring: Keyring, *names: str, clients: int = 0) -> None:
    """Check that we have the keys of these members, and of so many clients. Raises PeerError."""
    for name in names:
        if name not in keyring.keys:
            raise PeerError(f"{keyring.directory}: {name}.key is missing; put the keys of everybody that we play there")
    if len(keyring.ours) < clients:
        raise PeerError(
            f"{keyring.directory}: keys of {len(keyring.ours)} clients of the roster; put the .key files of {clients} "
            "or more there"
        )


def live_client(keyring: Keyring) -> str:
    """Return the one client that we do not play, and which is under test. Raises PeerError."""
    others = [name for name in keyring.roster.clients if name not in keyring.keys]
    if len(others) != 1:
        raise PeerError(
            f"{keyring.directory}: the clients without a .key file here are {', '.join(others) or 'none'}; to test a "
            "client, put the keys of all others here and not its own"
        )
    return others[0]


def offer(keyring: Keyring, otherwise: T) -> T:
    remedy = "write the encoding of terms that a model owner sends in inference-terms"
    return _read(keyring, TERMS_FILE, type(otherwise), TERMS_LIMIT, remedy) or otherwise


def proposal(keyring: Keyring) -> Configuration:
    clients, path = len(keyring.roster.clients), keyring.directory / CONFIGURATION_FILE
    remedy = "write the encoding that a server sends in its welcome"
    configuration = _read(keyring, CONFIGURATION_FILE, Configuration, BODY_LIMIT, remedy)
    if configuration is None:
        return small_configuration(clients, graph="complete")
    try:
        configuration.packing()
        complete = configuration.parameters(clients).neighbours == clients - 1
    except ValueError as error:
        raise PeerError(f"{path}: {error}; {remedy}") from None
    if not configuration.active or not complete or configuration.threshold or configuration.clients < clients:
        raise PeerError(
            f"{path}: use mode = active, graph = complete, threshold = 0, and clients = {clients} or more: "
            "the scripts are written for these"
        )
    return configuration


def _read(keyring: Keyring, name: str, kind: type[T], limit: int, remedy: str) -> T | None:
    path = keyring.directory / name
    try:
        return decode_structure(path.read_bytes(), kind, limit=limit) if path.exists() else None
    except OSError as error:
        raise PeerError(f"{path}: cannot be read: {error.strerror}") from error
    except RemoteProtocolError as error:
        raise PeerError(f"{path}: {error.detail}; {remedy}") from None


Arrivals = asyncio.Queue[tuple[str, Event | EndpointError]]
"""Keyed by name of our party."""


class Line:
    """Link of one of our parties to the live one, which can be closed and reopened. make: opens an endpoint."""

    def __init__(self, own: str, live: str, make: Callable[[], Awaitable[ClientEndpoint | ServerEndpoint]]) -> None:
        self.own = own
        self.endpoint: ClientEndpoint | ServerEndpoint | None = None
        self._live = live
        self._make = make
        self._receiver: asyncio.Task[None] | None = None

    async def open(self, arrivals: Arrivals) -> None:
        if self.endpoint is None:
            self.endpoint = await self._make()
            self._receiver = asyncio.create_task(self._receive(self.endpoint, arrivals))

    async def close(self) -> None:
        if self.endpoint is None or self._receiver is None:
            return
        self._receiver.cancel()
        await asyncio.gather(self._receiver, return_exceptions=True)
        await self.endpoint.close()
        self.endpoint = None

    async def send(self, frames: Sequence[Frame]) -> None:
        """Send the frames if the peer is still there: it may leave after refusing the first of several messages."""
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
    return lambda: ClientEndpoint.connect(address, keys=keys, server=live, limits=limits, connect_deadline=wait)


def listening(
    keys: PartyKeys, roster: Roster, address: str, limits: Limits | None = None
) -> Callable[[], Awaitable[ServerEndpoint]]:
    return lambda: ServerEndpoint.bind(address, keys=keys, roster=roster, limits=limits)


class Cast:
    """Plays cases one after the other. live: the party under test; wait: seconds for any message from it."""

    def __init__(self, live: str, lines: Iterable[Line], *, wait: float) -> None:
        self.live = live
        self.lines = {line.own: line for line in lines}
        self.wait = wait
        self._arrivals: Arrivals = asyncio.Queue()

    def kinds(self, own: str) -> Kinds:
        return MESSAGES

    async def play(self, case: Any) -> PeerVerdict:
        """Tell the lie of the case, and observe the reaction. EndpointError if the live party is out of reach."""
        raise NotImplementedError

    async def take(self, own: str, event: Event) -> None:
        if not isinstance(event, Received) or event.sender != self.live:
            return
        parcel, envelope, message = with_received(Parcel(self.live, own, event.frames, self.kinds(own)), 0), None, None
        with contextlib.suppress(RemoteProtocolError):
            packet = parcel.packet
            envelope = packet.envelope
            message = packet.parse()
        await self.hear(parcel, envelope, message)

    async def hear(self, parcel: Parcel, envelope: Envelope | None, message: Message | None) -> None:
        """Handle a message from the live party to one of ours. envelope, message: None if unreadable."""
        raise NotImplementedError

    async def relay(self, parcel: Parcel) -> None:
        """Send one of our parties' messages to the live one, or the lie in its place."""
        raise NotImplementedError

    async def open(self) -> None:
        for line in self.lines.values():
            await line.open(self._arrivals)

    async def close(self) -> None:
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
        world.advance()
        while world.due:
            await self.relay(world.due.pop(0))
            world.advance()

    async def say(self, said: Saying, link: Link) -> None:
        frames = said.frames(link)
        for _ in range(said.times):
            await self.lines[link.own].send(frames)
