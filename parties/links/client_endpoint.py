"""The connecting end: one DEALER socket with a link to one server, reconnected whenever it is lost.

ZeroMQ retries silently; errors are derived from the socket monitor. After some handshake failures ZeroMQ does not
retry, though anybody without a key who answers in the server's place can cause them. They end an endpoint that never
had a link; an endpoint that had one keeps retrying.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, Self

import zmq
import zmq.asyncio

from tacit.parties.links.endpoint import (
    GREETING,
    MOST_LINKS,
    TOO_MANY_LINKS,
    AddressError,
    Endpoint,
    EndpointError,
    Limits,
    LinkLost,
    LinkUp,
    PeerStalledError,
    resolve,
)
from tacit.parties.links.keys import PartyKeys
from tacit.parties.links.tokens import TokenFile, Verdict
from tacit.protocol.core.errors import printable
from tacit.protocol.core.roster import Member

_RECONNECT_MS = 100
_RECONNECT_MAX_MS = 2_000
# An attempt during an outage would be repeated at growing intervals, up to minutes apart.
_CONNECT_MS = 5_000
_ADDRESS = 64
"""Longest address, in characters, that a server's greeting may contain."""


class NotAdmittedError(EndpointError):
    """The server refused this party's key."""


class WrongServerError(EndpointError):
    """The service at the address does not have the server's key or does not speak the protocol."""


class UnreachableError(EndpointError):
    """Nothing answered at the address."""


AWAITED: Final = (UnreachableError, WrongServerError)
"""Errors of connect() after which the server may come yet: a relay with no server behind it looks like a wrong one."""


class CopyError(EndpointError):
    """Another process has the key of this party, or of the server.

    other: its address, as the server reports it; address: of the server; server: its name, if its folder is the copy,
    else empty."""

    def __init__(self, detail: str, *, address: str, other: str, server: str = "") -> None:
        super().__init__(detail)
        self.address = address
        self.other = other
        self.server = server


class ClientEndpoint(Endpoint):
    """A link to one server. Made by connect(); closed by close() or `async with`."""

    def __init__(
        self,
        address: str,
        keys: PartyKeys,
        server: Member,
        limits: Limits,
        context: zmq.asyncio.Context | None = None,
        tokens: TokenFile | None = None,
    ) -> None:
        monitored = (
            zmq.EVENT_CONNECTED
            | zmq.EVENT_CLOSED
            | zmq.EVENT_DISCONNECTED
            | zmq.EVENT_HANDSHAKE_SUCCEEDED
            | zmq.EVENT_HANDSHAKE_FAILED_AUTH
            | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
            | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
        )
        super().__init__(zmq.DEALER, address, limits, monitored, context)
        self._name, self._signing_public = keys.name, keys.signing_public
        self._server = server.name
        self._member = server
        self._tokens = tokens
        self._greeting = [GREETING]
        if tokens is not None:
            self._greeting.append(tokens.present(server))
        self._ungreeted = False
        """Whether the queue had no room for a greeting of this link."""
        self._linked = False
        self._known = False
        """Whether there was a link before."""
        self._obstacle: EndpointError = self._nothing_listens()
        """Reason for the missing link, as far as known."""
        self._failure: EndpointError | None = None
        """Error that ended all attempts."""
        self.refusal: EndpointError | None = None
        """Refusal of the last reconnect attempt while there is no link; it is not authenticated."""
        self._again: asyncio.TimerHandle | None = None
        # CURVE, and a link with nobody but the server that has this key.
        self._socket.setsockopt(zmq.CURVE_SERVERKEY, server.curve_public)
        self._socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.curve_public)
        self._socket.setsockopt(zmq.CURVE_SECRETKEY, keys.curve_secret)
        self._socket.setsockopt(zmq.SNDTIMEO, int(limits.send_seconds * 1000))
        self._socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
        self._socket.setsockopt(zmq.RECONNECT_IVL_MAX, _RECONNECT_MAX_MS)
        self._socket.setsockopt(zmq.CONNECT_TIMEOUT, _CONNECT_MS)

    @classmethod
    async def connect(
        cls,
        address: str,
        *,
        keys: PartyKeys,
        server: Member,
        limits: Limits | None = None,
        connect_deadline: float = 30.0,
        context: zmq.asyncio.Context | None = None,
        tokens: TokenFile | None = None,
    ) -> Self:
        """Open a link to `server` at tcp://HOST:PORT or ipc://PATH, trying for `connect_deadline` seconds. The first
        event is its LinkUp. context: shared by several clients, terminated by its owner; tokens: of this party, to
        detect copied folders: then receive() raises CopyError.

        Raises AddressError for an invalid address or an unknown name and NotAdmittedError as soon as the server
        refuses the key; at the deadline WrongServerError when handshakes failed (a tunnel without a server behind it
        looks the same, so they are repeated) and UnreachableError when nothing answered."""
        endpoint = cls(address, keys, server, limits or Limits(), context, tokens)
        try:
            try:
                await resolve(address)
            except ValueError as error:
                raise AddressError(str(error)) from None
            endpoint._socket.connect(address)
            async with asyncio.timeout(connect_deadline):
                while not endpoint._linked:
                    await endpoint._advance()
                    endpoint._check_open()
        except zmq.ZMQError as error:
            await endpoint._abandon()
            raise AddressError(
                f"cannot connect to {address}: {zmq.strerror(error.errno or 0)}; use tcp://HOST:PORT"
            ) from error
        except TimeoutError:
            await endpoint._abandon()
            raise endpoint._obstacle from None
        except BaseException:
            await endpoint._abandon()
            raise
        return endpoint

    async def send(self, frames: Sequence[bytes | memoryview]) -> None:
        """Queue a message for the server. While the link is lost it waits for the next one.

        Frames are not copied: do not change their buffers afterwards. Raises PeerStalledError when the queue stays full
        for `Limits.send_seconds`, ValueError for frames beyond the limits, and the errors of receive(). Queued messages
        are lost if another service answers meanwhile."""
        self._check_outgoing(frames)
        await self._follow_links()
        self._check_open()
        try:
            if self._ungreeted:
                await self._socket.send_multipart(self._greeting)
                self._ungreeted = False
            await self._socket.send_multipart(frames, copy=False)
        except zmq.Again as error:
            raise PeerStalledError(
                f"{self._server!r} at {self.address} has taken no message for {self._limits.send_seconds:g} s; "
                "is it overloaded or stopped?"
            ) from error
        except asyncio.CancelledError:
            # Closing the socket cancels its waiters, although nobody wants this task to stop.
            task = asyncio.current_task()
            if task is None or not task.cancelling():
                self._check_open()
            raise

    async def close(self) -> None:
        """Let the last messages leave, for a few seconds at most, and free everything. Closing twice is harmless."""
        if self._again is not None:
            self._again.cancel()
        await super().close()

    async def _abandon(self) -> None:
        """Close without waiting for messages that cannot leave."""
        self._socket.setsockopt(zmq.LINGER, 0)
        await self.close()

    def _check_open(self) -> None:
        super()._check_open()
        if self._failure is not None:
            raise self._failure

    async def _accept(self, frames: list[zmq.Frame]) -> None:
        if not frames[0].bytes and self._tokens is not None:
            before = self._greeting
            self._take_greeting(frames[1].bytes if len(frames) > 1 else b"")
            if self._greeting != before:
                # The server learns that the token is on the disk here.
                await self._greet()
        self._deliver(self._server, [frame.buffer for frame in frames])

    def _take_greeting(self, said: bytes) -> None:
        """Process the server's reply to this party's token: accepted, or the reason and the other process's address."""
        verdict, _, address = said.partition(b" ")
        other = printable(address[:_ADDRESS].decode("ascii", "replace"))
        where = f" ({other})" if other else ""
        if verdict == Verdict.OLD_SERVER.value:
            self._failure = CopyError(
                f"the server at {self.address} is a copy, or was restored from a backup: this client was at another "
                "server of its key since; its operator stops one of the two, and says in its log what to do",
                address=self.address,
                other=other,
                server=self._server,
            )
        elif verdict == Verdict.REPLACED.value:
            self._failure = CopyError(
                f"another process of {self._name!r}{where} took the place of this one at {self.address}: its folder is "
                "a copy; stop one of the two, and make new keys if it is not yours",
                address=self.address,
                other=other,
            )
        elif verdict:
            self._failure = CopyError(
                f"the server at {self.address} refuses this start: {self._name!r} started elsewhere since{where}, so "
                "this folder is a copy or a backup; stop one of the two, or have the operator of the server forget the "
                f"token of {self._name!r}",
                address=self.address,
                other=other,
            )
        elif self._tokens is not None:
            self._greeting = [GREETING, self._tokens.accepted(self._member, self._signing_public)]

    async def _follow_links(self) -> None:
        async for event, value in self._link_changes():
            match event:
                case zmq.EVENT_HANDSHAKE_SUCCEEDED:
                    self._linked = self._known = True
                    self.refusal = None
                    self._report(LinkUp(self._server))
                    await self._greet()
                case zmq.EVENT_DISCONNECTED if self._linked:
                    self._linked = False
                    self._report(LinkLost(self._server))
                case zmq.EVENT_CLOSED if self.refusal is None:
                    self._obstacle = self._nothing_listens()
                case zmq.EVENT_CONNECTED if self.refusal is None and not isinstance(self._obstacle, WrongServerError):
                    self._obstacle = UnreachableError(
                        f"something at {self.address} accepts connections but does not answer: "
                        "the server is overloaded, or this is not a tacit server"
                    )
                case zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
                    self._obstacle = self._wrong_server()
                case zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
                    self._fail(self._wrong_server())
                case zmq.EVENT_HANDSHAKE_FAILED_AUTH if value == TOO_MANY_LINKS:
                    self._obstacle = UnreachableError(
                        f"the server at {self.address} has {MOST_LINKS} links of {self._name!r} open, and refuses "
                        "more: end the other programs that use this key; dead links end within a minute"
                    )
                    self._refused(self._obstacle)
                case zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                    self._fail(
                        NotAdmittedError(
                            f"the server at {self.address} does not know this key (status {value}): its roster never "
                            "had it, or has it no longer; ask its operator for the newest roster, and if need be to "
                            f"add {self._name!r} with this key to it"
                        )
                    )

    def _fail(self, failure: EndpointError) -> None:
        """Handle a failed handshake after which ZeroMQ does not retry."""
        if self._known:
            self._refused(failure)
        else:
            self.refusal = self._failure = failure

    def _refused(self, refusal: EndpointError) -> None:
        """Schedule a retry that ZeroMQ does not make."""
        self.refusal = refusal
        with suppress(zmq.ZMQError):
            self._socket.disconnect(self.address)
        self._again = asyncio.get_running_loop().call_later(_RECONNECT_MAX_MS / 1000, self._connect_again)

    def _connect_again(self) -> None:
        if not self._closed:
            self._socket.connect(self.address)

    async def _greet(self) -> None:
        try:
            await self._socket.send_multipart(self._greeting, zmq.DONTWAIT)
            self._ungreeted = False
        except zmq.Again:
            # Without a token the first message of the queue tells the server as much.
            self._ungreeted = self._tokens is not None

    def _nothing_listens(self) -> UnreachableError:
        return UnreachableError(
            f"nothing listens at {self.address} yet: start {self._server}, or check the address and the firewall"
        )

    def _wrong_server(self) -> WrongServerError:
        return WrongServerError(
            f"wrong server key or not a tacit server at {self.address}: compare its key in the roster with its "
            "card, and the address; if its keys were rotated, get the newest roster"
        )
