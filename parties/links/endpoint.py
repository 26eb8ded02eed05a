"""Common parts of both ends of a link: addresses, limits, events, errors, and the loop that merges messages and events.

A link is one connection, over TCP or a Unix domain socket (ipc), under CURVE. This module knows no protocol: a message
is a tuple of frames. A message whose first frame is empty is a greeting of the transport: the client sends one on every
new connection, so that the server identifies the member at once, and the server answers with one. Its optional second
frame has a token of the client (tokens.py) or, from the server, a refusal of the link. An endpoint neither accepts a
greeting from its user nor delivers one.

Addresses are tcp://HOST:PORT, where HOST is a name, an IPv4 address or an IPv6 address in brackets; or ipc://PATH. They
are checked here because ZeroMQ silently accepts others, such as port 99999, and looks for a missing host for ever.

Each endpoint has its own ZeroMQ context, unless it is given one, and its sockets stay in the event loop that made them.
Arrived messages wait inside ZeroMQ until receive() takes them, so that a slow reader slows its peers down instead of
filling the memory. libzmq holds a message until it is complete, however many frames it has: against abuse, limit the
memory of the process.

libzmq 4.3.5 aborts the process (github.com/zeromq/libzmq/issues/4364) if a heartbeat is due, or requested, on a
connection that was reset while its received messages waited for room. Its peer can cause that, even for an endpoint
that is being closed. Queues without bounds would prevent it, and let that peer fill the memory instead.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Self

import zmq
import zmq.asyncio
from zmq.utils.monitor import parse_monitor_message

IPC: Final = "ipc://"
_TCP: Final = re.compile(r"tcp://(?P<host>\[[^\]]*\]|.+):(?P<port>\*|[0-9]+)")
_LABEL: Final = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?")


def host_of(address: str) -> str | None:
    """Return the host, an IPv6 address without its brackets; None for ipc://PATH. ValueError for an invalid address."""
    if address.startswith(IPC):
        return None
    found = _TCP.fullmatch(address)
    if found is None or not (found["port"] == "*" or 0 < int(found["port"]) < 65_536):
        raise ValueError(f"{address!r} is not an address; use tcp://HOST:PORT with a port from 1 to 65535")
    host = found["host"]
    if host.startswith("["):
        if _version(host[1:-1]) != 6:
            raise ValueError(f"{address!r} is not an address; in brackets stands an IPv6 address: tcp://[fd00::5]:7007")
        return host[1:-1]
    if _version(host) == 6 or ":" in host:
        raise ValueError(f"{address!r} is not an address; write an IPv6 address in brackets: tcp://[fd00::5]:7007")
    if host != "*" and not _version(host):
        labels = host.rstrip(".").split(".")
        numbers = labels[-1].isdigit()
        if numbers or not all(_LABEL.fullmatch(label) for label in labels):
            raise ValueError(f"{address!r} is not an address; {host!r} is neither a name nor an IPv4 address")
    return host


async def resolve(address: str) -> None:
    """Resolve the host, so that an unknown name is reported. ValueError if it is not found."""
    host = host_of(address)
    if host is None or host == "*" or _version(host):
        return
    try:
        await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ValueError(
            f"the name {host!r} of {address} is not known here ({error.strerror or error}): check its spelling, the "
            "name server and /etc/hosts, or use the address"
        ) from None


def _version(host: str) -> int:
    try:
        return ipaddress.ip_address(host.partition("%")[0]).version
    except ValueError:
        return 0


GREETING = b""

MOST_LINKS: Final = 8
"""Most open links of one key: the one in use, and older ones that died silently, until heartbeats end them."""
TOO_MANY_LINKS: Final = 500
"""Status of a handshake that is refused because its key has too many links."""

# Both ends notice a dead connection within this time: it must be well below any grace.
_HEARTBEAT_MS = 3_000
# A heartbeat's answer queues behind the frame that is being sent and behind the kernel's buffers, so this also sets the
# slowest link that survives: one frame plus a few megabytes in this time.
_HEARTBEAT_TIMEOUT_MS = 60_000
# Time in which the other host's kernel may leave data unacknowledged. Otherwise a heartbeat to an unreachable address
# is noticed only by the time-out above, beyond any phase's deadline. A host unreachable for just ten seconds survives:
# TCP retries after 6 and 13.
_UNHEARD_MS = 15_000
# Growth of a frame under CURVE (ZeroMQ RFC 26): command name 8, nonce 8, tag 16, flags 1.
_CURVE_OVERHEAD = 33
_MIN_FRAME_BYTES = 1_024
# Time that close() waits for the last messages to leave.
_LINGER_MS = 3_000
_PENDING_CONNECTIONS = 1_024


class EndpointError(Exception):
    """A link or an endpoint failed; the message names the address or the peer, and the remedy."""


class AddressError(EndpointError):
    """The address cannot be bound or is not one."""


class NotConnectedError(EndpointError):
    """The peer has no link at the moment; the message was not sent."""


class PeerStalledError(EndpointError):
    """The peer has not accepted earlier messages for too long; the message was not sent."""


class EndpointClosedError(EndpointError):
    """The endpoint was closed."""


@dataclass(frozen=True)
class Limits:
    """Limits on a peer's messages, and timeouts."""

    max_frame_bytes: int = 64 << 20
    """A peer that sends a larger frame loses its link. At least 1024, which CURVE's handshake needs."""
    max_frames: int = 64
    """A message with more frames is refused."""
    queue_messages: int = 64
    """Most queued messages of one peer in each direction, besides those in the kernel's buffers. At least 2: with 1,
    libzmq 4.3 delivers nothing at all once a ZAP handler gives its links a user id."""
    send_seconds: float = 60.0
    """Seconds that a send waits for room in the queue of a peer."""
    handshake_seconds: float = 10.0
    """A connection whose handshake takes longer is closed, however steadily its bytes arrive."""

    def __post_init__(self) -> None:
        if self.max_frame_bytes < _MIN_FRAME_BYTES:
            raise ValueError(f"max_frame_bytes = {self.max_frame_bytes}: use {_MIN_FRAME_BYTES} or more")
        if self.queue_messages < 2:
            raise ValueError(f"queue_messages = {self.queue_messages}: use 2 or more")


@dataclass(frozen=True)
class Received:
    """A message. The sender is the member whose key opened the link, regardless of the content."""

    sender: str
    frames: tuple[memoryview, ...]
    """Read-only views of ZeroMQ's buffers, not copied."""


@dataclass(frozen=True)
class LinkUp:
    """A link to the peer was opened; messages can be sent to it."""

    peer: str


@dataclass(frozen=True)
class LinkLost:
    """The link to the peer is gone. Messages in transit may be lost; those that had arrived may still follow this
    event."""

    peer: str


@dataclass(frozen=True)
class MessageRefused:
    """A message broke the limits and was dropped."""

    sender: str
    reason: str


@dataclass(frozen=True)
class HandshakeRefused:
    """A connection was refused. Reported once for each combination of the fields."""

    reason: str
    public_key: str | None = None
    """CURVE public key in Z85, if the handshake got as far as presenting one."""
    address: str | None = None
    """Host address of the peer, if known."""


@dataclass(frozen=True)
class CopyDetected:
    """Two processes have the key of one party: of the peer, or this party's own. Reported once for each combination of
    the fields."""

    peer: str
    detail: str
    address: str = ""
    """Host address of the reporting link, if known."""
    other: str = ""
    """Host address of the other process."""


Event = Received | LinkUp | LinkLost | MessageRefused | HandshakeRefused | CopyDetected


_UNCLOSED: set[Endpoint] = set()
"""Kept from the garbage collector, which may end a context before the context's sockets, and then waits for ever."""


class Endpoint:
    """Common part of both ends: a ZeroMQ socket, whose messages are merged with its monitor's link events."""

    def __init__(
        self, kind: int, address: str, limits: Limits, monitored: int, context: zmq.asyncio.Context | None = None
    ) -> None:
        try:
            host = host_of(address)
        except ValueError as error:
            raise AddressError(str(error)) from None
        self.address = address
        self._limits = limits
        self._pending: deque[Event] = deque()
        self._closed = False
        self._waiting: asyncio.Future[list[tuple[object, int]]] | None = None
        self._own_context = context is None
        self._context = context or zmq.asyncio.Context()
        self._socket = self._context.socket(kind)
        self._socket.setsockopt(zmq.LINGER, _LINGER_MS)
        # With IPv6 on, ZeroMQ would report an IPv4 address as a mapped one.
        self._socket.setsockopt(zmq.IPV6, 0 if host is None or re.fullmatch(r"[0-9.]+", host) else 1)
        self._socket.setsockopt(zmq.BACKLOG, _PENDING_CONNECTIONS)
        self._socket.setsockopt(zmq.MAXMSGSIZE, limits.max_frame_bytes + _CURVE_OVERHEAD)
        self._socket.setsockopt(zmq.SNDHWM, limits.queue_messages)
        self._socket.setsockopt(zmq.RCVHWM, limits.queue_messages)
        self._socket.setsockopt(zmq.HANDSHAKE_IVL, int(limits.handshake_seconds * 1000))
        self._socket.setsockopt(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)
        self._socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, _HEARTBEAT_TIMEOUT_MS)
        self._socket.setsockopt(zmq.TCP_MAXRT, _UNHEARD_MS)
        _UNCLOSED.add(self)
        reports = f"inproc://monitor-{self._socket.FD}"
        self._socket.monitor(reports, monitored)
        self._monitor = self._context.socket(zmq.PAIR)
        # Without a limit: libzmq's I/O thread would wait for room and hold up all links.
        self._monitor.setsockopt(zmq.RCVHWM, 0)
        self._monitor.connect(reports)
        self._poller = zmq.asyncio.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._monitor, zmq.POLLIN)

    async def receive(self) -> Event:
        """Wait for the next event. Cancelling it, for example by a timeout, loses nothing.

        Raises EndpointClosedError after close(), and EndpointError when the link cannot be opened any more."""
        while True:
            self._check_open()
            if self._pending:
                return self._pending.popleft()
            await self._advance()

    async def close(self) -> None:
        """Let the last messages leave, for a few seconds at most, and free everything. Closing twice is harmless.

        In a shared context they keep leaving until its end."""
        if self._closed:
            return
        self._closed = True
        self._wake()
        self._socket.monitor(None, 0)
        self._monitor.close(linger=0)
        self._socket.close()
        _UNCLOSED.discard(self)
        if self._own_context:
            await asyncio.to_thread(self._context.term)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise EndpointClosedError(f"the endpoint at {self.address} was closed")

    def _report(self, event: Event) -> None:
        self._pending.append(event)
        self._wake()

    def _deliver(self, sender: str, frames: Sequence[memoryview]) -> None:
        views = tuple(frame.toreadonly() for frame in frames)
        if not views[0]:
            return
        if len(views) > self._limits.max_frames:
            reason = f"{len(views)} frames where {self._limits.max_frames} are allowed"
            self._report(MessageRefused(sender, reason))
        else:
            self._report(Received(sender, views))

    def _check_outgoing(self, frames: Sequence[bytes | memoryview]) -> None:
        """Raise ValueError for a message that the other end would refuse."""
        if not 1 <= len(frames) <= self._limits.max_frames:
            raise ValueError(f"a message has 1 to {self._limits.max_frames} frames, not {len(frames)}")
        largest = max(memoryview(frame).nbytes for frame in frames)
        if largest > self._limits.max_frame_bytes:
            raise ValueError(f"a frame of {largest} bytes exceeds {self._limits.max_frame_bytes}; send it in chunks")
        if memoryview(frames[0]).nbytes == 0:
            raise ValueError("an empty first frame is the greeting of the transport; send something")

    async def _accept(self, frames: list[zmq.Frame]) -> None:
        """Turn a message into events."""
        raise NotImplementedError

    async def _follow_links(self) -> None:
        """Turn the socket monitor's records into events."""
        raise NotImplementedError

    async def _advance(self) -> None:
        """Process available input; if there is none, wait for some."""
        # The message first: when it is examined, all events of links older than its own must be known.
        known = len(self._pending)
        frames: list[zmq.Frame] | None = None
        with suppress(zmq.Again):
            frames = await self._socket.recv_multipart(zmq.DONTWAIT, copy=False)
        await self._follow_links()
        if frames is not None:
            await self._accept(frames)
        elif len(self._pending) == known:
            # connect() leaves earlier input to receive().
            self._check_open()
            await self._activity()

    async def _link_changes(self) -> AsyncIterator[tuple[int, int]]:
        """Yield the pending events of the socket monitor, each with its value."""
        while not self._closed:
            try:
                report = await self._monitor.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                return
            change = parse_monitor_message(report)
            yield change["event"], change["value"]

    async def _activity(self) -> None:
        """Wait until a socket has input or _wake() is called."""
        waiting = self._waiting = asyncio.ensure_future(self._poller.poll())
        try:
            await asyncio.wait([waiting])
        finally:
            waiting.cancel()
            self._waiting = None

    def _wake(self) -> None:
        """Let a waiting receive() check again."""
        if self._waiting is not None:
            self._waiting.cancel()
