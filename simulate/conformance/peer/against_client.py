"""A server that lies to one live client, whose peers are machines of ours in this process.

A session begins with every hello of the live client. After each lie an honest round runs with it, and its share in the
sum is decoded: masks that did not cancel would show.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, get_args

from tacit.protocol.core.codec import Envelope
from tacit.protocol.core.errors import Code
from tacit.protocol.core.events import MessageRefused
from tacit.protocol.core.link import Link, Traffic
from tacit.protocol.core.messages import Abort, Message
from tacit.protocol.core.primitives import SigningKey
from tacit.protocol.core.roster import encode_members
from tacit.protocol.session.messages import MESSAGES, Finish, Hello
from tacit.protocol.session.rounds import RoundDone
from tacit.protocol.session.states import SUM_TO_SERVER
from tacit.protocol.sum.agreement import Agreement, complaint_signed
from tacit.protocol.sum.configuration import Configuration, Scheme
from tacit.protocol.sum.events import ClientDropped
from tacit.protocol.sum.messages import AnswerComplaints, PeerComplaints, UnmaskShares
from tacit.protocol.sum.policy import Policy
from tacit.protocol.sum.states import SumLabel
from tacit.secagg.ring import Words
from tacit.simulate.conformance.peer.cast import Cast, Keyring, Line, listening
from tacit.simulate.conformance.peer.script import (
    Case,
    Lie,
    PeerVerdict,
    RoundKnowledge,
    Saying,
    draw_model,
    draw_update,
    honest,
    saying,
    verdict,
    with_received,
)
from tacit.simulate.conformance.peer.training_cases import TAKES_PART, refuses_round, refuses_session
from tacit.simulate.world.federation import MemoryFederation
from tacit.simulate.world.world import Parcel

_POLICY: Final = Policy(schemes=get_args(Scheme), smallest_cohort=2, least_corrupt=0.0, largest_clip=1e6)
"""Policy of our own clients, which accept the live client's proposals."""


@dataclass
class Observation:
    summed: bool = False
    """Whether the client's vector was in the sum of the round with the lie."""
    round: int | None = None
    """Round with the lie, once it is over; other rounds are not recorded before."""
    answer: bytes = b""
    """Shares for the client's answer to a complaint."""
    said: list[tuple[int, Message]] = field(default_factory=list)
    """Messages since the last lie, with their rounds."""

    def lie(self, message: Message) -> None:
        if self.refusal is None:
            self.said = []

    def note(self, round: int, message: Message) -> None:
        if self.round in (None, round):
            self.said.append((round, message))

    @property
    def refusal(self) -> tuple[int, Abort] | None:
        return next(((round, said) for round, said in self.said if isinstance(said, Abort)), None)

    def words(self) -> list[str]:
        answers = [said for _, said in self.said if isinstance(said, SUM_TO_SERVER)]
        if self.refusal is not None:
            round, abort = self.refusal
            words = [refuses_round(abort.code) if round else refuses_session(abort.code)]
            return words + [f"says {said.TYPE} nevertheless" for said in answers]
        if not self.summed:
            return [f"goes on with {answers[-1].TYPE}" if answers else "does not answer"]
        told = [said.shares for said in answers if isinstance(said, AnswerComplaints)]
        opened = sum(isinstance(said, UnmaskShares) for said in answers)
        words = [TAKES_PART]
        words += [f"answers a complaint{'' if told == [self.answer] else ' with something else'}"] if told else []
        return words + ([f"opens {opened} times"] if opened > 1 else [])


class Session(MemoryFederation):
    """A server machine with our clients. `link` numbers all messages to the live client, including lies. number: of the
    link of its hello; model: initial model; None: a random one."""

    def __init__(
        self,
        keyring: Keyring,
        live: str,
        configuration: Configuration,
        *,
        number: int = 0,
        model: bytes | None = None,
    ) -> None:
        super().__init__(
            configuration,
            len(keyring.roster.clients),
            seed=os.urandom(32),
            policies=dict.fromkeys(keyring.ours, _POLICY),
            smallest_cohort=2,
            model=draw_model(configuration) if model is None else model,
            members=(keyring.roster, keyring.signing),
        )
        self.outside = live
        self.link = Link(self.host, live, self.server.session, Traffic(), MESSAGES, number=number)
        self.said = 0
        """Number of our machine's messages for the live client."""
        self.over = False
        """Whether the live client has left or was instructed to."""
        self.start(*keyring.ours)

    @property
    def reproach(self) -> str:
        held = [
            f"{event.code}: {event.detail}"
            for _, event in self.outputs
            if isinstance(event, MessageRefused | ClientDropped) and event.member == self.outside
        ]
        return held[-1] if held else ""

    def draw(self, name: str, round: int) -> Words:
        words = self.vectors[name, round] = draw_update(self.configuration).words
        return words

    def held(self) -> bool:
        return len(self.outcome(RoundDone)) == self.server.round > 0


class AgainstClient(Cast):
    """Our server listens at the address. tell: receives instructions for the operator of the live client."""

    def __init__(
        self,
        keyring: Keyring,
        live: str,
        configuration: Configuration,
        address: str,
        *,
        wait: float,
        tell: Callable[[str], None],
    ) -> None:
        roster, host = keyring.roster, keyring.roster.server.name
        self._line = Line(host, live, listening(keyring.keys[host], roster, address))
        super().__init__(live, [self._line], wait=wait)
        self._keyring = keyring
        self._configuration = configuration
        self._tell = tell
        self._session: Session | None = None
        self._lie: Lie = honest
        self._alone = False
        self._observation = Observation()
        self._deceived: Session | None = None
        """Session with the lie of the case."""
        self._stage = RoundKnowledge(
            len(roster.clients),
            roster.clients.index(live),
            configuration.parameters(len(roster.clients)).threshold,
            sum(configuration.tensor_sizes),
            self._complaint,
            self._agreed,
        )

    @property
    def address(self) -> str:
        assert self._line.endpoint is not None
        return self._line.endpoint.address

    async def play(self, case: Case) -> PeerVerdict:
        await self.open()
        if case.joins:
            await self._dismiss()
        self._lie, self._alone, self._observation, self._deceived = case.lie, case.alone, Observation(), None
        try:
            await self._begin_round()
            await self.listen(self._settled)
            await self._conclude()
            if case.joins:
                await self._dismiss()
            afterwards = await self._honest_round()
        except TimeoutError:
            afterwards = f"nothing more comes for {self.wait:g} s"
            await self._dismiss()
        return verdict(case, ", ".join(filter(None, (*self._observation.words(), afterwards))))

    async def close(self) -> None:
        """Announce the end to the client, and close the link."""
        if self._session is not None and not self._session.over:
            await self.say(Saying(Finish(), round=0), self._session.link)
        await super().close()

    async def _begin_round(self) -> None:
        session = self._session
        if session is not None and not session.over:
            await self.listen(lambda: session.over or len(session.outcome(RoundDone)) == session.server.round)
        if session is None or session.over:
            self._session = None
            self._tell(f"waiting for {self.live!r} to join at {self.address}: start it if it does not run")
            await self.listen(lambda: self._session is not None)
            return
        # A client that refuses a lie must show its other behaviour in the next round.
        session.server.stragglers.forgive(self.live)
        self._hold_back(session)
        session.model = draw_model(self._configuration)
        session.emit(session.host, session.server.next_round(session.model, 0.0))
        await self.go_on(session)

    async def _honest_round(self) -> str:
        self._lie = honest
        await self._begin_round()
        session = self._session
        assert session is not None
        await self.listen(lambda: session.over or session.held())
        done = next(iter(session.outcome(RoundDone)[-1:]), None)
        if done is None or done.total is None or self.live not in done.survivors:
            return f"no part in the honest round after it ({session.reproach})"
        packing = self._configuration.packing()
        share = done.total.copy()
        for name in done.survivors:
            if name != self.live:
                packing.ring.subtract_into(share, session.vectors[name, done.round])
        try:
            packing.decode(share, contributors=1)
        except ValueError as error:
            return f"what it contributes to the honest round after it is no update ({error})"
        return ""

    async def _dismiss(self) -> None:
        session = self._session
        if session is not None and not session.over:
            abort = Abort(code=Code.LEFT, detail="the next test begins with your hello", culprit="")
            await self.say(Saying(abort, round=0), session.link)
            session.over = True

    def _complaint(self) -> PeerComplaints:
        """Return our client's complaint about valid shares, whose answer it knows."""
        session, accuser = self._session, self._keyring.ours[0]
        assert session is not None
        machine = session.clients[accuser].sum
        assert machine is not None
        agreement, masked = machine.agreement, machine.data
        owner, holder = agreement.places[self.live], agreement.places[accuser]
        self._observation.answer = masked.held[owner].both
        parts = complaint_signed(masked.sharing, owner=owner, holder=holder)
        signature = session.signing[accuser].sign(SumLabel.SIGN_COMPLAINT, *parts)
        return PeerComplaints(holders=encode_members((holder,), agreement.size), signatures=signature)

    def _agreed(self) -> tuple[Agreement, dict[int, SigningKey]]:
        session = self._session
        assert session is not None
        assert session.server.sum is not None
        agreement = session.server.sum.agreement
        return agreement, {agreement.places[name]: session.signing[name] for name in self._keyring.ours}

    def _settled(self) -> bool:
        """Whether the client has refused, has left, or the round with the lie is over."""
        session = self._deceived
        if session is None:
            return False
        return bool(self._observation.refusal) or session.over or session.held()

    def _hold_back(self, session: Session) -> None:
        """Cut off our other clients in both directions, as long as the case requires it."""
        session.network.cut = {*self._keyring.ours} if self._alone else set()

    async def _conclude(self) -> None:
        """From now on record only the round with the lie; reconnect our other clients to complete it."""
        session = self._deceived
        assert session is not None
        self._observation.round = session.server.round
        shared = [done for done in session.outcome(RoundDone) if done.round == session.server.round]
        self._observation.summed = any(self.live in done.survivors for done in shared)
        self._alone = False
        self._hold_back(session)
        await self.go_on(session)

    async def hear(self, parcel: Parcel, envelope: Envelope | None, message: Message | None) -> None:
        if isinstance(message, Hello):
            if self._session is not None:
                self._session.over = True
            number = envelope.link if envelope is not None else 0
            self._session = Session(self._keyring, self.live, self._configuration, number=number)
            self._hold_back(self._session)
        session = self._session
        if session is None or session.over:
            return
        if envelope is not None and message is not None:  # Else the machine will say so.
            if session is self._deceived:
                self._observation.note(envelope.round, message)
            session.over = isinstance(message, Abort) and not envelope.round
        session.put(with_received(parcel, session.said))
        await self.go_on(session)

    async def relay(self, parcel: Parcel) -> None:
        session, packet = self._session, parcel.packet
        assert session is not None
        said = saying(packet)
        session.said += 1
        self._stage.told[packet.kind] = [*self._stage.told.get(packet.kind, ())[-1:], said.message]
        lies = [said]
        if self._deceived in (None, session):
            lies = list(self._lie(self._stage, said))
            if lies != [said] or (self._deceived is None and self._lie is honest):
                self._deceived = session
                self._observation.lie(said.message)
        for lie in lies:
            await self.say(lie, session.link)
        if isinstance(said.message, Finish) or (isinstance(said.message, Abort) and not said.round):
            session.over = True
