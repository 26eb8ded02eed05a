"""What all parties of private inference do alike: read what their links bring, and wait at a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from typing import Final

from tacit.parties.links.client_endpoint import ClientEndpoint
from tacit.parties.links.endpoint import Endpoint, Event, Limits, LinkLost, LinkUp, MessageRefused, Received
from tacit.parties.links.keys import PartyKeys
from tacit.protocol.core.codec import Frame
from tacit.protocol.core.messages import CHUNK_BYTES
from tacit.protocol.core.roster import Member, Roster

AHEAD: Final = 1
"""Stages that are made ready while another one is computed."""
TICK_SECONDS: Final = 0.1
"""How often deadlines are looked at."""
LAST_WORDS_SECONDS: Final = 0.1
"""How long what somebody said before its link was lost may take to be read."""


def limits(patience: float) -> Limits:
    """Of the links of private inference: no message has more frames than three, and none more bytes than a chunk."""
    return Limits(max_frame_bytes=CHUNK_BYTES + 1024, max_frames=3, send_seconds=patience)


async def linked(address: str, keys: PartyKeys, server: Member, patience: float) -> ClientEndpoint:
    """A link to one who serves. EndpointError if he cannot be reached."""
    return await ClientEndpoint.connect(
        address, keys=keys, server=server, limits=limits(patience), connect_deadline=patience
    )


async def events(endpoint: Endpoint) -> AsyncGenerator[Event, None]:
    """What an endpoint reports, for ever. A lost link comes after what had arrived over it: whoever leaves says why.

    Everything else has its turn between two events. An endpoint whose peers say more than can be read never makes its
    reader wait: one of them would hold up the sessions of all others.
    """
    lost: list[LinkLost] = []
    due: float | None = None
    while True:
        event: Event | None = None
        with suppress(TimeoutError):
            async with asyncio.timeout_at(due):
                event = await endpoint.receive()
        if isinstance(event, LinkLost):
            lost.append(event)
            due = due or asyncio.get_running_loop().time() + LAST_WORDS_SECONDS
            continue
        if event is None or isinstance(event, LinkUp):
            for each in lost:
                yield each
            lost, due = [], None
        if event is not None:
            yield event
            await asyncio.sleep(0)


def readable(event: Received | MessageRefused) -> Sequence[Frame]:
    """The frames; none of a message beyond the limits, which machines refuse like any that cannot be read."""
    return event.frames if isinstance(event, Received) else ()


def dealer_of(roster: Roster) -> Member:
    """The one dealer; ValueError if the roster has none or several."""
    dealers = [member for member in roster.members if member.role == "dealer"]
    if len(dealers) != 1:
        names = [member.name for member in dealers]
        raise ValueError(f"private inference has exactly one dealer; the roster has {names}: correct the roles")
    return dealers[0]


async def tick(expire: Callable[[], None]) -> None:
    """Look at deadlines, for ever."""
    while True:
        await asyncio.sleep(TICK_SECONDS)
        expire()
