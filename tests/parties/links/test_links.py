"""Links that come and go: what the server reports of them, and what never gets lost on the way."""

import asyncio
from collections.abc import Callable

import pytest

from tacit.parties.links.client_endpoint import ClientEndpoint
from tacit.parties.links.endpoint import (
    Event,
    LinkLost,
    LinkUp,
    NotConnectedError,
    Received,
)
from tacit.parties.links.keys import PartyKeys
from tacit.parties.links.server_endpoint import ServerEndpoint
from tacit.protocol.core.roster import Roster

Keys = dict[str, PartyKeys]
ANYWHERE = "tcp://127.0.0.1:*"


@pytest.mark.asyncio
async def test_remains_of_an_ended_link_do_not_open_it_again(keys: Keys, roster: Roster) -> None:
    """A link that came and went, and one that took over its descriptor, before the server looked."""
    async with await ServerEndpoint.bind(ANYWHERE, keys=keys["server"], roster=roster) as server:
        async with await ClientEndpoint.connect(server.address, keys=keys["alice"], server=roster.server) as alice:
            await alice.send([b"remains"])
        async with await ClientEndpoint.connect(server.address, keys=keys["bob"], server=roster.server) as bob:
            await bob.send([b"bob"])
            events: list[Event] = []
            while not (events and isinstance(events[-1], Received) and events[-1].sender == "bob"):
                events.append(await asyncio.wait_for(server.receive(), 30))
            assert [event.sender for event in events if isinstance(event, Received)] == ["alice", "bob"]
            assert [event.peer for event in events if isinstance(event, LinkUp)].count("bob") == 1
            # Whatever was seen of Alice's link, it is over, and Bob's is not.
            ups = sum(event == LinkUp("alice") for event in events)
            assert ups == sum(event == LinkLost("alice") for event in events)
            assert LinkLost("bob") not in events
            with pytest.raises(NotConnectedError):
                await server.send("alice", [b"hello"])
            await server.send("bob", [b"hello"])


@pytest.mark.asyncio
async def test_send_notices_a_lost_link_before_receive_does(keys: Keys, roster: Roster, until: Callable) -> None:
    async def send_for_ever() -> None:
        async with asyncio.timeout(30):
            while True:
                await server.send("alice", [b"hello"])
                await asyncio.sleep(0)

    async with await ServerEndpoint.bind(ANYWHERE, keys=keys["server"], roster=roster) as server:
        async with await ClientEndpoint.connect(server.address, keys=keys["alice"], server=roster.server):
            await until(server, LinkUp)
        with pytest.raises(NotConnectedError, match="'alice' has"):
            await send_for_ever()
        assert await server.receive() == LinkLost("alice")


@pytest.mark.asyncio
async def test_send_that_notices_a_lost_link_wakes_a_waiting_receiver(
    keys: Keys, roster: Roster, until: Callable
) -> None:
    async with await ServerEndpoint.bind(ANYWHERE, keys=keys["server"], roster=roster) as server:
        async with await ClientEndpoint.connect(server.address, keys=keys["alice"], server=roster.server):
            await until(server, LinkUp)
            waiting = asyncio.create_task(until(server, LinkLost))
        with pytest.raises(NotConnectedError):
            await asyncio.gather(*(server.send("alice", [b"hello"]) for _ in range(1000)))
        assert await waiting == LinkLost("alice")
