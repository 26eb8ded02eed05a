"""The clients of a live server: all are ours, each on its own link, and in every case one of them cheats.

The server decides when a round starts, and excludes a client that breaks a rule for the rest of its session. So every
case uses another client while there are enough of them; then all leave, which ends the session, and the server must be
restarted. The first case checks the model: it must have moved by the mean of our clients' contributions.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tacit.parties.links.client_endpoint import NotAdmittedError
from tacit.parties.links.endpoint import EndpointError, Event, LinkLost, LinkUp
from tacit.parties.links.keys import generate
from tacit.protocol.core.codec import Envelope
from tacit.protocol.core.errors import Code
from tacit.protocol.core.link import Link, Traffic
from tacit.protocol.core.machine import Ended, Output
from tacit.protocol.core.messages import Abort, Message
from tacit.protocol.session.messages import MESSAGES
from tacit.protocol.session.rounds import RoundOver, Train
from tacit.protocol.session.states import TrainingState
from tacit.protocol.sum.configuration import Configuration
from tacit.protocol.sum.messages import AdvertiseKeys
from tacit.protocol.sum.policy import Policy
from tacit.secagg.packing import Total
from tacit.secagg.ring import Words
from tacit.simulate.conformance.peer.cast import Cast, Keyring, Line, connecting
from tacit.simulate.conformance.peer.script import (
    FEWEST_CLIENTS,
    Case,
    DrawnUpdate,
    PeerVerdict,
    RoundKnowledge,
    draw_update,
    saying,
    verdict,
)
from tacit.simulate.conformance.peer.training_cases import HONEST, OTHERS, STAYS, STRANGER, refused
from tacit.simulate.world.federation import MemoryFederation, small_configuration
from tacit.simulate.world.world import Parcel

Vector = npt.NDArray[np.floating[Any]]

_POLICY: Final = Policy(modes=("active", "semi-honest"), smallest_cohort=2, least_corrupt=0.0, largest_clip=1e6)
_NOT_THERE: Final = (TrainingState.OFFLINE, TrainingState.AWAIT_WELCOME, TrainingState.ENDED)


@dataclass(frozen=True)
class End:
    round: int | None
    code: Code | None


@dataclass(eq=False)
class Actor:
    """One of our clients. `case` is the case that it plays."""

    name: str
    case: Case = HONEST
    lied: int | None = None
    spent: bool = False
    """Whether it has played a case in this session that may exclude it."""
    linked: bool = False
    link: Link | None = None
    """Numbers its messages in the present session."""
    models: dict[int, bytes] = field(default_factory=dict)
    contributions: dict[int, DrawnUpdate] = field(default_factory=dict)
    ends: list[End] = field(default_factory=list)

    def lie_in(self, round: int) -> None:
        self.lied, self.ends = round, []


class OurClients(MemoryFederation):
    """Our clients, with the live server outside: the world's own server is never contacted."""

    def __init__(self, keyring: Keyring) -> None:
        roster = keyring.roster
        super().__init__(
            small_configuration(len(roster.clients)),
            len(roster.clients),
            seed=os.urandom(32),
            policies=dict.fromkeys(keyring.ours, _POLICY),
            members=(roster, keyring.signing),
        )
        self.outside = self.host
        self.actors = {name: Actor(name) for name in keyring.ours}

    def joined(self, actor: Actor) -> bool:
        return actor.name in self.clients and self.clients[actor.name].state not in _NOT_THERE

    def join(self, actor: Actor) -> None:
        self.disks.pop(actor.name, None)
        self.due = [parcel for parcel in self.due if parcel.sender != actor.name]
        actor.models, actor.contributions, actor.link = {}, {}, None
        self.start_client(actor.name)

    def stage(self, actor: Actor) -> RoundKnowledge:
        """Return the knowledge for its lie: its place in the current round, or else in the roster."""
        current = self.clients[actor.name].sum
        if current is None:
            return RoundKnowledge(len(self.roster.clients), self.roster.index(actor.name))
        return RoundKnowledge(current.agreement.size, current.agreement.places[actor.name])

    def draw(self, name: str, round: int) -> Words:
        update = self.actors[name].contributions[round] = draw_update(self.clients[name].configuration)
        return update.words

    def act(self, party: str, output: Output) -> None:
        actor = self.actors[party]
        match output:
            case Train():
                actor.models[output.round] = output.model
            case RoundOver():
                actor.ends.append(End(output.round, output.code))
            case Ended():
                actor.ends.append(End(None, output.code))
        super().act(party, output)


class AgainstServer(Cast):
    """The server listens at the address. tell: receives instructions for its operator."""

    def __init__(self, keyring: Keyring, address: str, *, wait: float, tell: Callable[[str], None]) -> None:
        self._server, self._address, self._tell = keyring.roster.server, address, tell
        live = self._server.name
        lines = [Line(name, live, connecting(keyring.keys[name], self._server, address, wait)) for name in keyring.ours]
        super().__init__(live, lines, wait=wait)
        self._world = OurClients(keyring)
        self._actors = [*self._world.actors.values()]

    async def play(self, case: Case) -> PeerVerdict:
        """Play the case, and observe the consequences for the liar and the others. Raises EndpointError."""
        await self.open()
        try:
            if case is STRANGER:
                return verdict(case, await self._as_stranger())
            await self._enough_actors()
            return verdict(case, await (self._honestly() if case is HONEST else self._with_liar(case)))
        except TimeoutError:
            return verdict(case, f"nothing comes for {self.wait:g} s")
        finally:
            for actor in self._actors:
                actor.case = HONEST

    async def close(self) -> None:
        await self._leave()
        await super().close()

    async def take(self, own: str, event: Event) -> None:
        actor = self._world.actors[own]
        if isinstance(event, LinkLost):
            actor.linked = False
            actor.ends.append(End(None, Code.LEFT))
        elif isinstance(event, LinkUp) and not actor.linked:
            # A new link means that the server was restarted.
            actor.linked, actor.spent = True, False
            self._world.join(actor)
            await self.go_on(self._world)
        await super().take(own, event)

    async def hear(self, parcel: Parcel, envelope: Envelope | None, message: Message | None) -> None:
        # The server's own text, whatever our machine concludes after a lie.
        if envelope is not None and isinstance(message, Abort):
            self._world.actors[parcel.receiver].ends.append(End(envelope.round or None, message.code))
        self._world.put(parcel)
        await self.go_on(self._world)

    async def relay(self, parcel: Parcel) -> None:
        actor, packet = self._world.actors[parcel.sender], parcel.packet
        envelope, joining = packet.envelope, actor.case.joins and actor.lied is None
        if joining and packet.kind is AdvertiseKeys:
            # The server waits for this message, and later ones are withheld: nothing in transit belongs to the former
            # conversation.
            actor.lie_in(envelope.round)
            self._world.join(actor)
            return
        if actor.link is None or actor.link.session != envelope.session:
            actor.link = Link(actor.name, self.live, envelope.session, Traffic(), MESSAGES, number=envelope.link)
        said = saying(packet)
        lies = [said] if joining else list(actor.case.lie(self._world.stage(actor), said))
        if lies != [said] and actor.lied is None:
            actor.lie_in(said.round)
        for lie in lies:
            await self.say(lie, actor.link)

    @property
    def _free(self) -> list[Actor]:
        return [actor for actor in self._actors if self._world.joined(actor) and not actor.spent]

    async def _with_liar(self, case: Case) -> str:
        liar = self._free[0]
        liar.case, liar.lied, liar.spent = case, None, True
        await self.listen(lambda: liar.lied is not None)
        # A client that cheated in an earlier case may still learn of its exclusion.
        others = self._free
        lied = liar.lied or 0
        for actor in others:
            actor.ends = []

        def last(actor: Actor) -> End | None:
            return next((end for end in actor.ends if end.round is None or end.round >= lied), None)

        await self.listen(lambda: last(liar) is not None and all(last(actor) is not None for actor in others))
        seen, codes = last(liar), {end.code for end in map(last, others) if end is not None}
        assert seen is not None
        finished = (
            OTHERS if codes == {None} else f"the others end with {', '.join(code.name for code in codes if code)}"
        )
        liar.spent = seen.code not in (None, Code.TIMEOUT)
        return f"{STAYS}, {finished}" if seen.code is None else refused(seen.code, finished)

    async def _honestly(self) -> str:
        actors = [*filter(self._world.joined, self._actors)]
        await self.listen(lambda: all(len(actor.models) > 2 for actor in actors))
        round = min(actors[0].models)
        if any(End(held, None) not in actor.ends for actor in actors for held in (round, round + 1)):
            return "a round has no sum"
        for held in (round, round + 1):
            contributions = [actor.contributions[held] for actor in actors]
            before, after = (np.frombuffer(actors[0].models[which], "<f4") for which in (held, held + 1))
            if not _moved_by_mean(self._world.clients[actors[0].name].configuration, contributions, before, after):
                return "all finish, the model is wrong"
        return HONEST.expected

    async def _as_stranger(self) -> str:
        try:
            endpoint = await connecting(generate("stranger"), self._server, self._address, self.wait)()
        except NotAdmittedError:
            return STRANGER.expected
        except EndpointError as error:
            return str(error)
        await endpoint.close()
        return "admitted"

    async def _leave(self) -> None:
        for actor in filter(self._world.joined, self._actors):
            client = self._world.clients[actor.name]
            self._world.emit(actor.name, client.give_up("the next test needs another session", 0.0))
        await self.go_on(self._world)

    async def _enough_actors(self) -> None:
        """Make sure that a round continues without a liar: enough clients are there, none of them excluded."""
        free = len(self._free)
        if free >= FEWEST_CLIENTS:
            configuration = self._world.clients[self._free[0].name].configuration
            if free > max(configuration.parameters(free).threshold, configuration.fewest_survivors(free)):
                return
        if any(actor.spent for actor in self._actors):
            await self._leave()
            self._tell(f"waiting for the server at {self._address} to be started again: it bars most clients by now")
        await self.listen(lambda: len(self._free) == len(self._actors))


def _moved_by_mean(
    configuration: Configuration, contributions: Sequence[DrawnUpdate], before: Vector, after: Vector
) -> bool:
    """Return whether the model moved by the mean of the contributions, up to quantisation and float32 rounding."""
    total = Total(
        values=np.sum([contribution.values for contribution in contributions], axis=0),
        weights=np.sum([contribution.weights for contribution in contributions], axis=0),
        metrics={},
        tensor_sizes=configuration.tensor_sizes,
    )
    mean, _ = total.mean()
    # Every weight is 1. The old float32 number, the step and the new one are rounded once each.
    quantisation = configuration.packing().error_bound(len(contributions)) / len(contributions)
    rounding = 2.0**-24 * (2 * np.abs(before) + 2 * np.abs(mean) + np.abs(after))
    return bool((np.abs(after - (before + mean)) <= quantisation + rounding).all())
