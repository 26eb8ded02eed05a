"""The listening end: one ROUTER socket for the links of all members, authenticated by the roster.

libzmq asks one handler per context about every CURVE handshake (ZAP, ZeroMQ RFC 27). Ours admits exactly the keys of
the roster and sets each link's user id to its member's name, which libzmq then attaches to every frame of that link: so
the key alone authenticates the peer. A refused key is visible here and nowhere else on this side, so it is reported.

Links are distinguished by ZeroMQ's routing ids. A link is gone when the socket monitor reports the end of its file
descriptor, which every message of the link carries too.

A key has at most MOST_LINKS open links (Connections). The handler knows the key of a link and not its descriptor, a
message both, so the count of links that have sent a message is exact.
"""

import asyncio
import math
import os
import socket
from bisect import bisect_left
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Self

import zmq
import zmq.asyncio

from tacit.parties.links.endpoint import (
    GREETING,
    MOST_LINKS,
    TOO_MANY_LINKS,
    AddressError,
    CopyDetected,
    Endpoint,
    EndpointError,
    Event,
    HandshakeRefused,
    Limits,
    LinkLost,
    LinkUp,
    NotConnectedError,
    PeerStalledError,
    resolve,
)
from tacit.parties.links.keys import PartyKeys, encode_key
from tacit.parties.links.tokens import TOKEN_BYTES, TokenFile, Verdict
from tacit.protocol.core.messages import BODY_LIMIT
from tacit.protocol.core.roster import Roster

ZAP_ADDRESS = "inproc://zeromq.zap.01"
ZAP_DOMAIN = b"tacit"
_VERSION = b"1.0"

OnRefused = Callable[[bytes, str, str], Awaitable[None]]
"""Called, while its connection is open, with the refused 32-byte public key, its address, and the reason."""
Admit = Callable[[str], Awaitable[str | None]]
"""Return the user id of a new link of this member; None if it has too many."""


class ZapHandler:
    """Answers in its own task from construction to close(); bind the sockets that it protects afterwards.

    `names` maps the 32-byte CURVE public key of each admitted member to its name."""

    def __init__(
        self, context: zmq.asyncio.Context, names: Mapping[bytes, str], admit: Admit, on_refused: OnRefused
    ) -> None:
        self._names = names
        self._admit = admit
        self._on_refused = on_refused
        self._socket = context.socket(zmq.REP)
        self._socket.bind(ZAP_ADDRESS)
        self._task = asyncio.create_task(self._serve())

    async def close(self) -> None:
        """Stop answering: libzmq refuses all handshakes from now on."""
        self._task.cancel()
        await asyncio.wait([self._task])
        self._socket.close(linger=0)

    async def _serve(self) -> None:
        while True:
            await self._socket.send_multipart(await self._answer(await self._socket.recv_multipart()))

    async def _answer(self, request: Sequence[bytes]) -> list[bytes]:
        # Version, request id, domain, address, routing id, mechanism, then the credentials of the mechanism.
        request_id = request[1] if len(request) > 1 else b""
        if len(request) != 7 or request[0] != _VERSION or request[2] != ZAP_DOMAIN or request[5] != b"CURVE":
            return [_VERSION, request_id, b"400", b"only CURVE handshakes of this application", b"", b""]
        key, address = request[6], request[3].decode("utf-8", "replace")
        name = self._names.get(key)
        if name is None:
            await self._on_refused(key, address, "this key is not in the roster")
            return [_VERSION, request_id, b"400", b"key not in the roster", b"", b""]
        user = await self._admit(name)
        if user is None:
            await self._on_refused(key, address, f"{name!r} has {MOST_LINKS} links open")
            # Not 300: libzmq would leave the connection open until the handshake times out, without informing the
            # client.
            return [_VERSION, request_id, b"%d" % TOO_MANY_LINKS, b"too many links of this key", b"", b""]
        return [_VERSION, request_id, b"200", b"OK", user.encode("ascii"), b""]


# A server with all members in one loop waits for none of them. An honest member has only a few outstanding answers, so
# a full queue belongs to a peer that asks and does not read. A message has at most three frames, and at most a body's
# bytes, which CURVE extends a little.
_LIMITS = Limits(max_frame_bytes=BODY_LIMIT + 1024, max_frames=3, send_seconds=0)
# ROUTER signals room for any peer, not for a certain one, so a full queue is polled after this time.
_RETRY_SECONDS = 0.01
_COPIES = {
    Verdict.COPY: "its folder is a copy or a backup: it presents an old token, and is refused; ask its owner which one "
    "is to go on, and if it is this one, stop the server and take the client out of its tokens.json",
    Verdict.OLD_SERVER: "the folder of this server is a copy or a backup: the client was at another server of this key "
    "since, and is refused; stop one of the two, and if this one is to go on, remove its tokens.json",
    Verdict.REPLACED: "another process with its current token took its place from another address: if its owner did "
    "not move it, its folder is a copy",
}
# Strangers must not fill memory and logs: distinct refusals and copies beyond these are not reported.
_MAX_REFUSALS = 1_000


class Connections:
    """Open connections by file descriptor, and the number of each member's open links.

    An admitted link has a place until it ends. Its first message shows its descriptor, and so its end. A link that
    ended before is released as soon as no silent connection is left that could be it: one accepted at most
    `handshake_seconds` before the admission. So the count of a member is never too low. It is too high by links that
    ended silently, while other silent ones opened at that time stay open; and each of those has a place as well."""

    def __init__(self, handshake_seconds: float) -> None:
        # libzmq's time-out uses another clock, and its thread may be late.
        self._window = 2 * handshake_seconds
        self._silent: dict[int, float] = {}
        """Times of acceptance of connections without a message, in order."""
        self._addresses: dict[int, str | None] = {}
        """Peer addresses of these."""
        self._links: dict[int, tuple[str, bytes]] = {}
        """Member and routing id of the others."""
        self._counts = Counter[str]()
        """Number of these, by member."""
        self._admitted: dict[str, dict[int, float]] = {}
        """Times of admission of links without a message, by member and serial number."""
        self._serial = 0

    def __contains__(self, descriptor: int) -> bool:
        return descriptor in self._silent or descriptor in self._links

    def accept(self, descriptor: int, now: float, address: str | None = None) -> None:
        """Record an accepted connection; address: its peer's, if known."""
        self._silent[descriptor] = now
        self._addresses[descriptor] = address

    def failing(self, descriptor: int) -> tuple[bool, str | None]:
        """Return whether this connection, which is about to end, was no link: no silent link was admitted since it was
        accepted. Also returns its peer's address."""
        accepted = self._silent.get(descriptor)
        waiting = (at for admitted in self._admitted.values() for at in admitted.values())
        return accepted is not None and all(at < accepted for at in waiting), self._addresses.get(descriptor)

    def admit(self, name: str, now: float) -> int | None:
        """The serial number of a new link of this member, which the messages of the link carry; None if it has too
        many."""
        admitted = self._admitted.setdefault(name, {})
        if len(admitted) + self._counts[name] >= MOST_LINKS:
            accepted = [*self._silent.values()]
            for serial, at in list(admitted.items()):
                oldest = bisect_left(accepted, at - self._window)
                if oldest == len(accepted) or accepted[oldest] > at:
                    del admitted[serial]
        if len(admitted) + self._counts[name] >= MOST_LINKS:
            return None
        self._serial += 1
        admitted[self._serial] = now
        return self._serial

    def speak(self, name: str, serial: int, descriptor: int, routing_id: bytes | None) -> None:
        """Record the first message of a link; routing_id: None if the link is over."""
        admitted = self._admitted.get(name, {}).pop(serial, -math.inf)
        # Of a link that is over, another connection may have the descriptor by now.
        if descriptor not in self._silent or (routing_id is None and self._silent[descriptor] > admitted):
            return
        del self._silent[descriptor], self._addresses[descriptor]
        if routing_id is not None:
            self._links[descriptor] = (name, routing_id)
            self._counts[name] += 1

    def end(self, descriptor: int) -> bytes | None:
        """Record the end of a connection; returns the routing id of its link, if a message has shown it."""
        self._silent.pop(descriptor, None)
        self._addresses.pop(descriptor, None)
        name, routing_id = self._links.pop(descriptor, ("", None))
        if routing_id is not None:
            self._counts[name] -= 1
        return routing_id


class LinkBook:
    """All open links by their routing ids, and the one that each member uses: the newest. Older ones are never reused.

    Reports LinkUp and LinkLost as members come and go."""

    def __init__(self, report: Callable[[Event], None]) -> None:
        self._report = report
        self._members: dict[bytes, str] = {}
        """Members of all open links."""
        self._current: dict[str, bytes] = {}
        self._last: dict[str, bytes] = {}
        """By member, the link in use that ended last."""

    def __contains__(self, link: bytes) -> bool:
        return link in self._members

    def current_or_none(self, name: str) -> bytes | None:
        """The link for messages to this member, if there is one."""
        return self._current.get(name)

    def current(self, name: str) -> bytes:
        """The link for messages to this member. Raises NotConnectedError if it has none."""
        try:
            return self._current[name]
        except KeyError:
            raise NotConnectedError(f"{name!r} has no link at the moment; it has to connect again") from None

    def hears(self, link: bytes, name: str) -> bool:
        """Whether messages from this link are accepted: not after a message from a newer one of this member."""
        return self._current.get(name) == link or not (name in self._current or link in self._members)

    def remains(self, link: bytes, name: str) -> bool:
        """Whether this is the member's last link, whose messages may be read after its end."""
        return name not in self._current and self._last.get(name) == link

    def open(self, link: bytes, name: str) -> None:
        """Record a new link, which replaces an older one of this member."""
        self._members[link] = name
        if name in self._current:
            self._report(LinkLost(name))
        self._current[name] = link
        self._report(LinkUp(name))

    def end(self, link: bytes) -> None:
        """Record the end of a link. Ending twice is harmless."""
        name = self._members.pop(link, None)
        if name is not None and self._current.get(name) == link:
            del self._current[name]
            self._last[name] = link
            self._report(LinkLost(name))


def _user_id(name: str, serial: int) -> str:
    return f"{name} {serial}"


def _peer_of(descriptor: int) -> str | None:
    """The host at the other end of a connection of libzmq, which reports no address; None if the connection is over."""
    try:
        with socket.socket(fileno=os.dup(descriptor)) as connection:
            peer = connection.getpeername()
    except OSError:
        return None
    return str(peer[0]) if isinstance(peer, tuple) else None


def user_of(frame: zmq.Frame) -> tuple[str, int]:
    """The member and the serial number of the link that a frame came over."""
    name, serial = str(frame.get("User-Id")).split()
    return name, int(serial)


class ServerEndpoint(Endpoint):
    """Accepts links from the other members of the roster. Made by bind(); closed by close() or `async with`."""

    def __init__(
        self,
        address: str,
        keys: PartyKeys,
        roster: Roster,
        limits: Limits,
        peers: Collection[str],
        tokens: TokenFile | None,
    ) -> None:
        names = {roster.member(peer).curve_public: peer for peer in peers}
        super().__init__(zmq.ROUTER, address, limits, zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
        self._roster = roster
        self._open = Connections(limits.handshake_seconds)
        self._links = LinkBook(self._report)
        self._order: dict[str, asyncio.Lock] = {}
        self._refusals: dict[type, set[HandshakeRefused | CopyDetected]] = {
            HandshakeRefused: set(),
            CopyDetected: set(),
        }
        self._refused = Counter[str | None]()
        """By address, open connections whose keys were refused, which was reported."""
        self._tokens = tokens
        self._processes: dict[str, bytes] = {}
        """By member, the token of the process whose link is in use."""
        self._addresses: dict[bytes, str] = {}
        """Peer addresses of open links."""
        self._copies: set[bytes] = set()
        """Links that are ignored, because of their tokens."""
        # Admits these public keys and no others.
        self._zap = ZapHandler(self._context, names, self._admit, self._refuse_key)
        self._socket.setsockopt(zmq.CURVE_SERVER, 1)
        self._socket.setsockopt(zmq.CURVE_SECRETKEY, keys.curve_secret)
        self._socket.setsockopt(zmq.ZAP_DOMAIN, ZAP_DOMAIN)
        # No handshake succeeds without the handler's answer.
        self._socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
        # A message to a link that is gone, or that has no room, is an error instead of being dropped.
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)

    @classmethod
    async def bind(
        cls,
        address: str,
        *,
        keys: PartyKeys,
        roster: Roster,
        limits: Limits | None = None,
        peers: Collection[str] | None = None,
        tokens: TokenFile | None = None,
    ) -> Self:
        """Listen at tcp://HOST:PORT or ipc://PATH, where PORT and PATH may be `*`: `.address` then has the system's
        choice. Without `limits` a send does not wait for room. A PATH stays when the endpoint is closed, and is taken
        over without asking: keep it in a directory of the server's own. peers: admitted members; None: all others of
        the roster. tokens: of this party, to detect copied folders.

        Raises AddressError for an invalid or used address, EndpointError for other keys than the roster's."""
        own = roster.member(keys.name)
        if (keys.curve_public, keys.signing_public) != (own.curve_public, own.signing_public):
            raise EndpointError(
                f"the roster has other public keys for {keys.name!r}; use the key file that belongs to it"
            )
        if peers is None:
            peers = [member.name for member in roster.members if member.name != keys.name]
        endpoint = cls(address, keys, roster, limits or _LIMITS, peers, tokens)
        # A Unix socket belongs to its user alone, so that nobody bypasses the relay before it, which limits sources.
        former = os.umask(0o177)
        try:
            try:
                endpoint._socket.bind(address)
            finally:
                os.umask(former)
        except zmq.ZMQError as error:
            await endpoint.close()
            try:
                # Only now: an unknown name may be that of a network interface.
                await resolve(address)
            except ValueError as unknown:
                raise AddressError(str(unknown)) from error
            raise AddressError(
                f"cannot listen at {address}: {zmq.strerror(error.errno or 0)}; use an address of this host and a "
                "port that no other process uses"
            ) from error
        endpoint.address = endpoint._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        return endpoint

    async def send(self, name: str, frames: Sequence[bytes | memoryview]) -> None:
        """Queue a message for a member. Those to one member keep their order; a full queue delays only its own member.

        Frames are not copied: do not change their buffers afterwards. Raises NotConnectedError when the member has no
        link, PeerStalledError when its queue stays full for `Limits.send_seconds`, LookupError for a name that is not
        in the roster and ValueError for frames beyond the limits."""
        self._check_outgoing(frames)
        self._roster.member(name)
        async with self._order.setdefault(name, asyncio.Lock()):
            loop = asyncio.get_running_loop()
            give_up = loop.time() + self._limits.send_seconds
            while not await self._try_send(name, frames):
                if loop.time() >= give_up:
                    raise PeerStalledError(
                        f"{name!r} took no message for {self._limits.send_seconds:g} s although its queue is full; "
                        "is it overloaded or stopped?"
                    )
                await asyncio.sleep(_RETRY_SECONDS)

    async def close(self) -> None:
        """Let the last messages leave, for a few seconds at most, and free everything. Closing twice is harmless."""
        if not self._closed:
            await self._zap.close()
        await super().close()

    async def _try_send(self, name: str, frames: Sequence[bytes | memoryview]) -> bool:
        """Hand a message to the member's link; False when its queue is full."""
        await self._follow_links()
        self._check_open()
        routing_id = self._links.current(name)
        try:
            await self._socket.send_multipart([routing_id, *frames], zmq.DONTWAIT, copy=False)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self._links.end(routing_id)
            raise NotConnectedError(f"{name!r} has lost its link; it has to connect again") from error
        return True

    async def _accept(self, frames: list[zmq.Frame]) -> None:
        routing_id, payload = frames[0].bytes, frames[1:]
        name, serial = user_of(payload[0])
        if routing_id in self._copies:
            return
        if routing_id not in self._links and not self._links.remains(routing_id, name):
            if self._tokens is not None and payload[0].bytes:
                # A message queued while the link was lost: its sender repeats it.
                return
            descriptor = int(payload[0].get(zmq.SRCFD))
            presented = payload[1].bytes if len(payload) > 1 else b""
            verdict = self._tokens.judge(self._roster.member(name), presented) if self._tokens else Verdict.CURRENT
            former = self._links.current_or_none(name)
            said = verdict.value + b" " + self._addresses.get(former or b"", "").encode() if verdict.value else b""
            is_open = await self._is_open(routing_id, descriptor, said)
            self._open.speak(name, serial, descriptor, routing_id if is_open else None)
            if is_open:
                self._addresses[routing_id] = str(payload[0].get("Peer-Address"))
                if verdict is not Verdict.CURRENT:
                    self._copies.add(routing_id)
                    self._report_copy(name, verdict, routing_id, former)
                    return
                process = presented[-TOKEN_BYTES:]
                if self._tokens is not None and former is not None and self._processes.get(name) != process:
                    await self._replace(name, former, routing_id)
                self._processes[name] = process
                self._links.open(routing_id, name)
        if self._links.hears(routing_id, name):
            if self._tokens is not None and not payload[0].bytes and len(payload) > 1:
                self._tokens.confirm(self._roster.member(name), payload[1].bytes)
            self._deliver(name, [frame.buffer for frame in payload])

    async def _replace(self, name: str, former: bytes, link: bytes) -> None:
        """Inform a process that is still connected that another one, with the current token, replaces it."""
        addresses = self._addresses
        with suppress(zmq.ZMQError):
            said = Verdict.REPLACED.value + b" " + addresses[link].encode()
            await self._socket.send_multipart([former, GREETING, said], zmq.DONTWAIT)
        if addresses[former] != addresses[link]:
            self._report_copy(name, Verdict.REPLACED, link, former)

    def _report_copy(self, name: str, verdict: Verdict, link: bytes, former: bytes | None) -> None:
        address, other = self._addresses[link], self._addresses.get(former or b"", "")
        self._refuse(CopyDetected(name, _COPIES[verdict], address, other))

    async def _is_open(self, routing_id: bytes, descriptor: int, said: bytes = b"") -> bool:
        """Whether the link that a message came from still exists.

        The message may remain from a link that ended before it was read, and whose descriptor another link has by now.
        So the greeting is answered: ZeroMQ knows whether that link exists."""
        if descriptor not in self._open:
            return False
        try:
            await self._socket.send_multipart([routing_id, GREETING, *([said] if said else [])], zmq.DONTWAIT)
        except zmq.ZMQError as error:
            return bool(error.errno == zmq.EAGAIN)
        return True

    async def _follow_links(self) -> None:
        async for event, value in self._link_changes():
            if event == zmq.EVENT_ACCEPTED:
                self._open.accept(value, asyncio.get_running_loop().time(), _peer_of(value))
                continue
            # libzmq reports a failed handshake without its connection, and noise not at all.
            failed, address = self._open.failing(value)
            if failed and self._refused[address]:
                self._refused -= Counter([address])
            elif failed:
                reason = "a handshake failed: a peer without this server's key, or no tacit client"
                self._refuse(HandshakeRefused(reason, address=address))
            routing_id = self._open.end(value)
            if routing_id is not None:
                self._addresses.pop(routing_id, None)
                self._copies.discard(routing_id)
                self._links.end(routing_id)

    async def _admit(self, name: str) -> str | None:
        """The name and the serial number of a new link of this member, as its user id."""
        # Its connection was accepted before, and so were those that have ended by now.
        await self._follow_links()
        serial = self._open.admit(name, asyncio.get_running_loop().time())
        return None if serial is None else _user_id(name, serial)

    async def _refuse_key(self, key: bytes, address: str, reason: str) -> None:
        # While it is open, its address can be found.
        await self._follow_links()
        self._refused[address] += 1
        self._refuse(HandshakeRefused(reason, public_key=encode_key(key), address=address))

    def _refuse(self, refusal: HandshakeRefused | CopyDetected) -> None:
        reported = self._refusals[type(refusal)]
        if refusal not in reported and len(reported) < _MAX_REFUSALS:
            reported.add(refusal)
            self._report(refusal)
