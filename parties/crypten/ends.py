"""The two ends of a link, used without an event loop of the caller's.

CrypTen blocks, so its messages do too. The sockets, CURVE keys, ZAP allow-list and diagnoses are those of every other
link (client_endpoint.py, server_endpoint.py). An end has an event loop of its own, which opens the links and then
stands still: messages go straight through the socket, and the loop runs again only to learn that a link was lost.
While it stands still nobody is let in. An end is used by the thread that opened it, which must not run a loop itself.
"""

import asyncio
import math
import time
from collections import defaultdict, deque
from collections.abc import Collection, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final, NoReturn, Self, TypeVar

import zmq

from tacit.parties.crypten.errors import MpcError
from tacit.parties.links.client_endpoint import ClientEndpoint
from tacit.parties.links.endpoint import (
    Endpoint,
    EndpointError,
    HandshakeRefused,
    Limits,
    LinkLost,
    LinkUp,
    Received,
)
from tacit.parties.links.keys import PartyKeys
from tacit.parties.links.server_endpoint import ServerEndpoint, user_of
from tacit.protocol.core.roster import Roster

Frames = Sequence[memoryview]
EndT = TypeVar("EndT", bound="BlockingEnd")

CHUNK_BYTES: Final = 1 << 18
"""What a frame carries at most."""

# Messages that may wait in each direction. The parties of a computation proceed in step; a dealer may be ahead by this.
_QUEUE_MESSAGES = 16
# While waiting for a message, a lost link is looked for so often: a plain wait is faster than one for both.
_LOOK_SECONDS = 0.1
# What still comes when an end is shut is dropped, until nothing has come for so long, and for so long at most.
_QUIET_SECONDS = 0.1
_DROP_SECONDS = 3.0
# When one peer takes nothing: how long the last messages for the others have to leave.
_STALLED_LINGER_MS = 250
# Above the payload of a frame: its share of the header.
_SPARE_BYTES = 1_024


class BlockingEnd(Endpoint):
    """What both ends add to their endpoints."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._loop = asyncio.get_running_loop()
        self._inbox: defaultdict[str, deque[Frames]] = defaultdict(deque)
        self._lost: set[str] = set()
        # The same socket, called in another way; closing this view would close nothing.
        self._messages: zmq.Socket[bytes] = zmq.Socket.shadow(self._socket.underlying)
        self._messages.setsockopt(zmq.SNDTIMEO, int(self.patience * 1000))
        self._receive_ms = -1
        self._quiet = 0.0

    @property
    def patience(self) -> float:
        """Seconds that put() and take() wait for a peer."""
        return self._limits.send_seconds

    def put(self, peer: str, operation: str, frames: Sequence[bytes | memoryview]) -> None:
        """Queue a message; its frames are copied. MpcError when the peer does not take it."""
        try:
            self._messages.send_multipart([*self._route(peer), *frames])
        except zmq.Again:
            self._messages.setsockopt(zmq.LINGER, _STALLED_LINGER_MS)
            raise MpcError(
                peer, operation, f"it took no message for {self.patience:g} s; is it overloaded or stopped?"
            ) from None
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self._report_lost(peer, operation)

    def put_last(self, peer: str, frame: bytes) -> None:
        """Queue a message, unless the peer takes none at the moment or has gone."""
        self._quiet = _QUIET_SECONDS
        with suppress(zmq.ZMQError):
            self._messages.send_multipart([*self._route(peer), frame], zmq.DONTWAIT)

    def last(self, peer: str) -> memoryview:
        """The first frame of the latest message that is here from this peer; empty if there is none."""
        while self._collect(0):
            pass
        inbox = self._inbox[peer]
        return inbox[-1][0] if inbox else memoryview(b"")

    def take(self, peer: str, operation: str) -> Frames:
        """The peer's next message. MpcError when none comes, or the link is lost."""
        if not self.wait((peer,), self.patience):
            raise MpcError(
                peer,
                operation,
                f"nothing came for {self.patience:g} s, although its link is open: it is busy, stopped, or waits at "
                "another operation; see its log",
            )
        inbox = self._inbox[peer]
        return inbox.popleft() if inbox else self._report_lost(peer, operation)

    def wait(self, peers: Sequence[str], seconds: float) -> list[str]:
        """Those of these peers whose next message is here, else those whose link is lost; waits so long for one."""
        give_up = time.monotonic() + seconds
        while True:
            if present := [peer for peer in peers if self._inbox[peer]]:
                return present
            if self._collect(max(0.0, min(_LOOK_SECONDS, give_up - time.monotonic()))):
                continue
            if lost := [peer for peer in peers if peer in self._lost]:
                return lost
            self._loop.run_until_complete(self._follow_links())
            self._take_events()
            if time.monotonic() >= give_up and not self._lost.intersection(peers):
                return []

    def shut(self) -> None:
        """Let the last messages leave, for a few seconds at most, and free everything. Shutting twice is harmless."""
        if not self._loop.is_closed():
            # The kernel resets a connection that is closed with bytes unread, and forgets what it has not yet sent.
            give_up = time.monotonic() + _DROP_SECONDS
            while self._collect(self._quiet) and time.monotonic() < give_up:
                self._inbox.clear()
                self._quiet = _QUIET_SECONDS
            self._loop.run_until_complete(self.close())
            _end_loop(self._loop)

    def _collect(self, seconds: float) -> bool:
        """Take in one message, if one comes in this time."""
        milliseconds = math.ceil(seconds * 1000)
        if milliseconds != self._receive_ms:
            self._messages.setsockopt(zmq.RCVTIMEO, milliseconds)
            self._receive_ms = milliseconds
        try:
            frames = self._messages.recv_multipart(copy=False)
        except zmq.Again:
            return False
        self._sort_in(frames)
        return True

    def _take_events(self) -> None:
        """Take in what the endpoint has reported."""
        for event in self._pending:
            if isinstance(event, LinkLost):
                self._lost.add(event.peer)
            elif isinstance(event, Received):
                self._inbox[event.sender].append(event.frames)
        self._pending.clear()

    def _keep(self, peer: str, frames: list[memoryview]) -> None:
        # A single empty frame is the greeting of the transport.
        if len(frames) != 1 or frames[0].nbytes:
            self._inbox[peer].append(frames)

    def _report_lost(self, peer: str, operation: str) -> NoReturn:
        raise MpcError(peer, operation, "its link is lost: it has ended or cannot be reached; see its log, start again")

    def _route(self, peer: str) -> list[bytes]:
        """Frames in front of a message to this peer."""
        raise NotImplementedError

    def _sort_in(self, frames: list[zmq.Frame]) -> None:
        """Keep a message for whoever waits for its sender."""
        raise NotImplementedError


class DialledEnd(BlockingEnd, ClientEndpoint):
    """The end that connects: one link."""

    @classmethod
    def dial(cls, address: str, *, keys: PartyKeys, roster: Roster, server: str, patience: float) -> Self:
        """Open the link to the member `server`. MpcError, with the diagnosis, when it cannot be opened in time."""
        member, limits = roster.member(server), _limits(patience)
        opening = cls.connect(address, keys=keys, server=member, limits=limits, connect_deadline=patience)
        try:
            end = _run(opening)
        except EndpointError as error:
            raise MpcError(server, "connect", str(error)) from error
        end._take_events()
        return end

    def _route(self, peer: str) -> list[bytes]:
        return []

    def _sort_in(self, frames: list[zmq.Frame]) -> None:
        self._keep(self._server, [frame.buffer for frame in frames])


class ListeningEnd(BlockingEnd, ServerEndpoint):
    """The end that listens: one link to each of its peers, and to nobody else."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._peers: Collection[str] = arguments[-1]
        self._routes: dict[str, bytes] = {}
        self._names: dict[bytes, str] = {}

    @classmethod
    def listen(cls, address: str, *, keys: PartyKeys, roster: Roster, peers: Sequence[str], patience: float) -> Self:
        """Listen for these members; `.address` is the address in use. MpcError when the address cannot be used."""
        try:
            return _run(cls.bind(address, keys=keys, roster=roster, limits=_limits(patience), peers=peers))
        except EndpointError as error:
            raise MpcError(keys.name, "listen", str(error)) from error

    def accept(self) -> None:
        """Wait until every peer has its link; nobody is let in afterwards. MpcError names those who did not come."""
        self._loop.run_until_complete(self._gather())
        self._take_events()
        self._routes = {peer: self._links.current(peer) for peer in self._peers}
        self._names = {route: peer for peer, route in self._routes.items()}

    async def _gather(self) -> None:
        missing = set(self._peers)
        refused: list[str] = []
        try:
            async with asyncio.timeout(self.patience):
                while missing:
                    match await self.receive():
                        case LinkUp(peer):
                            missing.discard(peer)
                        case LinkLost(peer):
                            missing.add(peer)
                            self._inbox[peer].clear()
                        case Received(sender, frames):
                            self._inbox[sender].append(frames)
                        case HandshakeRefused(reason, key, address):
                            refused.append(f"{address or 'somebody'}: {reason}{f' ({key})' if key else ''}")
        except TimeoutError:
            turned_away = "; turned away: " + ", ".join(refused) if refused else ""
            raise MpcError(
                ", ".join(sorted(missing)),
                "accept",
                f"no link to {self.address} within {self.patience:g} s: is it started, with this address?{turned_away}",
            ) from None

    async def _accept(self, frames: list[zmq.Frame]) -> None:
        await super()._accept(frames)
        route, (name, _) = frames[0].bytes, user_of(frames[1])
        current = route in self._links and route == self._links.current(name)
        # What an earlier link of the same member has left behind would be taken for the beginning of this one.
        if not current and self._pending and isinstance(self._pending[-1], Received):
            self._pending.pop()

    def _route(self, peer: str) -> list[bytes]:
        return [self._routes[peer]]

    def _sort_in(self, frames: list[zmq.Frame]) -> None:
        peer = self._names.get(frames[0].bytes)
        if peer is not None:
            self._keep(peer, [frame.buffer for frame in frames[1:]])


def _limits(patience: float) -> Limits:
    return Limits(max_frame_bytes=CHUNK_BYTES + _SPARE_BYTES, queue_messages=_QUEUE_MESSAGES, send_seconds=patience)


def _run(opening: Coroutine[Any, Any, EndT]) -> EndT:
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(opening)
    except BaseException:
        _end_loop(loop)
        raise


def _end_loop(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
