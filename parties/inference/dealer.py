"""The dealer of private inference as a party: it serves all sessions of one model owner, and keeps nothing of them.

Each session computes its correlated randomness in its own thread, a request at a time, and no faster than it is sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tacit.models.training import CPU
from tacit.parties.correlated.material import Dealing, RequestError
from tacit.parties.inference.conversation import (
    Conversation,
    Courier,
    ServingParty,
    ServingSettings,
    Worker,
    ended,
    own_failure,
    place,
)
from tacit.parties.inference.events import PreprocessingFailed, SessionOpened
from tacit.parties.inference.material import AnyBlockRequest, decoded_requests, encoded_correction
from tacit.parties.session.event_log import EventLog
from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.events import MessageRefused
from tacit.protocol.core.machine import Output, Transmit
from tacit.protocol.inference.dealer import InferenceDealer
from tacit.protocol.inference.results import Deal, InferenceEnded, KeysDealt
from tacit.protocol.inference.service import Answers, DealerService


@dataclass(frozen=True, kw_only=True)
class DealerSettings(ServingSettings):
    """Settings of a dealer. patience: seconds to wait for one owner while the other waits."""

    device: torch.device = CPU


class DealerParty(ServingParty[InferenceDealer]):
    """Serve until cancelled."""

    def __init__(self, settings: DealerSettings, event_log: EventLog) -> None:
        super().__init__(settings, DealerService(settings.roster, self._machine), event_log)
        self.device = settings.device
        """Device of its computations."""
        self._settings = settings
        self._work: dict[InferenceDealer, _Work] = {}

    async def run(self) -> None:
        """Listen and serve. EndpointError if it cannot listen."""
        await self.serve()

    async def quiet(self) -> None:
        while self._work:
            await asyncio.wait([work.task for work in self._work.values()])

    async def _leave(self) -> None:
        works = list(self._work.values())
        self._work.clear()
        for work in works:
            work.stop()
        await ended(*(work.task for work in works))

    def _machine(self, data_owner: str, session: bytes, now: float) -> InferenceDealer:
        settings = self._settings
        return InferenceDealer(
            settings.keys.name,
            settings.roster,
            data_owner=data_owner,
            session=session,
            entropy=settings.hooks.entropy,
            patience=settings.patience,
            now=now,
        )

    def _spread(self, answers: Answers[InferenceDealer]) -> None:
        for machine, outputs in answers:
            self.hear(machine, outputs)

    def hear(self, machine: InferenceDealer, outputs: Sequence[Output]) -> None:
        for output in outputs:
            if isinstance(output, Transmit):
                if output.to in self._couriers:
                    self._couriers[output.to].put(output.frames)
            elif isinstance(output, KeysDealt):
                self._work[machine] = _Work(self, machine, output.keys, self._couriers)
                self.event_log.write(SessionOpened(peers=list(output.owners)))
            elif isinstance(output, Deal):
                self._work[machine].orders.put_nowait(output)
            elif isinstance(output, InferenceEnded):
                if machine in self._service.sessions.values():
                    dealt = self._work[machine].dealt if machine in self._work else {}
                    self._report_end(output, peers=list(machine.owners), preprocessing_bytes=dict(dealt))
                elif output.code is not None:
                    self.event_log.write(
                        MessageRefused(member=output.culprit, code=output.code.name, detail=output.detail)
                    )
                if machine in self._work:
                    self._work.pop(machine).stop()


class _Work:
    def __init__(
        self,
        party: DealerParty,
        machine: InferenceDealer,
        keys: Sequence[bytes],
        couriers: dict[str, Courier],
    ) -> None:
        self.orders: asyncio.Queue[Deal] = asyncio.Queue()
        self.dealt = dict.fromkeys(machine.owners, 0)
        """Bytes of corrections, by receiving owner."""
        self._party = party
        self._machine = machine
        self._dealing = Dealing(keys, device=party.device)
        self._couriers = couriers
        self._worker = Worker()
        self.task = asyncio.ensure_future(self._run())
        """Runs until it is stopped."""

    def stop(self) -> None:
        self.task.cancel()
        self._worker.close()

    async def _run(self) -> None:
        while True:
            deal = await self.orders.get()
            try:
                await self._meet(deal)
            except RequestError as error:
                self._give_up(RemoteProtocolError(Code.MALFORMED, f"an order that cannot be met: {error}"))
            except Exception as error:
                failed = PreprocessingFailed(owners=list(self._machine.owners), failure=place(error))
                self._party.event_log.write(failed)
                self._give_up(own_failure(error))

    def _give_up(self, reason: RemoteProtocolError) -> None:
        self._party.hear(self._machine, self._machine.give_up(reason, Conversation.now()))

    def _correction(self, request: AnyBlockRequest, number: int) -> memoryview | None:
        return encoded_correction(request, self._dealing.correction(request, number))

    async def _meet(self, deal: Deal) -> None:
        requests = decoded_requests(deal.requests)
        if len(requests) != deal.count:
            raise RequestError(f"it says {deal.count} requests and has {len(requests)}")
        for number, request in enumerate(requests, deal.first):
            correction = await self._worker(self._correction, request, number)
            if correction is not None:
                for rank in request.receivers:
                    owner = self._machine.owners[rank]
                    now = Conversation.now()
                    self._party.hear(self._machine, self._machine.deliver(owner, number, correction, now))
                    self.dealt[owner] += correction.nbytes
                    await self._couriers[owner].drained()
