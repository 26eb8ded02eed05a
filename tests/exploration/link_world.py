"""A conversation of one client with its server over connections that break: hellos, and what is said again.

The ends are the real ones (`Presence` and `ServerLink`), with the few lines of the machines around them that answer a
hello and a resumption. The network is ZeroMQ's at its worst. What the client said waits in one queue, and goes onto
whatever connection there is; what has gone onto a connection arrives in order, and when that breaks, up to any point.
What has arrived may be read whenever that is, but not after anything from a newer connection, nor from a broken one
while another is believed to be there. Either end may notice a break late, and speaks at any moment.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from tacit.protocol.core import link as links
from tacit.protocol.core.codec import Frame
from tacit.protocol.core.errors import RemoteProtocolError
from tacit.protocol.core.link import Link
from tacit.protocol.core.machine import Transmit
from tacit.protocol.core.messages import Abort, Chunk, Fetch, Resume
from tacit.protocol.session.client_session import ServerLink
from tacit.protocol.session.messages import Hello, Welcome
from tacit.protocol.session.server_session import Presence
from tacit.protocol.session.states import TrainingState

CLIENT, SERVER = "client", "server"
SESSION: Final = bytes(range(32))
Said = tuple[Frame, ...]
Snapshot = tuple[Any, ...]

_FIELDS: Final = ("session", "number", "broken", "_agreed", "_sent", "_received", "_kept_bytes", "due")


def snapshot(link: Link) -> Snapshot:
    return *(getattr(link, name) for name in _FIELDS), tuple(link._kept)


def restore(link: Link, shot: Snapshot) -> Link:
    for name, value in zip(_FIELDS, shot[:-1], strict=True):
        setattr(link, name, value)
    link._kept = deque(shot[-1])
    return link


@dataclass(frozen=True)
class Connection:
    """What is on its way to the server over one connection, and what the server still sends over it."""

    to_server: tuple[Said, ...] = ()
    alive: bool = True


@dataclass(frozen=True)
class LinkState:
    client: Snapshot
    welcomed: bool
    """Whether the client is past the server's welcome."""
    server: Snapshot | None
    """None without a conversation."""
    number: int
    """Of the link of the last hello that the server heard."""
    queue: tuple[Said, ...]
    """What the client has said and no connection has taken."""
    connections: tuple[Connection, ...]
    to_client: tuple[Said, ...]
    """What has come for the client over any connection, or will, unless the last one breaks."""
    current: int | None
    """The connection that the server sends over."""
    newest: int
    """The last connection that it read from."""
    noticed: bool
    """Whether the client knows that its last connection is gone."""
    breaks: int
    heard: tuple[int, int]
    """How many messages each end has taken in this conversation, the client's first."""
    hellos: int = 1
    fault: str = ""


class LinkWorld:
    """messages: that each end says after the welcome; breaks: of connections; kept: messages that a link keeps."""

    def __init__(self, messages: int, breaks: int, *, kept: int = links.MOST_KEPT) -> None:
        self.messages = messages
        self.breaks = breaks
        self.kept = kept

    def initial(self) -> LinkState:
        end = ServerLink(CLIENT, SERVER)
        hello = end.hello(bytes(32), bytes)
        return LinkState(
            client=snapshot(end._link), welcomed=False, server=None, number=0, queue=(tuple(hello.frames),),
            connections=(Connection(),), to_client=(), current=None, newest=0, noticed=False, breaks=0, heard=(0, 0),
        )  # fmt: skip

    def moves(self, state: LinkState) -> Iterator[tuple[str, LinkState]]:
        if state.fault:
            return
        before, links.MOST_KEPT = links.MOST_KEPT, self.kept  # type: ignore[misc]
        try:
            yield from list(self._moves(state))
        finally:
            links.MOST_KEPT = before  # type: ignore[misc]

    def _moves(self, state: LinkState) -> Iterator[tuple[str, LinkState]]:
        alive = state.connections[-1].alive
        if state.welcomed and self._said(state.client) < self.messages:
            yield "the client says something", self._client_says(state)
        if state.server is not None and self._said(state.server) <= self.messages:
            yield "the server says something", self._server_says(state)
        if state.queue and alive:
            yield "the client's queue moves", self._moved(state)
        for place, connection in enumerate(state.connections):
            if connection.to_server:
                yield f"the server reads from connection {place}", self._server_reads(state, place)
        if state.to_client:
            yield "the client reads", self._client_reads(state)
        if alive and state.breaks < self.breaks:
            yield from self._broken(state)
        if not alive:
            last = len(state.connections) - 1
            if state.current == last:
                yield "the server notices", self._server_lost(state)
            if not state.noticed:
                yield "the client notices", self._client_lost(state)
            else:
                yield "the client has another connection", self._client_back(state)

    def faults(self, state: LinkState) -> Iterator[str]:
        if state.fault:
            yield state.fault
        if state.welcomed and state.server is not None:
            (of_client, of_server), sent = state.heard, (self._said(state.client), self._said(state.server) - 1)
            if of_client > sent[0] or of_server > sent[1]:
                yield f"{of_client} and {of_server} messages were heard where {sent} were said"
        if state.hellos > 1 + state.breaks:
            yield "it said hello more often than its connection broke"

    def outcome(self, state: LinkState) -> str:
        whole = state.heard == (self.messages, self.messages)
        again = f"after {state.hellos} hellos" if state.hellos > 1 else "in one conversation"
        return f"all was heard {again}" if whole else f"stuck at {state.heard} {again}"

    @staticmethod
    def _said(shot: Snapshot) -> int:
        return int(shot[_FIELDS.index("_sent")])

    def _ends(self, state: LinkState) -> tuple[ServerLink, Presence]:
        client, server = ServerLink(CLIENT, SERVER), Presence(SERVER, (CLIENT,), SESSION, 1.0)
        client._greeted = True
        restore(client._link, state.client)
        if state.server is not None:
            server.join(CLIENT, 0.0)
            restore(server._links[CLIENT], state.server)
        server._numbers[CLIENT] = state.number
        return client, server

    def _client_says(self, state: LinkState) -> LinkState:
        client, _ = self._ends(state)
        said = client.transmit(Fetch(chunk=self._said(state.client)), round=0)
        return replace(state, client=snapshot(client._link), queue=(*state.queue, tuple(said.frames)))

    def _server_says(self, state: LinkState) -> LinkState:
        _, server = self._ends(state)
        said = server.transmit(CLIENT, Chunk(chunk=self._said(state.server or ()) - 1), round=0)
        return self._sent(replace(state, server=snapshot(server._links[CLIENT])), [said])

    def _sent(self, state: LinkState, said: list[Transmit]) -> LinkState:
        """The server's messages go over its current connection, if that is there; else they are lost."""
        reaches = state.current == len(state.connections) - 1 and state.connections[-1].alive
        return replace(state, to_client=(*state.to_client, *(tuple(one.frames) for one in said if reaches)))

    @staticmethod
    def _moved(state: LinkState) -> LinkState:
        *former, last = state.connections
        last = replace(last, to_server=(*last.to_server, state.queue[0]))
        return replace(state, queue=state.queue[1:], connections=(*former, last))

    def _server_reads(self, state: LinkState, place: int) -> LinkState:
        connection = state.connections[place]
        frames, *rest = connection.to_server
        connections = list(state.connections)
        connections[place] = replace(connection, to_server=tuple(rest))
        state = replace(state, connections=tuple(connections))
        if place < state.newest or not (connection.alive or state.current in (None, place)):
            return state
        if connection.alive and state.current != place:
            state = replace(self._server_lost(state), current=place)
        state = replace(state, newest=place)
        _, server = self._ends(state)
        try:
            packet = server.read(CLIENT, frames)
        except RemoteProtocolError as error:
            return replace(state, fault=f"the server refuses: {error.detail}")
        said, of_client, of_server = list[Transmit](), *state.heard
        if packet is not None and packet.kind is Hello:
            server.join(CLIENT, 0.0)
            welcome = Welcome(roster=bytes(32), configuration=b"", spent=b"")
            said = [server.transmit(CLIENT, welcome, round=0)]
            of_client, of_server = 0, 0
        elif packet is not None and packet.kind is Resume:
            fits = server.asks(CLIENT, packet.envelope)
            missed = server.go_on(CLIENT, 0.0) if fits else None
            said = [server.refuse(CLIENT, "", packet.envelope)] if missed is None else missed
            if fits and missed is None:
                server.leave(CLIENT)
        elif packet is not None:
            message = packet.parse()
            if not isinstance(message, Fetch) or message.chunk != of_client:
                return replace(state, fault=f"the server heard {message} after {of_client}")
            of_client += 1
        link = server._links.get(CLIENT)
        state = replace(state, number=server._numbers[CLIENT], heard=(of_client, of_server))
        return self._sent(replace(state, server=None if link is None else snapshot(link)), said)

    def _client_reads(self, state: LinkState) -> LinkState:
        frames, *rest = state.to_client
        state, (client, _) = replace(state, to_client=tuple(rest)), self._ends(state)
        try:
            packet = client.read(frames, TrainingState.AWAIT_ROUND if state.welcomed else TrainingState.AWAIT_WELCOME)
        except RemoteProtocolError as error:
            return replace(state, fault=f"the client refuses: {error.detail}")
        said, welcomed, (of_client, of_server), hellos = list[Transmit](), state.welcomed, state.heard, state.hellos
        message = None if packet is None else packet.parse()
        rest_said = client.rest() if isinstance(message, Resume) else []
        if isinstance(message, Abort) or rest_said is None:
            if not (welcomed or client.asking):
                return replace(state, fault="the client is sent away")
            if welcomed and self.kept >= self.messages + 2:
                return replace(state, fault="a conversation is given up although everything is kept")
            said, welcomed, hellos = [client.hello(bytes(32), bytes)], False, hellos + 1
        elif isinstance(message, Resume):
            said = rest_said
        elif isinstance(message, Welcome) and not welcomed:
            welcomed = True
        elif isinstance(message, Chunk) and message.chunk == of_server and welcomed:
            of_server += 1
        elif message is not None:
            return replace(state, fault=f"the client heard {message} after {of_server}")
        queue = (*state.queue, *(tuple(one.frames) for one in said))
        heard = (of_client, of_server)
        return replace(state, client=snapshot(client._link), welcomed=welcomed, queue=queue, heard=heard, hellos=hellos)

    def _broken(self, state: LinkState) -> Iterator[tuple[str, LinkState]]:
        """The connection breaks, and of what was under way any beginning arrives in either direction."""
        *former, last = state.connections
        for arrived in range(len(last.to_server) + 1):
            for come in range(len(state.to_client) + 1):
                dead = Connection(last.to_server[:arrived], alive=False)
                name = f"the connection breaks, {arrived} messages to the server and {come} to the client arrive"
                yield (
                    name,
                    replace(
                        state, connections=(*former, dead), to_client=state.to_client[:come], breaks=state.breaks + 1
                    ),
                )

    def _server_lost(self, state: LinkState) -> LinkState:
        _, server = self._ends(state)
        if state.current is not None:
            server.link_lost(CLIENT, 0.0)
        shot = snapshot(server._links[CLIENT]) if CLIENT in server else None
        return replace(state, server=shot, current=None)

    def _client_lost(self, state: LinkState) -> LinkState:
        client, _ = self._ends(state)
        client.lost()
        return replace(state, client=snapshot(client._link), noticed=True)

    def _client_back(self, state: LinkState) -> LinkState:
        client, _ = self._ends(state)
        queue = (*state.queue, tuple(client.ask().frames))
        connections = (*state.connections, Connection())
        return replace(state, client=snapshot(client._link), queue=queue, connections=connections, noticed=False)
