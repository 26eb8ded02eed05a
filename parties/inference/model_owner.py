"""The model owner of private inference as a party: it serves several data owners at the same time.

It listens for data owners and has one link to the dealer, which serves all sessions. Each session is a conversation
with a program and threads of its own; what goes wrong in one leaves the others alone. Only a lost dealer ends all.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch

from tacit.models.device import CPU
from tacit.parties.inference.conversation import (
    FOR_OWNER,
    Conversation,
    Courier,
    InferenceError,
    Worker,
)
from tacit.parties.inference.operations import MODEL, FixedLinear
from tacit.parties.inference.owner import AHEAD, dealer_of, events, limits, linked, readable, tick
from tacit.parties.inference.preparation import Preparation
from tacit.parties.inference.private_model import PrivateModel
from tacit.parties.inference.ring import WORD_BITS, packed
from tacit.parties.inference.rounds import hold_pass
from tacit.parties.inference.stages import input_share
from tacit.parties.links.client_endpoint import ClientEndpoint
from tacit.parties.links.endpoint import HandshakeRefused, LinkLost, MessageRefused, Received
from tacit.parties.links.keys import PartyKeys
from tacit.parties.links.server_endpoint import ServerEndpoint
from tacit.parties.session.diary import Diary
from tacit.protocol.core.codec import Frame, decode
from tacit.protocol.core.errors import RemoteProtocolError
from tacit.protocol.core.roster import Roster
from tacit.protocol.inference.messages import INFERENCE_MESSAGES, Input
from tacit.protocol.inference.model_owner import InferenceModelOwner
from tacit.protocol.inference.results import Agreed, PassAsked, PassBegun
from tacit.protocol.inference.service import Answers, ModelOwnerService


@dataclass(frozen=True, kw_only=True)
class ModelOwnerSettings:
    """Everything a model owner needs beside its model."""

    address: str
    dealer_address: str
    keys: PartyKeys
    roster: Roster
    input: Input = "known"
    most_images: int = 1 << 16
    """How many images one session may ask for."""
    most_batch: int = 64
    """How many images one pass may take."""
    patience: float = 60.0
    """Seconds from which it follows how long it waits for whoever is due (conversation.py)."""
    ahead: int | None = AHEAD
    """As of the data owner."""
    device: torch.device = CPU
    """Where it computes."""


class ModelOwnerParty:
    """Serves until it is cancelled. ValueError for a roster without a dealer.

    model: what it computes with. It may be replaced while it serves: sessions that agreed on another one end, and the
    next ones get the new one.
    """

    def __init__(self, settings: ModelOwnerSettings, model: PrivateModel, diary: Diary) -> None:
        self.model = model
        self._settings = settings
        self._diary = diary
        self._service = ModelOwnerService(self._machine)
        self._conversations: dict[InferenceModelOwner, Conversation] = {}
        self._programs: dict[InferenceModelOwner, asyncio.Task[None]] = {}
        self._couriers: dict[str, Courier] = {}
        self._to_dealer: Courier
        self._dealer = dealer_of(settings.roster)

    async def run(self) -> None:
        """Listen and serve. EndpointError if it cannot listen, or the dealer cannot be reached."""
        settings = self._settings
        async with (
            await linked(settings.dealer_address, settings.keys, self._dealer, settings.patience) as dealing,
            await ServerEndpoint.bind(
                settings.address, keys=settings.keys, roster=settings.roster, limits=limits(settings.patience)
            ) as endpoint,
        ):
            self._to_dealer = Courier(dealing.send, self._lose_dealer)
            self._diary.write("listening", address=endpoint.address)
            tasks = [
                asyncio.ensure_future(self._serve(endpoint)),
                asyncio.ensure_future(self._hear_dealer(dealing)),
                asyncio.ensure_future(tick(self._expire)),
            ]
            try:
                await asyncio.gather(*tasks)
            finally:
                for task in (*tasks, *self._programs.values()):
                    task.cancel()
                await asyncio.gather(*tasks, *self._programs.values(), return_exceptions=True)
                for courier in (self._to_dealer, *self._couriers.values()):
                    await courier.close()

    def _machine(self, peer: str) -> InferenceModelOwner:
        settings = self._settings
        terms = self.model.terms(input=settings.input, most_images=settings.most_images, most_batch=settings.most_batch)
        patience = FOR_OWNER * settings.patience
        return InferenceModelOwner(peer, settings.roster, terms=terms, entropy=os.urandom, patience=patience)

    async def _serve(self, endpoint: ServerEndpoint) -> None:
        async for event in events(endpoint):
            now = Conversation.now()
            if isinstance(event, Received | MessageRefused):
                if event.sender not in self._couriers:
                    send, lose = partial(endpoint.send, event.sender), partial(self._lose, event.sender)
                    self._couriers[event.sender] = Courier(send, lose)
                self._spread(self._service.feed(event.sender, readable(event), now))
            elif isinstance(event, LinkLost):
                self._diary.write("link-lost", peer=event.peer)
                self._lose(event.peer, "the link to the data owner is lost")
            elif isinstance(event, HandshakeRefused):
                self._diary.write("stranger", reason=event.reason, public_key=event.public_key, address=event.address)

    async def _hear_dealer(self, dealing: ClientEndpoint) -> None:
        async for event in events(dealing):
            if isinstance(event, Received | MessageRefused):
                frames = readable(event)
                for conversation in self._of_dealer(frames):
                    conversation.from_dealer(frames)
            elif isinstance(event, LinkLost):
                self._diary.write("link-lost", peer=event.peer)
                self._lose_dealer("the link to the dealer is lost")

    def _lose(self, data_owner: str, detail: str) -> None:
        self._spread(self._service.drop(data_owner, detail, Conversation.now()))

    def _lose_dealer(self, detail: str) -> None:
        for conversation in list(self._conversations.values()):
            conversation.dealer_lost(detail)

    def _of_dealer(self, frames: Sequence[Frame]) -> list[Conversation]:
        """The session that a message of the dealer is of; all of them if it cannot be read."""
        everyone = list(self._conversations.values())
        try:
            session = decode(frames, INFERENCE_MESSAGES).envelope.session
        except RemoteProtocolError:
            return everyone
        return [each for each in everyone if each.machine.session == session]

    def _spread(self, answers: Answers[InferenceModelOwner]) -> None:
        """Give every session what its machine says."""
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
        )
        self._programs[machine] = asyncio.ensure_future(self._program(conversation, machine, self.model))

    def _expire(self) -> None:
        for conversation in list(self._conversations.values()):
            conversation.expire()

    async def _program(self, conversation: Conversation, machine: InferenceModelOwner, model: PrivateModel) -> None:
        """One session from its beginning to its end, which the diary tells."""
        began = Conversation.now()
        self._diary.write("session", peer=machine.peer)
        try:
            await self._session(conversation, machine, model)
        except InferenceError:
            pass  # How it ended is told below.
        except Exception as error:
            conversation.fail(error)
        finally:
            del self._conversations[machine], self._programs[machine]
        ended = conversation.ended
        assert ended is not None
        self._diary.write(
            "session-over",
            peer=machine.peer,
            passes=machine.number,
            seconds=Conversation.now() - began,
            code=ended.code.name if ended.code is not None else None,
            detail=ended.detail,
            culprit=ended.culprit,
            failure=conversation.failure,
        )

    async def _session(self, conversation: Conversation, machine: InferenceModelOwner, model: PrivateModel) -> None:
        agreed = await conversation.expect(Agreed)
        settings, public, now = self._settings, model.public, conversation.now
        self._diary.write("agreed", peer=machine.peer, images=agreed.images, batch=agreed.batch)
        worker = Worker()
        preparation = Preparation(conversation, public, rank=MODEL, ahead=settings.ahead, device=settings.device)
        try:
            numbers = await preparation.masks()
            layers: dict[str, FixedLinear] = {}
            for position, (name, weight) in enumerate(model.weights.items()):
                mask = await preparation.mask(name, numbers[name])
                masked = await worker(packed, weight.words - mask, WORD_BITS)
                conversation.hear(machine.mask(position, masked.data, now()))
                await conversation.sent()  # A layer at a time: what is queued takes memory.
                layer = FixedLinear(numbers[name], weight.words, weight.bias, weight.bits)
                layers[name] = layer.to(settings.device)
            preparation.begin(layers, numbers)
            while (asked := await conversation.next(PassAsked)) is not None:
                await preparation.ready()
                conversation.hear(machine.begin(self.model.commitment, now()))
                await conversation.expect(PassBegun)
                share = input_share(public, agreed.images_of(asked.number), None)
                await hold_pass(conversation, preparation, worker, share)
                self._diary.write("pass", peer=machine.peer, number=asked.number)
        finally:
            await preparation.close()
            worker.close()
