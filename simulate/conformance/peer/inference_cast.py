"""Two parties of private inference that are ours, each with a link to the third: how a case is played.

What our machines say goes through the lie of the case. Then everything that comes is heard until the live party has
ended the session towards both of ours, or has completed it; or until it is silent for too long.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from tacit.parties.links.client_endpoint import ClientEndpoint
from tacit.parties.links.endpoint import EndpointError, NotConnectedError, PeerStalledError, Received
from tacit.parties.links.server_endpoint import ServerEndpoint
from tacit.protocol.core.codec import Frame, decode
from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.link import NO_SESSION, Link, Traffic
from tacit.protocol.core.messages import Abort, Message
from tacit.protocol.inference.messages import INFERENCE_MESSAGES, MaterialOver
from tacit.protocol.inference.results import InferenceEnded
from tacit.simulate.conformance.peer.inference_script import OTHER_SESSION, InferenceCase, Observed, Scene
from tacit.simulate.conformance.peer.script import PeerVerdict, Saying, verdict

FOREVER: Final = 1e9
"""Seconds; our machines stand still in time, and the kit has a deadline of its own."""


class Line:
    """The link of one of ours to the live party, which can be closed and opened again. make: opens an endpoint."""

    def __init__(self, own: str, live: str, make: Callable[[], Awaitable[ClientEndpoint | ServerEndpoint]]) -> None:
        self.own = own
        self._live = live
        self._make = make
        self._endpoint: ClientEndpoint | ServerEndpoint | None = None
        self._receiver: asyncio.Task[None] | None = None

    async def open(self, events: asyncio.Queue[tuple[str, Sequence[Frame] | EndpointError]]) -> None:
        """Open it unless it is open; what comes goes to the queue. Raises EndpointError."""
        if self._endpoint is None:
            self._endpoint = await self._make()
            self._receiver = asyncio.create_task(self._receive(self._endpoint, events))

    async def close(self) -> None:
        """Close it; closing twice is harmless."""
        if self._endpoint is None or self._receiver is None:
            return
        self._receiver.cancel()
        await asyncio.gather(self._receiver, return_exceptions=True)
        await self._endpoint.close()
        self._endpoint = None

    async def send(self, frames: Sequence[Frame]) -> None:
        """Say this, if anybody is there to hear it: who refuses the first of several messages may have gone."""
        with contextlib.suppress(NotConnectedError, PeerStalledError):
            if isinstance(self._endpoint, ServerEndpoint):
                await self._endpoint.send(self._live, frames)
            elif self._endpoint is not None:
                await self._endpoint.send(frames)

    async def _receive(
        self,
        endpoint: ClientEndpoint | ServerEndpoint,
        events: asyncio.Queue[tuple[str, Sequence[Frame] | EndpointError]],
    ) -> None:
        try:
            while True:
                event = await endpoint.receive()
                if isinstance(event, Received) and event.sender == self._live:
                    events.put_nowait((self.own, event.frames))
        except EndpointError as error:
            events.put_nowait((self.own, error))


class InferenceCast:
    """Plays cases one after the other. Subclasses are the machines of ours.

    live: name of the party under test; lines: of ours, opened in this order; liars: who tells the lies, unless a case
    says that both do; roles: what ours are called in verdicts; wait: seconds for anything from the live party.
    """

    def __init__(
        self, live: str, lines: Sequence[Line], *, liars: Sequence[str], roles: Mapping[str, str], wait: float
    ) -> None:
        self.live = live
        self._lines = {line.own: line for line in lines}
        self._liars = liars
        self._roles = roles
        self._wait = wait
        self._events: asyncio.Queue[tuple[str, Sequence[Frame] | EndpointError]] = asyncio.Queue()
        self._links: dict[str, Link] = {}
        self._former: dict[str, dict[type[Message], Saying]] = {}
        self._past: set[bytes] = set()
        """Sessions of earlier cases."""
        self._replaced: set[bytes] = set()
        """Sessions of this case that we have left for another one."""
        self._sessions: set[bytes] = set()
        """All sessions of this case."""
        self._silent: set[str] = set()
        self._liars_before: set[str] = set()
        self._case: InferenceCase
        self.observed: Observed
        self.involved: set[str] = set()
        """Who of ours has something to do with the live party in this session."""
        self.done: set[str] = set()
        """Who of ours is finished with the live party."""
        self.refused: set[str] = set()
        """Who of ours was told that it has ended with a code."""

    async def play(self, case: InferenceCase) -> PeerVerdict:
        """Tell the lie, and see what follows. Raises EndpointError when the live party cannot be reached."""
        self._case, self.observed = case, Observed(self._roles, case)
        self._past |= self._sessions
        self._sessions, self._replaced, self._silent, self._liars_before = set(), set(), set(), set()
        self._former = {name: {} for name in self._lines}
        self.restart()
        try:
            for line in self._lines.values():
                await line.open(self._events)
            await self.begin()
            await self.listen(self._settled)
        except TimeoutError:
            self.observed.reproach = f"nothing more comes for {self._wait:g} s"
        self.observed.held = self.involved <= self.done and self.held and not self.refused
        await self._dismiss()
        return verdict(case, self.observed.words())

    async def close(self) -> None:
        """Close all links."""
        for line in self._lines.values():
            await line.close()

    async def begin(self) -> None:
        """Begin a session with the live party. TimeoutError when it does not come."""
        raise NotImplementedError

    async def begin_again(self) -> None:
        """Begin another one in the middle of it."""
        raise NotImplementedError

    async def hear(self, own: str, frames: Sequence[Frame], message: Message | None) -> None:
        """Feed our machines; message: None if it cannot be read."""
        raise NotImplementedError

    @property
    def held(self) -> bool:
        """Whether our machines have come to a regular end."""
        raise NotImplementedError

    @property
    def openings(self) -> tuple[tuple[int, int], ...]:
        """As of Scene."""
        return ()

    def restart(self) -> None:
        """Nobody of ours is in a session."""
        self.involved, self.done, self.refused = set(), set(), set()

    def blame(self, own: str, ended: InferenceEnded) -> None:
        """One of our machines has ended by itself: it refuses what the live party says."""
        if ended.code is not None and own not in self.observed.aborts and not self.observed.reproach:
            self.observed.reproach = f"breaks a rule: {ended.code.name}, {ended.detail}"

    async def say(self, own: str, frames: Sequence[Frame]) -> None:
        """Say to the live party what a machine of ours says, or what the lie makes of it."""
        packet = decode(frames, INFERENCE_MESSAGES)
        envelope, case = packet.envelope, self._case
        said = Saying(packet.parse(), envelope.round, packet.payload)
        if not envelope.sequence or own not in self._links:
            self._links[own] = Link(own, self.live, envelope.session, Traffic(), INFERENCE_MESSAGES)
        self._sessions |= {envelope.session} - {NO_SESSION}
        if own in self._silent:
            return
        lies: Sequence[Saying] = [said]
        if (own in self._liars or case.together) and own not in self._liars_before:
            acts = packet.kind is case.at
            lies = [] if acts else list(case.lie(Scene(own, self._former[own], self.openings), said))
            if lies != [said]:
                self.observed.liar = own
                self._liars_before.add(own)
            if acts:
                await self._act(own)
                return
        self._former[own][packet.kind] = said
        for lie in lies:
            await self._say(own, lie)
        if case.act == "stops" and own == self.observed.liar:
            self._silent.add(own)

    async def _act(self, own: str) -> None:
        """What else than a lie a case has us do."""
        if self._case.act == "begins again":
            self._replaced |= self._sessions
            self.restart()
            await self.begin_again()
            return
        self._silent.add(own)
        if self._case.act == "hangs up":
            self.done.add(own)
            await self._lines[own].close()

    async def _say(self, own: str, said: Saying) -> None:
        link = self._links[own]
        if said.envelope.get("session") == OTHER_SESSION:
            link = Link(own, self.live, OTHER_SESSION, Traffic(), INFERENCE_MESSAGES)
        elif isinstance(said.message, Abort | MaterialOver):
            self.done.add(own)
        frames = said.frames(link)
        for _ in range(said.times):
            await self._lines[own].send(frames)

    async def listen(self, until: Callable[[], bool]) -> None:
        """Take part until the condition holds. TimeoutError when the live party is silent."""
        while not until():
            async with asyncio.timeout(self._wait):
                own, event = await self._events.get()
            if isinstance(event, EndpointError):
                raise event
            await self._take(own, event)

    async def _take(self, own: str, frames: Sequence[Frame]) -> None:
        session, message = NO_SESSION, None
        with contextlib.suppress(RemoteProtocolError):
            packet = decode(frames, INFERENCE_MESSAGES)
            session = packet.envelope.session
            message = packet.parse()
        if session in self._past or session == OTHER_SESSION:
            return
        if isinstance(message, Abort):
            self.observed.aborts.setdefault(own, message)
        if session in self._replaced:
            return
        if isinstance(message, Abort):
            self.done.add(own)
            self.refused.add(own)
        await self.hear(own, frames, message)

    def _settled(self) -> bool:
        """Whether nothing more is to come."""
        observed, witness = self.observed, self._case.witness
        if witness and observed.aborts and not observed.reproach:
            return any(self._roles[name] == witness for name in observed.aborts)
        return bool(observed.reproach) or (bool(self.involved) and self.involved <= self.done)

    async def _dismiss(self) -> None:
        """Let the live party end what it has not ended."""
        abort = Saying(Abort(code=Code.LEFT, detail="the next test begins another session", culprit=""), round=0)
        for own in self.involved - self.done:
            if own in self._links:
                await self._say(own, abort)
