"""Both ends of links within one process, over ZeroMQ's inproc: the sockets of the other endpoints without their links.

ZeroMQ does not protect inproc: it ignores CURVE and asks no ZAP handler, and its socket monitor sees nothing. So a peer
has the name that it claims, in its routing id, and both ends tell each other of their links directly. Nothing leaves
the process, and no address that a party is configured with leads here.
"""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Self

import zmq
import zmq.asyncio

from tacit.parties.links.client_endpoint import ClientEndpoint
from tacit.parties.links.endpoint import AddressError, Limits, LinkLost, LinkUp
from tacit.parties.links.keys import PartyKeys
from tacit.parties.links.memory_endpoint import MemoryNetwork
from tacit.parties.links.server_endpoint import ServerEndpoint
from tacit.parties.links.zap import ZapHandler
from tacit.protocol.core.roster import Member, Roster

_PROCESS: "MemoryNetwork[InprocServerEndpoint, InprocClientEndpoint]" = MemoryNetwork()
# A member may have several links, whose routing ids must differ.
_NUMBERS = count()


class _Inproc:
    """What both ends do in another way than with a network."""

    def _open_context(self) -> zmq.asyncio.Context:
        # Inproc addresses belong to a context, so the process shares one.
        return zmq.asyncio.Context.instance()

    async def _close_context(self) -> None:
        return

    @staticmethod
    def _host(address: str) -> None:
        if not address.startswith("inproc://") or not address.removeprefix("inproc://"):
            raise AddressError(f"{address!r} is not an address within a process; use inproc://NAME")


class InprocServerEndpoint(_Inproc, ServerEndpoint):
    """Listens at inproc://NAME. Whoever claims a name that is not in the roster gets no answer."""

    @classmethod
    async def bind(cls, address: str, *, keys: PartyKeys, roster: Roster, limits: Limits | None = None) -> Self:
        endpoint = await super().bind(address, keys=keys, roster=roster, limits=limits)
        _PROCESS.servers[address] = endpoint
        _PROCESS.join()
        return endpoint

    async def close(self) -> None:
        if _PROCESS.servers.get(self.address) is self:
            del _PROCESS.servers[self.address]
            # At once, so that the clients can wait there for a successor.
            self._socket.unbind(self.address)
            for client in [client for client in _PROCESS.clients if client.routing_id in self._links]:
                client.lose()
        await super().close()

    def admit(self, client: "InprocClientEndpoint") -> None:
        """Open the link that a client wants; who is not in the roster gets no answer."""
        if client.name in self._roster.clients:
            self._links.open(client.routing_id, client.name)
            client.gain()

    def dismiss(self, client: "InprocClientEndpoint") -> None:
        """The client has closed its end."""
        self._links.end(client.routing_id)

    def _guard(self, names: Mapping[bytes, str]) -> ZapHandler | None:
        return None

    def _protect(self, keys: PartyKeys) -> None:
        return

    async def _accept(self, frames: list[zmq.Frame]) -> None:
        name = frames[0].bytes.partition(b"/")[0].decode("utf-8", "replace")
        if name in self._roster.clients:
            self._deliver(name, [frame.buffer for frame in frames[1:]])


class InprocClientEndpoint(_Inproc, ClientEndpoint):
    """A link to the server at inproc://NAME of the same process, under the name in its keys."""

    def __init__(self, address: str, keys: PartyKeys, server: Member, limits: Limits) -> None:
        super().__init__(address, keys, server, limits)
        self.name = keys.name
        self.routing_id = f"{keys.name}/{next(_NUMBERS)}".encode()
        self._held: list[Sequence[bytes | memoryview]] = []
        """Messages for the next link. An inproc socket that waits for somebody to bind could not be closed."""
        self._socket.setsockopt(zmq.ROUTING_ID, self.routing_id)

    @property
    def linked(self) -> bool:
        """Whether there is a link now."""
        return self._linked

    async def send(self, frames: Sequence[bytes | memoryview]) -> None:
        if self._linked or len(self._held) >= self._limits.queue_messages:
            await super().send(frames)
            return
        self._check_outgoing(frames)
        self._check_open()
        self._held.append(frames)
        self._count_sent(self._server, frames)

    async def close(self) -> None:
        if self in _PROCESS.clients:
            _PROCESS.clients.remove(self)
            if self._linked:
                _PROCESS.servers[self.address].dismiss(self)
        await super().close()

    def gain(self) -> None:
        """The link is there: what was held for it goes on its way, into queues that are empty."""
        self._socket.connect(self.address)
        self._linked = True
        self._report(LinkUp(self._server))
        for frames in self._held:
            asyncio.ensure_future(self._socket.send_multipart(frames, zmq.DONTWAIT, copy=False)).result()
        self._held.clear()

    def _receive_now(self) -> asyncio.Future[list[zmq.Frame]]:
        # Without a wait the awaitable of pyzmq is a future that is done.
        return asyncio.ensure_future(self._socket.recv_multipart(zmq.DONTWAIT, copy=False))

    def lose(self) -> None:
        """The server has closed its end: take in what it said, and wait for the next one."""
        while (message := self._receive_now()).exception() is None:
            self._deliver(self._server, [frame.buffer for frame in message.result()])
        self._linked = False
        self._report(LinkLost(self._server))
        with contextlib.suppress(zmq.ZMQError):
            # The connection that ended may be forgotten already.
            self._socket.disconnect(self.address)

    def _protect(self, keys: PartyKeys, server: Member) -> None:
        return

    def _dial(self) -> None:
        _PROCESS.clients.append(self)
        _PROCESS.join()
