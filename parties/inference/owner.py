"""What both owners do in a session alike: wait at a deadline, and go through the stages of a pass."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from typing import Final

import torch

from tacit.parties.inference.conversation import Conversation, Worker
from tacit.parties.inference.preparation import Preparation
from tacit.parties.inference.rounds import PassAtWork, RoundCost
from tacit.parties.links.endpoint import Endpoint, Event, Limits, LinkLost, LinkUp, MessageRefused, Received
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


async def hold_pass(
    conversation: Conversation, preparation: Preparation, worker: Worker, share: torch.Tensor
) -> tuple[torch.Tensor, list[RoundCost]]:
    """All stages of a pass, from this owner's share of the input to that of the output, and what they cost."""
    at_work = PassAtWork(conversation, worker)
    for _ in range(preparation.stages_of_a_pass):
        stage = await preparation.stage()
        share = await at_work.run(stage.name, stage.run(share))
    return share, at_work.costs


async def tick(expire: Callable[[], None]) -> None:
    """Look at deadlines, for ever."""
    while True:
        await asyncio.sleep(TICK_SECONDS)
        expire()
