"""The dealer of private inference as a party: it serves all sessions of one model owner, and keeps nothing of them.

Material is computed in a thread for each session, a request at a time, and no faster than it leaves.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from tacit.parties.correlated.dealing import Dealing, RequestError
from tacit.parties.inference.conversation import Conversation, Courier, Worker, own_failure, place
from tacit.parties.inference.material import AnyBlockRequest
from tacit.parties.inference.orders import decoded_requests, encoded_correction
from tacit.parties.inference.owner import events, limits, readable, tick
from tacit.parties.links.endpoint import HandshakeRefused, LinkLost, MessageRefused, Received
from tacit.parties.links.keys import PartyKeys
from tacit.parties.links.server_endpoint import ServerEndpoint
from tacit.parties.session.diary import Diary
from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.machine import Output
from tacit.protocol.core.outputs import Transmit
from tacit.protocol.core.roster import Roster
from tacit.protocol.inference.dealer import InferenceDealer
from tacit.protocol.inference.results import Deal, InferenceEnded, KeysDealt
from tacit.protocol.inference.service import Answers, DealerService


@dataclass(frozen=True, kw_only=True)
class DealerSettings:
    """Everything a dealer needs."""

    address: str
    keys: PartyKeys
    roster: Roster
    patience: float = 60.0
    """Seconds to wait for one owner while the other waits."""


class DealerParty:
    """Serves until it is cancelled."""

    def __init__(self, settings: DealerSettings, diary: Diary) -> None:
        self._settings = settings
        self.diary = diary
        self._service = DealerService(settings.roster, self._machine)
        self._work: dict[InferenceDealer, _Work] = {}
        self._couriers: dict[str, Courier] = {}

    async def run(self) -> None:
        """Listen and serve. EndpointError if it cannot listen."""
        settings = self._settings
        async with await ServerEndpoint.bind(
            settings.address, keys=settings.keys, roster=settings.roster, limits=limits(settings.patience)
        ) as endpoint:
            self.diary.write("listening", address=endpoint.address)
            ticking = asyncio.ensure_future(tick(self._expire))
            try:
                await self._serve(endpoint)
            finally:
                ticking.cancel()
                await asyncio.gather(ticking, return_exceptions=True)
                for work in list(self._work.values()):
                    await work.close()
                for courier in self._couriers.values():
                    await courier.close()

    def _machine(self, data_owner: str, session: bytes, now: float) -> InferenceDealer:
        settings = self._settings
        return InferenceDealer(
            settings.keys.name,
            settings.roster,
            data_owner=data_owner,
            session=session,
            entropy=os.urandom,
            patience=settings.patience,
            now=now,
        )

    async def _serve(self, endpoint: ServerEndpoint) -> None:
        async for event in events(endpoint):
            now = Conversation.now()
            if isinstance(event, Received | MessageRefused):
                if event.sender not in self._couriers:
                    send, lose = partial(endpoint.send, event.sender), partial(self._lose, event.sender)
                    self._couriers[event.sender] = Courier(send, lose)
                self._spread(self._service.feed(event.sender, readable(event), now))
            elif isinstance(event, LinkLost):
                self.diary.write("link-lost", peer=event.peer)
                self._lose(event.peer, f"the link to {event.peer} is lost")
            elif isinstance(event, HandshakeRefused):
                self.diary.write("stranger", reason=event.reason, public_key=event.public_key, address=event.address)

    def _lose(self, owner: str, detail: str) -> None:
        self._spread(self._service.drop(owner, detail, Conversation.now()))

    def _expire(self) -> None:
        self._spread(self._service.expire(Conversation.now()))

    def _spread(self, answers: Answers[InferenceDealer]) -> None:
        for machine, outputs in answers:
            self.hear(machine, outputs)

    def hear(self, machine: InferenceDealer, outputs: Sequence[Output]) -> None:
        """Do what a session's machine says."""
        for output in outputs:
            if isinstance(output, Transmit):
                if output.to in self._couriers:
                    self._couriers[output.to].put(output.frames)
            elif isinstance(output, KeysDealt):
                self._work[machine] = _Work(self, machine, output.keys, self._couriers)
                self.diary.write("session", owners=list(output.owners))
            elif isinstance(output, Deal):
                self._work[machine].orders.put_nowait(output)
            elif isinstance(output, InferenceEnded):
                code = output.code.name if output.code is not None else None
                self.diary.write(
                    "session-over", owners=list(machine.owners), code=code, detail=output.detail, culprit=output.culprit
                )
                if machine in self._work:
                    self._work.pop(machine).stop()


class _Work:
    """The orders of one session, met one after the other."""

    def __init__(
        self,
        party: DealerParty,
        machine: InferenceDealer,
        keys: Sequence[bytes],
        couriers: dict[str, Courier],
    ) -> None:
        self.orders: asyncio.Queue[Deal] = asyncio.Queue()
        self._party = party
        self._machine = machine
        self._dealing = Dealing(keys)
        self._couriers = couriers
        self._worker = Worker()
        self._task = asyncio.ensure_future(self._run())

    def stop(self) -> None:
        """Meet no more orders."""
        self._task.cancel()
        self._worker.close()

    async def close(self) -> None:
        """Stop, and wait for it."""
        self.stop()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            deal = await self.orders.get()
            try:
                await self._meet(deal)
            except RequestError as error:
                self._give_up(RemoteProtocolError(Code.MALFORMED, f"an order that cannot be met: {error}"))
            except Exception as error:
                self._party.diary.write("failure", owners=list(self._machine.owners), failure=place(error))
                self._give_up(own_failure(error))

    def _give_up(self, reason: RemoteProtocolError) -> None:
        self._party.hear(self._machine, self._machine.give_up(reason, Conversation.now()))

    def _correction(self, request: AnyBlockRequest, number: int) -> memoryview | None:
        return encoded_correction(self._dealing.correction(request, number))

    async def _meet(self, deal: Deal) -> None:
        requests = decoded_requests(deal.requests)
        if len(requests) != deal.count:
            raise RequestError(f"it says {deal.count} requests and has {len(requests)}")
        for number, request in enumerate(requests, deal.first):
            correction = await self._worker(self._correction, request, number)
            if correction is not None:
                owner = self._machine.owners[request.receiver]
                now = Conversation.now()
                self._party.hear(self._machine, self._machine.deliver(owner, number, correction, now))
                await self._couriers[owner].drained()
