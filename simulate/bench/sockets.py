"""The same exchange over real sockets: every client has a CURVE link of its own to the server, on loopback TCP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from tacit.parties.links.client_endpoint import ClientEndpoint
from tacit.parties.links.endpoint import EndpointClosedError, LinkLost, NotConnectedError, Received
from tacit.parties.links.keys import generate
from tacit.parties.links.server_endpoint import ServerEndpoint
from tacit.protocol.core.messages import Phase
from tacit.protocol.core.roster import Roster
from tacit.simulate.bench.ends import SERVER, BenchmarkError, Frames, TimedServer

MOST_CLIENTS = 200
"""Every link takes threads and sockets of its own in this one process."""

LOOPBACK = "tcp://127.0.0.1:*"


Ask = Callable[[Frames | None], list[Frames]]
"""What a client answers to a message; None: it advertises its keys."""


async def exchange_over_sockets(
    clients: Mapping[str, Ask], server: TimedServer, dropping: set[str], progress: Callable[[str], None]
) -> None:
    """Compute the sum. A dropping client closes its link when it is told who shared, instead of sending its vector."""
    if len(clients) > MOST_CLIENTS:
        raise BenchmarkError(f"--transport zmq takes at most {MOST_CLIENTS} clients on one machine, not {len(clients)}")
    keys = {name: generate(name) for name in (SERVER, *clients)}
    roster = Roster(members=tuple(own.member("server" if name == SERVER else "client") for name, own in keys.items()))
    async with await ServerEndpoint.bind(LOOPBACK, keys=keys[SERVER], roster=roster) as endpoint:
        progress("connecting")
        links = await asyncio.gather(
            *(ClientEndpoint.connect(endpoint.address, keys=keys[name], server=roster.server) for name in clients)
        )
        tasks = [
            asyncio.ensure_future(_client(ask, link, server if name in dropping else None))
            for (name, ask), link in zip(clients.items(), links, strict=True)
        ]
        try:
            await _serve(server, endpoint, progress)
        finally:
            await asyncio.gather(*(link.close() for link in links))
            await asyncio.gather(*tasks, return_exceptions=True)


async def _serve(server: TimedServer, endpoint: ServerEndpoint, progress: Callable[[str], None]) -> None:
    phase = ""
    while server.summed is None:
        event = await endpoint.receive()
        if isinstance(event, Received):
            answers = server.receive(event.sender, list(event.frames))
        elif isinstance(event, LinkLost):
            answers = server.drop(event.peer)
        else:
            continue
        for receiver, frames in answers:
            try:
                await endpoint.send(receiver, frames)
            except NotConnectedError:
                continue
        if server.machine.state.value != phase:
            phase = server.machine.state.value
            progress(phase)


async def _client(ask: Ask, link: ClientEndpoint, drops: TimedServer | None) -> None:
    """A client at its link. drops: the server of whose MASKED_INPUT it takes no part."""
    for frames in ask(None):
        await link.send(frames)
    try:
        while True:
            event = await link.receive()
            if not isinstance(event, Received):
                continue
            if drops is not None and drops.machine.state.value == Phase.MASKED_INPUT.value:
                await link.close()
                return
            for frames in ask(list(event.frames)):
                await link.send(frames)
    except EndpointClosedError:
        return
