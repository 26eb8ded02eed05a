"""A server that lies to one live client, whose peers are machines of ours in this process.

A session begins with every hello of the live client: a world with a server machine and our clients.
What the machine says to the live client goes through the lie of the case. After each lie an honest round is run with
the client, and its share in the sum is decoded: masks that did not fall away would show. A client whose session ends
must be started again by whoever runs it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Sequence
from typing import Final

from tacit.parties.links.endpoint import NotConnectedError, PeerStalledError, Received
from tacit.parties.links.server_endpoint import ServerEndpoint
from tacit.protocol.core.codec import Frame, decode
from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.link import Link, Traffic
from tacit.protocol.core.machine import Report
from tacit.protocol.core.members import encode_members
from tacit.protocol.core.messages import Abort
from tacit.protocol.core.primitives import Label, SigningKey
from tacit.protocol.session.messages import MESSAGES, Finish, Hello
from tacit.protocol.session.rounds import RoundDone
from tacit.protocol.sum.configuration import Configuration, Policy
from tacit.protocol.sum.messages import PeerComplaints
from tacit.protocol.sum.transcript import complaint_signed
from tacit.secagg.ring import Words
from tacit.simulate.conformance.peer.keyring import Keyring
from tacit.simulate.conformance.peer.observation import Observation
from tacit.simulate.conformance.peer.script import (
    Case,
    Lie,
    PeerVerdict,
    RoundKnowledge,
    Saying,
    draw_model,
    draw_update,
    honest,
    verdict,
)
from tacit.simulate.world.federation import MemoryFederation
from tacit.simulate.world.network import Parcel

_POLICY: Final = Policy(smallest_cohort=2, least_corrupt=0.0, largest_clip=1e6)
"""Of our own clients, which accept what is proposed to the live one."""


class Session(MemoryFederation):
    """A server machine with our clients; what it says to the live client is `due`, and no time passes.

    Of the live client's messages `link` numbers those to it, lies included.
    """

    def __init__(self, keyring: Keyring, live: str, configuration: Configuration) -> None:
        signing = {name: SigningKey(keys.signing_secret) for name, keys in keyring.keys.items()}
        super().__init__(
            configuration,
            len(keyring.roster.clients),
            seed=os.urandom(32),
            policies=dict.fromkeys(keyring.ours, _POLICY),
            smallest_cohort=2,
            model=draw_model(configuration),
            members=(keyring.roster, signing),
        )
        self.live = live
        self.link = Link(self.host, live, self.server.session, Traffic(), MESSAGES)
        self.due: list[Parcel] = []
        self.over = False
        """Whether the live client has left or was told to."""
        self.hook = self._divert
        self.start(*keyring.ours)

    @property
    def reproach(self) -> str:
        """What our machines held against the live client last."""
        reports = [report.fields for report in self.outcome(Report) if report.fields.get("member") == self.live]
        return next((f"{fields['code']}: {fields['detail']}" for fields in reversed(reports) if "code" in fields), "")

    def draw(self, name: str, round: int) -> Words:
        words = self.vectors[name, round] = draw_update(self.configuration).words
        return words

    def held(self) -> bool:
        """Whether the latest round is over."""
        return len(self.outcome(RoundDone)) == self.server.round > 0

    def _divert(self, parcel: Parcel) -> list[Parcel]:
        if parcel.receiver != self.live:
            return [parcel]
        self.due.append(parcel)
        return []


class AgainstClient:
    """Plays cases one after the other. wait: seconds for anything from the client; tell: what its operator must do."""

    def __init__(
        self,
        keyring: Keyring,
        name: str,
        configuration: Configuration,
        endpoint: ServerEndpoint,
        *,
        wait: float,
        tell: Callable[[str], None],
    ) -> None:
        self._keyring = keyring
        self._roster = keyring.roster
        self._name = name
        self._configuration = configuration
        self._endpoint = endpoint
        self._wait = wait
        self._tell = tell
        self._session: Session | None = None
        self._lie: Lie = honest
        self._observation = Observation()
        self._deceived: Session | None = None
        """The session in which the lie of the case was told."""
        clients = keyring.roster.clients
        self._stage = RoundKnowledge(
            len(clients),
            clients.index(name),
            configuration.parameters(len(clients)).threshold,
            sum(configuration.tensor_sizes),
            self._complaint,
        )

    async def play(self, case: Case) -> PeerVerdict:
        """Tell the lie, see what follows, and run an honest round."""
        if case.joins:
            await self._dismiss()
        self._lie, self._observation, self._deceived = case.lie, Observation(), None
        try:
            await self._begin_round()
            await self._listen(self._settled)
            self._conclude()
            if case.joins:
                await self._dismiss()
            afterwards = await self._honest_round()
        except TimeoutError:
            afterwards = f"nothing more comes for {self._wait:g} s"
            await self._dismiss()
        return verdict(case, ", ".join(filter(None, (*self._observation.words(), afterwards))))

    async def close(self) -> None:
        """Tell the client that there is no more, and close the endpoint."""
        if self._session is not None and not self._session.over:
            await self._say(self._session, Saying(Finish(), round=0))
        await self._endpoint.close()

    async def _begin_round(self) -> None:
        """The next round of the session, or the first one of a new session when the client joins."""
        session = self._session
        if session is not None and not session.over:
            await self._listen(lambda: session.over or len(session.outcome(RoundDone)) == session.server.round)
        if session is None or session.over:
            self._session = None
            self._tell(f"waiting for {self._name!r} to join at {self._endpoint.address}: start it if it does not run")
            await self._listen(lambda: self._session is not None)
            return
        session.model = draw_model(self._configuration)
        session.emit(session.host, session.server.next_round(session.model, 0.0))
        await self._go_on(session)

    async def _honest_round(self) -> str:
        """Run a round without lies; what is wrong with it, if anything."""
        self._lie = honest
        await self._begin_round()
        session = self._session
        assert session is not None
        await self._listen(lambda: session.over or session.held())
        done = next(iter(session.outcome(RoundDone)[-1:]), None)
        if done is None or done.total is None or self._name not in done.survivors:
            return f"no part in the honest round after it ({session.reproach})"
        packing = self._configuration.packing()
        share = done.total.copy()
        for name in done.survivors:
            if name != self._name:
                packing.ring.subtract_into(share, session.vectors[name, done.round])
        try:
            packing.decode(share, contributors=1)
        except ValueError as error:
            return f"what it contributes to the honest round after it is no update ({error})"
        return ""

    async def _dismiss(self) -> None:
        """End the session with the client, which must join anew."""
        session = self._session
        if session is not None and not session.over:
            abort = Abort(code=Code.LEFT, detail="the next test begins with your hello", culprit="")
            await self._say(session, Saying(abort, round=0))
            session.over = True

    def _complaint(self) -> PeerComplaints:
        """A complaint of one of ours about shares that are right, so that it knows the answer."""
        session, accuser = self._session, self._keyring.ours[0]
        assert session is not None
        machine = session.clients[accuser].sum
        assert machine is not None
        agreement, masked = machine.agreement, machine.data
        owner, holder = agreement.places[self._name], agreement.places[accuser]
        self._observation.answer = masked.held[owner].both
        parts = complaint_signed(masked.sharing, owner=owner, holder=holder)
        signature = session.signing[accuser].sign(Label.SIGN_COMPLAINT, *parts)
        return PeerComplaints(holders=encode_members((holder,), agreement.size), signatures=signature)

    def _settled(self) -> bool:
        """Whether the client has refused, has left, or the round with the lie is over."""
        session = self._deceived
        if session is None:
            return False
        return bool(self._observation.refusal) or session.over or session.held()

    def _conclude(self) -> None:
        """Of what comes from now on only the round with the lie counts."""
        session = self._deceived
        assert session is not None
        self._observation.round = session.server.round
        shared = [done for done in session.outcome(RoundDone) if done.round == session.server.round]
        self._observation.summed = any(self._name in done.survivors for done in shared)

    async def _listen(self, until: Callable[[], bool]) -> None:
        """Take part until the condition holds. TimeoutError when the client is silent."""
        while not until():
            async with asyncio.timeout(self._wait):
                event = await self._endpoint.receive()
            if isinstance(event, Received) and event.sender == self._name:
                await self._hear(event.frames)

    async def _hear(self, frames: Sequence[Frame]) -> None:
        try:
            packet = decode(frames, MESSAGES)
            message = packet.parse()
        except RemoteProtocolError:
            message = None  # The machine will say so.
        if isinstance(message, Hello):
            if self._session is not None:
                self._session.over = True
            self._session = Session(self._keyring, self._name, self._configuration)
        session = self._session
        if session is None or session.over:
            return
        if message is not None:
            if session is self._deceived:
                self._observation.note(packet.envelope.round, message)
            session.over = isinstance(message, Abort) and not packet.envelope.round
        session.put(Parcel(self._name, session.host, tuple(frames)))
        await self._go_on(session)

    async def _go_on(self, session: Session) -> None:
        """Let our machines talk until only what is due to the live client is left, and say that."""
        session.advance()
        due, session.due = session.due, []
        for parcel in due:
            await self._relay(session, parcel)

    async def _relay(self, session: Session, parcel: Parcel) -> None:
        """Say to the live client what the machine says, or what the lie makes of it."""
        packet = parcel.packet
        said = Saying(packet.parse(), packet.envelope.round, packet.payload)
        lies = [said]
        if self._deceived in (None, session):
            lies = list(self._lie(self._stage, said))
            if lies != [said] or (self._deceived is None and self._lie is honest):
                self._deceived = session
                self._observation.lie(said.message)
        for lie in lies:
            await self._say(session, lie)
        if isinstance(said.message, Finish) or (isinstance(said.message, Abort) and not said.round):
            session.over = True

    async def _say(self, session: Session, said: Saying) -> None:
        frames = said.frames(session.link)
        # A client that refuses the first of several messages may be gone before the last; what it said still follows.
        with contextlib.suppress(NotConnectedError, PeerStalledError):
            for _ in range(said.times):
                await self._endpoint.send(self._name, frames)
