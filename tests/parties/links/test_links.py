"""Links that come and go: what the server reports of them, and what never gets lost on the way."""

import asyncio
from collections.abc import Callable
from pathlib import Path

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
from tacit.parties.links.tokens import TokenFile
from tacit.protocol.core.roster import Roster

Keys = dict[str, PartyKeys]
ANYWHERE = "tcp://127.0.0.1:*"


async def send_for_ever(server: ServerEndpoint) -> None:
    async with asyncio.timeout(30):
        while True:
            await server.send("alice", [b"hello"])
            await asyncio.sleep(0)


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
@pytest.mark.parametrize("with_tokens", [False, True])
async def test_the_last_words_of_a_client_are_heard(
    keys: Keys, roster: Roster, until: Callable, tmp_path: Path, with_tokens: bool
) -> None:
    """Also where the end of its link is noticed before they are read: nobody says them again."""
    own, others = (TokenFile(tmp_path / name) if with_tokens else None for name in ("alice", "server"))
    async with await ServerEndpoint.bind(ANYWHERE, keys=keys["server"], roster=roster, tokens=others) as server:
        async with await ClientEndpoint.connect(
            server.address, keys=keys["alice"], server=roster.server, tokens=own
        ) as alice:
            await until(server, LinkUp)
            await alice.send([b"last"])
        async with asyncio.timeout(30):
            with pytest.raises(NotConnectedError):
                await send_for_ever(server)
            assert await server.receive() == LinkLost("alice")
            heard = await server.receive()
    assert isinstance(heard, Received)
    assert [bytes(frame) for frame in heard.frames] == [b"last"]


@pytest.mark.asyncio
async def test_send_notices_a_lost_link_before_receive_does(keys: Keys, roster: Roster, until: Callable) -> None:
    async with await ServerEndpoint.bind(ANYWHERE, keys=keys["server"], roster=roster) as server:
        async with await ClientEndpoint.connect(server.address, keys=keys["alice"], server=roster.server):
            await until(server, LinkUp)
        with pytest.raises(NotConnectedError, match="'alice' has"):
            await send_for_ever(server)
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
