"""What all parties of private inference do alike: read what their links bring, wait at a deadline, and serve."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Final, Generic

from tacit.parties.inference.conversation import Conversation, Courier, ended
from tacit.parties.links.client_endpoint import ClientEndpoint, UnreachableError
from tacit.parties.links.endpoint import (
    Endpoint,
    Event,
    HandshakeRefused,
    Limits,
    LinkLost,
    LinkUp,
    MessageRefused,
    Received,
)
from tacit.parties.links.keys import PartyKeys
from tacit.parties.links.server_endpoint import ServerEndpoint
from tacit.parties.session.diary import Diary
from tacit.parties.session.shell import Surroundings
from tacit.protocol.core.codec import Frame
from tacit.protocol.core.messages import CHUNK_BYTES
from tacit.protocol.core.roster import Member, Roster
from tacit.protocol.inference.results import InferenceEnded
from tacit.protocol.inference.service import Answers, MachineT, Service

AHEAD: Final = 1
"""Stages that are made ready while another one is computed."""
TICK_SECONDS: Final = 0.1
"""How often deadlines are looked at."""
CONNECT_SECONDS: Final = 10.0
"""How often an address is looked up again, and whoever waits says so."""
LAST_WORDS_SECONDS: Final = 0.1
"""How long what somebody said before its link was lost may take to be read."""


def limits(patience: float) -> Limits:
    """Of the links of private inference: no message has more frames than three, and none more bytes than a chunk."""
    return Limits(max_frame_bytes=CHUNK_BYTES + 1024, max_frames=3, send_seconds=patience)


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """How one who serves is waited for."""

    seconds: float | None = None
    """How long; None: once, as long as its patience."""
    told: Callable[[str], None] = lambda reason: None
    """Told why there is no link yet, whenever that is another reason."""


async def linked(
    address: str, keys: PartyKeys, server: Member, patience: float, waiting: Waiting = Waiting()
) -> ClientEndpoint:
    """A link to one who serves, and may not be there yet. EndpointError if he cannot be reached."""
    at_once = waiting.seconds is None
    end, said = time.monotonic() + (patience if waiting.seconds is None else waiting.seconds), ""
    while True:
        try:
            return await ClientEndpoint.connect(
                address,
                keys=keys,
                server=server,
                limits=limits(patience),
                connect_deadline=patience if at_once else min(max(end - time.monotonic(), 0.0), CONNECT_SECONDS),
            )
        except UnreachableError as error:
            if at_once or time.monotonic() >= end:
                raise
            if str(error) != said:
                said = str(error)
                waiting.told(said)


async def events(endpoint: Endpoint, surroundings: Surroundings) -> AsyncGenerator[Event, None]:
    """What an endpoint reports, for ever; what is around the party is told messages first. A lost link comes after what
    had arrived over it: whoever leaves says why.

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
        # Where there is always another message nothing is ever waited for, and the time-out of that never comes.
        overdue = due is not None and asyncio.get_running_loop().time() >= due
        if event is None or overdue or isinstance(event, LinkUp):
            for each in lost:
                yield each
            lost, due = [], None
        if event is not None:
            if isinstance(event, Received):
                surroundings.heard(event.sender, event.frames)
            yield event
            await asyncio.sleep(0)


async def hear(
    server: str,
    endpoint: ClientEndpoint,
    heard: Callable[[Sequence[Frame]], None],
    lost: Callable[[str], None],
    surroundings: Surroundings,
) -> None:
    """Tell, for ever, what one who serves says, and that the link to it is lost."""
    async for event in events(endpoint, surroundings):
        if isinstance(event, Received | MessageRefused):
            heard(readable(event))
        elif isinstance(event, LinkLost):
            lost(f"the link to the {server} is lost")


def readable(event: Received | MessageRefused) -> Sequence[Frame]:
    """The frames; none of a message beyond the limits, which machines refuse like any that cannot be read."""
    return event.frames if isinstance(event, Received) else ()


async def tick(expire: Callable[[], None]) -> None:
    """Look at deadlines, for ever."""
    while True:
        await asyncio.sleep(TICK_SECONDS)
        expire()


@dataclass(frozen=True, kw_only=True)
class ServingSettings:
    """What whoever serves needs."""

    address: str
    keys: PartyKeys
    roster: Roster
    patience: float = 60.0
    """Seconds from which it follows how long it waits for whoever is due (conversation.py)."""
    surroundings: Surroundings = field(default_factory=Surroundings, repr=False, compare=False)


class ServingParty(Generic[MachineT]):
    """A party that listens, and has several sessions at the same time; it serves until it is cancelled."""

    LOST: ClassVar[str]
    """What is said of the link to a peer that is lost."""

    def __init__(self, settings: ServingSettings, service: Service[MachineT], diary: Diary) -> None:
        self.diary = diary
        self._serving = settings
        self._service = service
        self._couriers: dict[str, Courier] = {}

    async def serve(self, *beside: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Listen and serve, and do what is to be done beside that. EndpointError if it cannot listen."""
        async with await self._bound() as endpoint:
            self.diary.write("listening", address=endpoint.address)
            works = (self._listen(endpoint), tick(self._expire), *(work() for work in beside))
            tasks = [asyncio.ensure_future(work) for work in works]
            try:
                await asyncio.gather(*tasks)
            finally:
                await ended(*tasks)
                await self._leave()
                for courier in self._couriers.values():
                    await courier.close()

    async def check_address(self) -> None:
        """Find out that it can listen, and do not: who would come now would wait at the door. EndpointError if not."""
        await (await self._bound()).close()

    async def _bound(self) -> ServerEndpoint:
        own = self._serving
        return await ServerEndpoint.bind(own.address, keys=own.keys, roster=own.roster, limits=limits(own.patience))

    async def _listen(self, endpoint: ServerEndpoint) -> None:
        async for event in events(endpoint, self._serving.surroundings):
            if isinstance(event, Received | MessageRefused):
                if event.sender not in self._couriers:
                    send, lose = partial(endpoint.send, event.sender), partial(self._lose, event.sender)
                    self._couriers[event.sender] = Courier(send, lose)
                self._spread(self._service.feed(event.sender, readable(event), Conversation.now()))
            elif isinstance(event, LinkLost):
                self.diary.write("link-lost", peer=event.peer)
                self._lose(event.peer, self.LOST.format(event.peer))
            elif isinstance(event, HandshakeRefused):
                self.diary.write("stranger", reason=event.reason, public_key=event.public_key, address=event.address)

    def _lose(self, peer: str, detail: str) -> None:
        self._spread(self._service.drop(peer, detail, Conversation.now()))

    def _expire(self) -> None:
        self._spread(self._service.expire(Conversation.now()))

    def _spread(self, answers: Answers[MachineT]) -> None:
        """Do what the machines of sessions say."""
        raise NotImplementedError

    async def _leave(self) -> None:
        """End all sessions."""
        raise NotImplementedError

    def _tell_end(self, ended: InferenceEnded, **fields: Any) -> None:
        code = None if ended.code is None else ended.code.name
        self.diary.write("session-over", code=code, detail=ended.detail, culprit=ended.culprit, **fields)
