"""Parties with fresh keys on the loopback interface, and a way to wait for a certain event."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from tacit.parties.endpoint import Endpoint, Event
from tacit.parties.keys import PartyKeys, generate
from tacit.protocol.roster import Roster

# Only how long a broken test hangs; no test passes or fails by it otherwise.
PATIENCE_SECONDS = 30

Kind = TypeVar("Kind", bound=Event)
Until = Callable[[Endpoint, type[Kind]], Awaitable[Kind]]


@pytest.fixture(scope="session")
def keys() -> dict[str, PartyKeys]:
    """Keys of the members, and of a stranger who is not one."""
    return {name: generate(name) for name in ("server", "alice", "bob", "stranger")}


@pytest.fixture(scope="session")
def roster(keys: dict[str, PartyKeys]) -> Roster:
    return Roster((keys["server"].member("server"), keys["alice"].member("client"), keys["bob"].member("client")))


@pytest.fixture
def until() -> Until:
    """until(endpoint, kind) receives until an event of that kind comes, and returns it."""

    async def until(endpoint: Endpoint, kind: type[Kind]) -> Kind:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not isinstance(event := await endpoint.receive(), kind):
                pass
            return event

    return until
