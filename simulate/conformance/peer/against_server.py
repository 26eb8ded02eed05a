"""The clients of a live server: all are ours, each on a link of its own, and in every case one of them cheats.

The server decides when a round starts, and bars whoever breaks a rule for the rest of its session. So every case is
played by another client while there are enough of them; then all leave, which ends the session, and the server must be
started again. The first case checks the model: it must have moved by the mean of what our clients contributed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tacit.parties.links.client_endpoint import ClientEndpoint, NotAdmittedError
from tacit.parties.links.endpoint import EndpointError, Event, LinkLost, LinkUp, Received
from tacit.parties.links.keys import PartyKeys, generate
from tacit.protocol.core.codec import Frame, decode
from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.link import NO_SESSION, Link, Traffic
from tacit.protocol.core.machine import Output
from tacit.protocol.core.messages import Abort
from tacit.protocol.core.outputs import Ended, Transmit
from tacit.protocol.core.primitives import SigningKey
from tacit.protocol.core.roster import Roster
from tacit.protocol.session.client import TrainingClient
from tacit.protocol.session.messages import MESSAGES
from tacit.protocol.session.rounds import RoundOver, Train
from tacit.protocol.session.tables import TrainingState
from tacit.protocol.sum.configuration import Configuration, Policy
from tacit.protocol.sum.messages import AdvertiseKeys
from tacit.secagg.packing import Total
from tacit.simulate.conformance.peer.keyring import Keyring
from tacit.simulate.conformance.peer.script import (
    FEWEST_CLIENTS,
    Case,
    DrawnUpdate,
    PeerVerdict,
    RoundKnowledge,
    Saying,
    draw_update,
    verdict,
)
from tacit.simulate.conformance.peer.server_cases import HONEST, OTHERS, STAYS, STRANGER, refused

Vector = npt.NDArray[np.floating[Any]]

_POLICY: Final = Policy(modes=("active", "semi-honest"), smallest_cohort=2, least_corrupt=0.0, largest_clip=1e6)
_FOREVER: Final = 1e9
"""Seconds; our machines stand still in time, and the kit has a deadline of its own."""
_NOT_THERE: Final = (TrainingState.OFFLINE, TrainingState.AWAIT_WELCOME, TrainingState.ENDED)


@dataclass(frozen=True)
class End:
    """A round that ended for one of our clients, or its session: then the round is None."""

    round: int | None
    code: Code | None


class Actor:
    """One of our clients on its link. `case` is what it plays."""

    def __init__(self, keys: PartyKeys, roster: Roster, endpoint: ClientEndpoint) -> None:
        self.endpoint = endpoint
        self.case = HONEST
        self.lied: int | None = None
        """The round of its lie, once it is told."""
        self.spent = False
        """Whether it has played a case in this session that it may be barred for."""
        self.models: dict[int, bytes] = {}
        self.contributions: dict[int, DrawnUpdate] = {}
        self.ends: list[End] = []
        """Since the lie of the case."""
        self._keys = keys
        self._roster = roster
        self._stage = RoundKnowledge(len(roster.clients), roster.index(keys.name))
        self._linked = False
        self._begin()

    def _begin(self) -> None:
        self.machine = TrainingClient(
            self._keys.name,
            self._roster,
            signing=SigningKey(self._keys.signing_secret),
            policy=_POLICY,
            journal=(),
            entropy=os.urandom,
            patience=_FOREVER,
            grace=_FOREVER,
        )
        self._link = Link(self._keys.name, self._roster.server.name, NO_SESSION, Traffic(), MESSAGES)
        self.models, self.contributions = {}, {}

    @property
    def joined(self) -> bool:
        """Whether it is in a session."""
        return self.machine.state not in _NOT_THERE

    async def take(self, event: Event) -> None:
        """What happened on its link."""
        if isinstance(event, Received):
            self._note_abort(event.frames)
            await self._perform(self.machine.feed(event.frames, 0.0))
        elif isinstance(event, LinkLost):
            self._linked = False
            self.ends.append(End(None, Code.LEFT))
        elif isinstance(event, LinkUp) and not self._linked:
            # Behind a new link there is a server that was started anew.
            self._linked, self.spent = True, False
            await self._join()

    def _note_abort(self, frames: Sequence[Frame]) -> None:
        """The server's own words, whatever our machine makes of them after a lie."""
        with contextlib.suppress(RemoteProtocolError):
            packet = decode(frames, MESSAGES)
            if isinstance(message := packet.parse(), Abort):
                self.ends.append(End(packet.envelope.round or None, message.code))

    async def leave(self) -> None:
        """End the session."""
        if self.joined:
            await self._perform(self.machine.give_up("the next test needs another session", 0.0))

    async def _join(self) -> None:
        self._begin()
        await self._perform(self.machine.start(0.0))

    async def _perform(self, outputs: Sequence[Output]) -> None:
        for output in outputs:
            if isinstance(output, Transmit):
                await self._transmit(output)
            elif isinstance(output, Train):
                contribution = draw_update(self.machine.configuration)
                self.models[output.round], self.contributions[output.round] = output.model, contribution
                await self._perform(self.machine.contribute(output.round, contribution.words, 0.0))
            elif isinstance(output, RoundOver):
                self.ends.append(End(output.round, output.code))
            elif isinstance(output, Ended):
                self.ends.append(End(None, output.code))

    async def _transmit(self, output: Transmit) -> None:
        packet = decode(output.frames, MESSAGES)
        if self.case.joins and self.lied is None and packet.kind is AdvertiseKeys:
            # The server waits for this message: nothing of it is under way that belongs to the former conversation.
            self._lie_in(packet.envelope.round)
            await self._join()
            return
        if packet.envelope.session != self._link.session:
            self._link = Link(self._keys.name, self._roster.server.name, packet.envelope.session, Traffic(), MESSAGES)
        said = Saying(packet.parse(), packet.envelope.round, packet.payload)
        lies = [said] if self.case.joins and self.lied is None else list(self.case.lie(self._stage, said))
        if lies != [said] and self.lied is None:
            self._lie_in(said.round)
        for lie in lies:
            frames = lie.frames(self._link)
            for _ in range(lie.times):
                await self.endpoint.send(frames)

    def _lie_in(self, round: int) -> None:
        self.lied, self.ends = round, []


class AgainstServer:
    """Plays cases one after the other. wait: seconds for anything from the server; tell: what its operator must do."""

    def __init__(self, keyring: Keyring, address: str, *, wait: float, tell: Callable[[str], None]) -> None:
        self._keyring = keyring
        self._address = address
        self._wait = wait
        self._tell = tell
        self._actors: list[Actor] = []
        self._events: asyncio.Queue[tuple[Actor, Event | EndpointError]] = asyncio.Queue()
        self._receivers: list[asyncio.Task[None]] = []

    async def _connect(self) -> None:
        for name in self._keyring.ours:
            endpoint = await self._endpoint(self._keyring.keys[name])
            actor = Actor(self._keyring.keys[name], self._keyring.roster, endpoint)
            self._actors.append(actor)
            self._receivers.append(asyncio.create_task(self._receive(actor)))

    async def close(self) -> None:
        """End the session and close the links."""
        for actor in self._actors:
            await actor.leave()
        for receiver in self._receivers:
            receiver.cancel()
        await asyncio.gather(*self._receivers, return_exceptions=True)
        await asyncio.gather(*(actor.endpoint.close() for actor in self._actors))

    async def play(self, case: Case) -> PeerVerdict:
        """Have it played, and see what becomes of the liar and of the others. Raises EndpointError."""
        if not self._actors:
            await self._connect()
        try:
            if case is STRANGER:
                return verdict(case, await self._as_stranger())
            await self._enough_actors()
            return verdict(case, await (self._honestly() if case is HONEST else self._with_liar(case)))
        except TimeoutError:
            return verdict(case, f"nothing comes for {self._wait:g} s")
        finally:
            for actor in self._actors:
                actor.case = HONEST

    async def _with_liar(self, case: Case) -> str:
        liar = next(actor for actor in self._actors if actor.joined and not actor.spent)
        liar.case, liar.lied, liar.spent = case, None, True
        await self._listen(lambda: liar.lied is not None)
        # Who cheated in an earlier case may still be told that it is barred.
        others = [actor for actor in self._actors if actor.joined and not actor.spent]
        lied = liar.lied or 0
        for actor in others:
            actor.ends = []

        def last(actor: Actor) -> End | None:
            return next((end for end in actor.ends if end.round is None or end.round >= lied), None)

        await self._listen(lambda: last(liar) is not None and all(last(actor) is not None for actor in others))
        seen, codes = last(liar), {end.code for end in map(last, others) if end is not None}
        assert seen is not None
        finished = (
            OTHERS if codes == {None} else f"the others end with {', '.join(code.name for code in codes if code)}"
        )
        liar.spent = seen.code not in (None, Code.TIMEOUT)
        return f"{STAYS}, {finished}" if seen.code is None else refused(seen.code, finished)

    async def _honestly(self) -> str:
        actors = [actor for actor in self._actors if actor.joined]
        await self._listen(lambda: all(len(actor.models) > 2 for actor in actors))
        round = min(actors[0].models)
        if any(End(held, None) not in actor.ends for actor in actors for held in (round, round + 1)):
            return "a round has no sum"
        for held in (round, round + 1):
            contributions = [actor.contributions[held] for actor in actors]
            before, after = (np.frombuffer(actors[0].models[which], "<f4") for which in (held, held + 1))
            if not _moved_by_mean(actors[0].machine.configuration, contributions, before, after):
                return "all finish, the model is wrong"
        return HONEST.expected

    async def _as_stranger(self) -> str:
        try:
            endpoint = await self._endpoint(generate("stranger"))
        except NotAdmittedError:
            return STRANGER.expected
        except EndpointError as error:
            return str(error)
        await endpoint.close()
        return "admitted"

    async def _enough_actors(self) -> None:
        """Make sure that enough clients are there of which none is barred."""
        if len([actor for actor in self._actors if actor.joined and not actor.spent]) >= FEWEST_CLIENTS:
            return
        if any(actor.spent for actor in self._actors):
            for actor in self._actors:
                await actor.leave()
            self._tell(f"waiting for the server at {self._address} to be started again: it bars most clients by now")
        await self._listen(lambda: all(actor.joined and not actor.spent for actor in self._actors))

    async def _endpoint(self, keys: PartyKeys) -> ClientEndpoint:
        return await ClientEndpoint.connect(
            self._address, keys=keys, server=self._keyring.roster.server, connect_deadline=self._wait
        )

    async def _listen(self, until: Callable[[], bool]) -> None:
        """Take part until the condition holds. TimeoutError if the server is silent, EndpointError if it is gone."""
        while not until():
            async with asyncio.timeout(self._wait):
                actor, event = await self._events.get()
            if isinstance(event, EndpointError):
                raise event
            await actor.take(event)

    async def _receive(self, actor: Actor) -> None:
        while True:
            try:
                await self._events.put((actor, await actor.endpoint.receive()))
            except EndpointError as error:
                await self._events.put((actor, error))
                return


def _moved_by_mean(
    configuration: Configuration, contributions: Sequence[DrawnUpdate], before: Vector, after: Vector
) -> bool:
    """Whether the model moved by the mean of the contributions, up to quantisation and the rounding of float32."""
    total = Total(
        values=np.sum([contribution.values for contribution in contributions], axis=0),
        weights=np.sum([contribution.weights for contribution in contributions], axis=0),
        metrics={},
        tensor_sizes=configuration.tensor_sizes,
    )
    mean, _ = total.mean()
    # Every weight is 1. Of the float32 numbers the old one, the step and the new one are rounded once each.
    quantisation = configuration.packing().error_bound(len(contributions)) / len(contributions)
    rounding = 2.0**-24 * (2 * np.abs(before) + 2 * np.abs(mean) + np.abs(after))
    return bool((np.abs(after - (before + mean)) <= quantisation + rounding).all())
