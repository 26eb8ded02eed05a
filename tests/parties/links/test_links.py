"""Links that come and go: what the server reports of them, and what never gets lost on the way."""

import asyncio
import os
from collections.abc import Callable

import pytest

from tacit.parties.links.client_endpoint import ClientEndpoint
from tacit.parties.links.endpoint import (
    EndpointClosedError,
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
async def test_lost_link_and_return(keys: Keys, roster: Roster, until: Callable) -> None:
    async with await ServerEndpoint.bind(ANYWHERE, keys=keys["server"], roster=roster) as server:
        async with await ClientEndpoint.connect(server.address, keys=keys["bob"], server=roster.server) as bob:
            assert await until(server, LinkUp) == LinkUp("bob")
            for _ in range(3):
                async with await ClientEndpoint.connect(
                    server.address, keys=keys["alice"], server=roster.server
                ) as alice:
                    assert await until(server, LinkUp) == LinkUp("alice")
                    await server.send("alice", [b"hello"])
                    assert bytes((await until(alice, Received)).frames[0]) == b"hello"
                assert await until(server, LinkLost) == LinkLost("alice")
                with pytest.raises(NotConnectedError, match="'alice' has no link"):
                    await server.send("alice", [b"hello"])
            await bob.send([b"still here"])
            assert (await until(server, Received)).sender == "bob"
        assert await until(server, LinkLost) == LinkLost("bob")


@pytest.mark.asyncio
async def test_last_message_arrives_although_the_client_closes_at_once(
    keys: Keys, roster: Roster, until: Callable
) -> None:
    async with await ServerEndpoint.bind(ANYWHERE, keys=keys["server"], roster=roster) as server:
        large = os.urandom(3_000_000)
        async with await ClientEndpoint.connect(server.address, keys=keys["alice"], server=roster.server) as client:
            await client.send([large])
        assert bytes((await until(server, Received)).frames[0]) == large


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
async def test_newest_of_several_links_is_used_and_an_older_one_never_again(
    keys: Keys, roster: Roster, until: Callable
) -> None:
    async with (
        await ServerEndpoint.bind(ANYWHERE, keys=keys["server"], roster=roster) as server,
        await ClientEndpoint.connect(server.address, keys=keys["alice"], server=roster.server) as first,
    ):
        await until(server, LinkUp)
        async with await ClientEndpoint.connect(server.address, keys=keys["alice"], server=roster.server) as second:
            assert await server.receive() == LinkLost("alice")
            assert await server.receive() == LinkUp("alice")
            await server.send("alice", [b"to the newest"])
            assert bytes((await until(second, Received)).frames[0]) == b"to the newest"
            await first.send([b"from the older"])
            await second.send([b"from the newest"])
            assert bytes((await until(server, Received)).frames[0]) == b"from the newest"
        assert await server.receive() == LinkLost("alice")
        await first.send([b"from the older"])
        async with await ClientEndpoint.connect(server.address, keys=keys["alice"], server=roster.server) as third:
            assert await server.receive() == LinkUp("alice")
            await third.send([b"from the last"])
            assert await server.receive() == Received("alice", (memoryview(b"from the last"),))


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


@pytest.mark.asyncio
async def test_cancelled_receive_loses_nothing(keys: Keys, roster: Roster, until: Callable) -> None:
    async with (
        await ServerEndpoint.bind(ANYWHERE, keys=keys["server"], roster=roster) as server,
        await ClientEndpoint.connect(server.address, keys=keys["alice"], server=roster.server) as client,
    ):
        await until(server, LinkUp)
        numbers = [str(number).encode() for number in range(100)]
        received: list[bytes] = []
        for number in numbers:
            waiting = asyncio.create_task(server.receive())
            await asyncio.sleep(0)
            await client.send([number])
            waiting.cancel()
            (outcome,) = await asyncio.gather(waiting, return_exceptions=True)
            if isinstance(outcome, Received):
                received.append(bytes(outcome.frames[0]))
        while len(received) < len(numbers):
            received.append(bytes((await until(server, Received)).frames[0]))
        assert received == numbers


@pytest.mark.asyncio
async def test_after_close(keys: Keys, roster: Roster) -> None:
    server = await ServerEndpoint.bind(ANYWHERE, keys=keys["server"], roster=roster)
    client = await ClientEndpoint.connect(server.address, keys=keys["alice"], server=roster.server)
    assert await server.receive() == LinkUp("alice")
    waiting = asyncio.create_task(server.receive())
    await asyncio.sleep(0)
    for endpoint in (server, client):
        await endpoint.close()
        await endpoint.close()
        with pytest.raises(EndpointClosedError):
            await endpoint.receive()
    with pytest.raises(EndpointClosedError):
        await waiting
    with pytest.raises(EndpointClosedError):
        await server.send("alice", [b"hello"])
    with pytest.raises(EndpointClosedError):
        await client.send([b"hello"])
