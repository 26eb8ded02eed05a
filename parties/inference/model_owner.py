"""The model owner of private inference: it serves several data owners at a time, and persists each one's quota.

It listens for data owners and has one link to the dealer, which serves all sessions. Each session is a conversation
with its own program and threads; a failure in one does not affect the others. Only a lost dealer ends all.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch

from tacit.models.training import CPU
from tacit.parties.inference.conversation import (
    AHEAD,
    FOR_OWNER,
    Conversation,
    Courier,
    Exchange,
    InferenceError,
    ReconnectPolicy,
    ServingParty,
    ServingSettings,
    Worker,
    attend,
    ended,
    linked,
)
from tacit.parties.inference.events import PassEnded, SessionOpened, TermsAgreed
from tacit.parties.inference.ledger import Ledger
from tacit.parties.inference.operations import MODEL, FixedLinear
from tacit.parties.inference.passes import PassPlan, Preparation, hold_pass, of_model
from tacit.parties.inference.private_model import OwnedModel
from tacit.parties.inference.ring import packed
from tacit.parties.inference.stages import input_share
from tacit.parties.links.client_endpoint import CopyError
from tacit.parties.session.event_log import EventLog
from tacit.protocol.core.messages import Kinds
from tacit.protocol.inference.messages import INFERENCE_MESSAGES, Terms
from tacit.protocol.inference.model_owner import InferenceModelOwner
from tacit.protocol.inference.quota import Quota
from tacit.protocol.inference.results import Agreed, PassAsked, PassBegun
from tacit.protocol.inference.schedule import LOGITS, Results, layer_bits
from tacit.protocol.inference.service import Answers, ModelOwnerService


@dataclass(frozen=True, kw_only=True)
class ModelOwnerSettings(ServingSettings):
    dealer_address: str
    most_images: int = 1 << 16
    most_batch: int = 64
    results: Results = LOGITS
    audited: int = 0
    """How many of 65,536 requests to the dealer are audited (protocol/inference/audit.py)."""
    quota: Quota = field(default_factory=Quota)
    ledger: Path | None = None
    """File of the data owners' quotas; None: in memory, until the process ends."""
    ahead: int | None = AHEAD
    reconnect: ReconnectPolicy = field(default_factory=ReconnectPolicy)
    device: torch.device = CPU


class ModelOwnerParty(ServingParty[InferenceModelOwner]):
    """Serve until cancelled. ValueError for a roster without a dealer, an unreadable ledger, and results that the model
    cannot reveal.

    model: may be replaced during serving: sessions that agreed on another one end, and the next ones get the new
    one."""

    KINDS: ClassVar[Kinds] = INFERENCE_MESSAGES
    MACHINE: ClassVar[type[InferenceModelOwner]] = InferenceModelOwner

    def __init__(self, settings: ModelOwnerSettings, model: OwnedModel, event_log: EventLog) -> None:
        super().__init__(settings, ModelOwnerService(self._machine, self.KINDS), event_log)
        self.model: OwnedModel = model
        self._settings = settings
        self._conversations: dict[InferenceModelOwner, Conversation] = {}
        self._programs: dict[InferenceModelOwner, asyncio.Task[None]] = {}
        self._to_dealer: Courier
        self._dealer = settings.roster.dealer
        self._ledger = Ledger(settings.ledger)
        self._terms()

    async def run(self) -> None:
        """Listen and serve. EndpointError if it cannot listen, or the dealer cannot be reached."""
        own = self._settings
        await self.check_address()
        link = linked(own.dealer_address, own.keys, self._dealer, own.patience, own.reconnect, own.tokens)
        async with await link as dealing:
            self._to_dealer = Courier(dealing.send, self._lose_dealer)
            try:
                await self.serve(partial(attend, dealing, own.hooks, self._with_dealer, self.event_log))
            except CopyError as error:
                self.event_log.copy_found(error, own.keys.name)
                raise
            finally:
                await self._to_dealer.close()

    async def _leave(self) -> None:
        await ended(*self._programs.values())

    def _machine(self, peer: str) -> InferenceModelOwner:
        own = self._settings
        return self.MACHINE(
            peer,
            own.roster,
            terms=self._terms(),
            entropy=own.hooks.entropy,
            patience=FOR_OWNER * own.patience,
            quota=own.quota,
            spent=self._ledger.of(peer),
            **self._arguments(peer),
        )

    def _arguments(self, peer: str) -> dict[str, Any]:
        """Further arguments of the machine, for subclasses."""
        return {}

    def _terms(self) -> Terms:
        own = self._settings
        return self.model.terms(
            results=own.results, most_images=own.most_images, most_batch=own.most_batch, audited=own.audited
        )

    def _planned(self, terms: Terms, model: Any) -> PassPlan:
        return of_model(model.public, terms)

    def _with_dealer(self) -> list[Exchange]:
        """The exchanges of all sessions; each ignores messages that name another one."""
        return [exchange for each in self._conversations.values() for exchange in each.with_dealer]

    def _lose_dealer(self, detail: str) -> None:
        for exchange in self._with_dealer():
            exchange.drop(detail)

    def _spread(self, answers: Answers[InferenceModelOwner]) -> None:
        for machine, outputs in answers:
            if machine not in self._conversations and outputs:
                self._open(machine)
            if machine in self._conversations:
                self._conversations[machine].hear(outputs)

    def _open(self, machine: InferenceModelOwner) -> None:
        settings = self._settings
        conversation = self._conversations[machine] = Conversation(
            machine,
            settings.roster,
            dealer=self._dealer.name,
            to_peer=self._couriers[machine.peer],
            to_dealer=self._to_dealer,
            patience=settings.patience,
            entropy=settings.hooks.entropy,
            charge=partial(self._ledger.keep, machine.peer),
        )
        self._programs[machine] = asyncio.ensure_future(self._program(conversation, machine, self.model))

    async def _program(self, conversation: Conversation, machine: InferenceModelOwner, model: OwnedModel) -> None:
        """Run one session from beginning to end, and report it to the event log."""
        began = Conversation.now()
        self.event_log.write(SessionOpened(peers=[machine.peer]))
        try:
            await self._session(conversation, machine, model)
        except InferenceError:
            pass  # The end is reported below.
        except Exception as error:
            conversation.fail(error)
        finally:
            del self._conversations[machine], self._programs[machine]
        over = conversation.ended
        assert over is not None
        self._report_end(
            over,
            peers=[machine.peer],
            passes=machine.number,
            seconds=Conversation.now() - began,
            failure=conversation.failure,
        )

    async def _session(self, conversation: Conversation, machine: InferenceModelOwner, model: Any) -> None:
        agreed = await conversation.expect(Agreed)
        settings, plan, now = self._settings, self._planned(agreed.terms, model), conversation.now
        session = agreed.session.hex()[:16]
        agreement = TermsAgreed(peer=machine.peer, images=agreed.images, batch=agreed.batch, session=session)
        self.event_log.write(agreement)
        worker = Worker()
        preparation = Preparation(
            conversation, plan.public.sizes, plan.course, rank=MODEL, ahead=settings.ahead, device=settings.device
        )
        try:
            await mask_layers(conversation, machine, preparation, worker, model, settings.device)
            while (asked := await conversation.next(PassAsked)) is not None:
                await preparation.ready()
                await preparation.audit()
                conversation.hear(machine.begin(self.model.commitment, time.time(), now()))
                await conversation.expect(PassBegun)
                share = input_share(plan.public, agreed.images_of(asked.number), None)
                carried, _ = await hold_pass(conversation, preparation, worker, plan.begun(share))
                preparation.over(asked.number)
                self.event_log.write(PassEnded(peer=machine.peer, number=asked.number, refused=carried is None))
        finally:
            await preparation.close()
            worker.close()


async def mask_layers(
    conversation: Conversation,
    machine: InferenceModelOwner,
    preparation: Preparation,
    worker: Worker,
    model: OwnedModel,
    device: torch.device,
) -> None:
    """Send the masked weights of all layers, and begin to prepare passes with them."""
    numbers = await preparation.masks()
    layers: dict[str, FixedLinear] = {}
    for position, (name, weight) in enumerate(model.weights.items()):
        mask = await preparation.mask(name, numbers[name])
        bits = layer_bits(name, whole=model.public.sizes.whole)
        masked = await worker(packed, weight.words - mask, bits)
        conversation.hear(machine.mask(position, masked.data, conversation.now()))
        await conversation.sent()  # A layer at a time, since queued messages take memory.
        layer = FixedLinear(numbers[name], weight.words, weight.bias, weight.bits)
        layers[name] = layer.to(device)
    preparation.begin(layers)
