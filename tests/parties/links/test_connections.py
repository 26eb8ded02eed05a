"""How many links each member has open."""

from collections.abc import Callable

import pytest

from tacit.parties.links.client_endpoint import ClientEndpoint
from tacit.parties.links.endpoint import MOST_LINKS, Received
from tacit.parties.links.keys import PartyKeys
from tacit.parties.links.server_endpoint import Connections, ServerEndpoint
from tacit.protocol.core.roster import Roster

Keys = dict[str, PartyKeys]
ANYWHERE = "tcp://127.0.0.1:*"

SECONDS = 10.0  # Of a handshake.


def test_silent_links_of_others_hold_up_no_place_for_long() -> None:
    connections = Connections(SECONDS)
    connections.accept(1, 0.0)
    assert connections.admit("bob", 0.0) == 1
    for descriptor in range(2, 2 + MOST_LINKS):
        now = 100.0 * descriptor
        connections.accept(descriptor, now)
        assert connections.admit("alice", now) is not None
        connections.end(descriptor)
    # All of Alice's ended without a word, and Bob's is as silent: it was opened at another time.
    assert connections.admit("alice", 2000.0) is not None


def test_a_silent_link_keeps_its_place_until_it_ends() -> None:
    connections = Connections(SECONDS)
    for descriptor in range(MOST_LINKS):
        connections.accept(descriptor, float(descriptor))
        assert connections.admit("alice", float(descriptor)) is not None
    connections.accept(100, 1e6)
    assert connections.admit("alice", 1e6) is None
    connections.end(0)
    assert connections.admit("alice", 1e6) is not None
    connections.accept(101, 1e6)
    assert connections.admit("alice", 1e6) is None
    # Others have places of their own.
    assert connections.admit("bob", 1e6) is not None


def test_a_link_that_is_over_when_it_is_first_heard_is_no_failed_handshake() -> None:
    connections = Connections(SECONDS)
    connections.accept(1, 1.0)
    first = connections.admit("alice", 2.0)
    assert first is not None
    connections.speak("alice", first, 1, None)
    assert connections.failing(1) == (False, None)
    connections.end(1)
    # Another one has its descriptor by the time that a message of the former is read.
    connections.accept(1, 3.0)
    second = connections.admit("alice", 4.0)
    assert second is not None
    connections.end(1)
    connections.accept(1, 5.0)
    connections.speak("alice", second, 1, None)
    assert connections.failing(1) == (True, None)


@pytest.mark.asyncio
async def test_links_that_come_and_go_keep_no_places(keys: Keys, roster: Roster, until: Callable) -> None:
    async with await ServerEndpoint.bind(ANYWHERE, keys=keys["server"], roster=roster) as server:
        for _ in range(3 * MOST_LINKS):
            async with await ClientEndpoint.connect(server.address, keys=keys["alice"], server=roster.server) as alice:
                await alice.send([b"hello"])
                assert (await until(server, Received)).sender == "alice"
