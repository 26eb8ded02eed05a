"""The data owner of private inference as a party: a model owner's model processes its images without seeing them.

A session runs over two links, to the model owner and to the dealer:

    async with open_session(settings, request) as session:
        async for answer in session.answers(images):
            ...
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
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
    Worker,
    attend,
    ended,
    linked,
)
from tacit.parties.inference.ledger import Ledger
from tacit.parties.inference.operations import DATA, FixedLinear
from tacit.parties.inference.passes import PassPlan, Planned, Preparation, RoundCost, hold_pass, inference_plan
from tacit.parties.inference.private_model import AskedModel, stated_protocol
from tacit.parties.inference.ranking import logits
from tacit.parties.inference.ring import WORD_BITS, unpacked
from tacit.parties.inference.stages import input_share
from tacit.parties.links.client_endpoint import ClientEndpoint, CopyError
from tacit.parties.links.keys import PartyKeys
from tacit.parties.links.tokens import TokenFile
from tacit.parties.session.shell import Hooks
from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.machine import Trigger
from tacit.protocol.core.roster import Roster
from tacit.protocol.inference.data_owner import InferenceDataOwner, InferencePolicy, InferenceRequest
from tacit.protocol.inference.messages import Terms
from tacit.protocol.inference.quota import Spent
from tacit.protocol.inference.results import Agreed, MaskedLayer, PassBegun
from tacit.protocol.inference.schedule import Sizes, layer_bits, layer_shapes


@dataclass(frozen=True, kw_only=True)
class DataOwnerSettings:
    model_owner_address: str
    dealer_address: str
    keys: PartyKeys
    roster: Roster
    policy: InferencePolicy = field(default_factory=InferencePolicy)
    ledger: Ledger = field(default_factory=Ledger, compare=False)
    """Use of the policy's quota by model owners, by their keys."""
    patience: float = 60.0
    """Seconds from which all timeouts follow (conversation.py)."""
    ahead: int | None = AHEAD
    """Stages prepared ahead; None: one whole pass, before its clock starts (passes.py)."""
    reconnect: ReconnectPolicy = field(default_factory=ReconnectPolicy)
    tokens: TokenFile | None = field(default=None, repr=False, compare=False)
    """Tokens that detect copied folders, of either peer or its own; None: no detection."""
    on_copy: Callable[[CopyError], None] = field(default=lambda error: None, repr=False, compare=False)
    device: torch.device = CPU
    hooks: Hooks = field(default_factory=Hooks, repr=False, compare=False)

    @property
    def account(self) -> str:
        """Entry of the model owner in the ledger: its signing key, since it might come back under another name."""
        return self.roster.server.signing_public.hex()

    @property
    def spent(self) -> Spent:
        return self.ledger.of(self.account)


@dataclass(frozen=True)
class PassCosts:
    images: int
    offline_seconds: float
    """Seconds of waiting for preprocessing before the pass."""
    online_seconds: float
    rounds: tuple[RoundCost, ...]
    refused: bool
    """Whether a value was out of range: the images are used up without a result."""


@dataclass(frozen=True)
class Answer:
    logits: torch.Tensor | None = field(repr=False)
    """float64 [n, classes]; None if the pass was refused, or labels alone were revealed."""
    labels: torch.Tensor | None = field(repr=False)
    """int64 [n, labels], the numbers of the best classes, best first; None if the pass was refused, or logits were
    revealed."""
    costs: PassCosts = field(repr=False)
    classes: int


class ProtocolDisagreementError(ValueError):
    """The owners use different protocols."""


@dataclass(frozen=True)
class SessionKind:
    """Purpose of a session with a model owner: by default, predictions of its model."""

    MACHINE: ClassVar[type[InferenceDataOwner]] = InferenceDataOwner
    protocol: ClassVar[str] = "tacit"
    """Protocol required of the model owner."""
    ARGUMENTS: ClassVar[Mapping[str, Any]] = {}
    """Further arguments of the machine, for subclasses."""
    planned: Planned = inference_plan

    def agreed_plan(self, terms: Terms) -> PassPlan:
        """Computation of the passes on these terms. ProtocolDisagreementError, and ValueError as for Planned."""
        if (stated := stated_protocol(terms)) not in ("", self.protocol):
            raise ProtocolDisagreementError(
                f'the model owner computes by the protocol "{stated}", the data owner by "{self.protocol}": give both '
                "of their party files the same `protocol`"
            )
        return self.planned(terms)

    def machine(self, settings: DataOwnerSettings, request: InferenceRequest) -> InferenceDataOwner:
        return self.MACHINE(
            settings.keys.name,
            settings.roster,
            request=request,
            policy=settings.policy,
            patience=FOR_OWNER * settings.patience,
            spent=settings.spent,
            **self.ARGUMENTS,
        )


class DataOwnerSession:
    """An open session with a model owner, after the agreement on terms. Made by open_session()."""

    def __init__(
        self,
        conversation: Conversation,
        machine: InferenceDataOwner,
        plan: PassPlan,
        preparation: Preparation,
        worker: Worker,
        device: torch.device,
    ) -> None:
        self.worker = worker
        """The thread for long computations of the session."""
        self.weights_bytes = 0
        """Bytes of masked weights, which are received once, before the first pass."""
        self._conversation = conversation
        self._machine = machine
        self._plan = plan
        self._preparation = preparation
        self._device = device

    @property
    def terms(self) -> Terms:
        return self._machine.agreed.terms

    @property
    def public(self) -> AskedModel:
        return self._plan.public

    async def answers(self, images: torch.Tensor) -> AsyncGenerator[Answer, None]:
        """Send the agreed images, [N, C, S, S], through the model, and yield the answer of every pass.

        Raises InferenceError, which names the party at fault. Answers yielded before remain valid."""
        agreed = self._machine.agreed
        if len(images) != agreed.images:
            raise ValueError(f"{len(images)} images, and the session is about {agreed.images}")
        self.weights_bytes = await masked_layers(self._conversation, self._preparation, self.public.sizes, self._device)
        for pixels in torch.split(images, agreed.batch):
            yield await self._pass(pixels)

    async def _pass(self, pixels: torch.Tensor) -> Answer:
        conversation, machine, plan, worker = self._conversation, self._machine, self._plan, self.worker
        began = time.perf_counter()
        share = await worker(input_share, plan.public, len(pixels), pixels)
        await self._preparation.ready()
        conversation.hear(machine.ask(time.time(), conversation.now()))
        await self._preparation.audit()
        await conversation.expect(PassBegun)
        ready = time.perf_counter()
        carried, costs = await hold_pass(conversation, self._preparation, worker, plan.begun(share))
        online = time.perf_counter() - ready
        self._preparation.over(machine.number)
        results, opened = self.terms.results, None if carried is None else carried.share
        return Answer(
            logits(opened, results) if opened is not None and results.bits else None,
            opened.cpu() if opened is not None and results.labels else None,
            PassCosts(len(pixels), ready - began, online, tuple(costs), opened is None),
            plan.classes,
        )


@asynccontextmanager
async def open_session(
    settings: DataOwnerSettings, request: InferenceRequest, kind: SessionKind | None = None
) -> AsyncIterator[DataOwnerSession]:
    """Open a session and agree on its terms; close it in order behind the block, or end it for the block's error.

    kind: the purpose of the session; None: private inference. Raises InferenceError, which names the party at fault,
    and EndpointError for an unreachable party."""
    kind = kind or SessionKind()
    machine = kind.machine(settings, request)
    async with conversing(settings, machine) as conversation:
        worker = Worker()
        preparation: Preparation | None = None
        try:
            conversation.hear(machine.start(conversation.now()))
            agreed = await conversation.expect(Agreed)
            try:
                plan = kind.agreed_plan(agreed.terms)
            except ProtocolDisagreementError as error:
                conversation.refuse(str(error), Code.POLICY)
            except ValueError as error:
                conversation.refuse(f"its scales are not usable: {error}")
            preparation = Preparation(
                conversation, plan.public.sizes, plan.course, rank=DATA, ahead=settings.ahead, device=settings.device
            )
            yield DataOwnerSession(conversation, machine, plan, preparation, worker, settings.device)
            await _close(conversation, machine)
        except InferenceError:
            raise
        except BaseException as error:
            conversation.fail(error)
            raise
        finally:
            if preparation is not None:
                await preparation.close()
            worker.close()


async def _close(conversation: Conversation, machine: InferenceDataOwner) -> None:
    """End a session, regularly between two passes. InferenceError if it ended otherwise."""
    if machine.over or machine.admits(Trigger.FINISH):
        conversation.hear(machine.finish(conversation.now()))
        await conversation.closed()
    else:
        left = RemoteProtocolError(Code.LEFT, "it has closed the session early", culprit=machine.own)
        conversation.hear(machine.give_up(left, conversation.now()))


@dataclass(frozen=True)
class Inferred:
    logits: torch.Tensor = field(repr=False)
    """float64 [N, classes]; NaN in the rows of refused images, and if labels alone were revealed."""
    labels: torch.Tensor = field(repr=False)
    """int64 [N, labels], the numbers of the best classes, best first, as revealed, or the best one by the logits; -1 in
    the rows of refused images."""
    passes: tuple[PassCosts, ...] = field(repr=False)
    weights_bytes: int
    """Bytes of masked weights, received once."""

    @classmethod
    def collected(cls, session: DataOwnerSession, answers: Sequence[Answer]) -> Self:
        logits, labels = zip(*(_rows(each, session.terms) for each in answers), strict=True)
        return cls(torch.cat(logits), torch.cat(labels), tuple(each.costs for each in answers), session.weights_bytes)

    @property
    def refused(self) -> torch.Tensor:
        """bool [N]: images whose pass was refused, even if another of its images was out of range."""
        counts = torch.tensor([each.images for each in self.passes])
        return torch.tensor([each.refused for each in self.passes]).repeat_interleave(counts)


def _rows(answer: Answer, terms: Terms) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and labels of all images of a pass, with placeholders for those that were not revealed."""
    images, logits, labels = answer.costs.images, answer.logits, answer.labels
    if labels is None:
        count = max(terms.results.labels, 1)
        labels = torch.full((images, count), -1) if logits is None else logits.argmax(1, keepdim=True)
    if logits is None:
        logits = torch.full((images, answer.classes), math.nan, dtype=torch.float64)
    return logits, labels


LAST_WORDS_SECONDS = 1.0
"""Time limit for sending the last messages."""


@asynccontextmanager
async def conversing(settings: DataOwnerSettings, machine: InferenceDataOwner) -> AsyncIterator[Conversation]:
    """Run one session with both other parties, from opening the links to the last messages. EndpointError if one cannot
    be reached."""
    keys, roster, around, dealer = settings.keys, settings.roster, settings.hooks, settings.roster.dealer
    link = partial(linked, patience=settings.patience, reconnect=settings.reconnect, tokens=settings.tokens)

    async def attended(endpoint: ClientEndpoint, exchanges: Callable[[], tuple[Exchange, ...]]) -> None:
        try:
            await attend(endpoint, around, exchanges)
        except CopyError as error:
            settings.on_copy(error)
            refused = RemoteProtocolError(Code.SENDER, str(error), culprit=error.server or keys.name)
            conversation.hear(machine.give_up(refused, conversation.now()))

    async with (
        await link(settings.model_owner_address, keys, roster.server) as peer,
        await link(settings.dealer_address, keys, dealer) as dealing,
    ):
        to_peer = Courier(peer.send, lambda detail: conversation.with_peer.drop(detail))
        to_dealer = Courier(dealing.send, lambda detail: conversation.with_dealer[0].drop(detail))
        conversation = Conversation(
            machine,
            roster,
            dealer=dealer.name,
            to_peer=to_peer,
            to_dealer=to_dealer,
            patience=settings.patience,
            entropy=around.entropy,
            charge=partial(settings.ledger.keep, settings.account),
        )
        listening = [
            asyncio.ensure_future(attended(peer, lambda: (conversation.with_peer,))),
            asyncio.ensure_future(attended(dealing, lambda: conversation.with_dealer)),
        ]
        try:
            yield conversation
        finally:
            try:
                for courier in (to_peer, to_dealer):
                    with suppress(TimeoutError):
                        async with asyncio.timeout(LAST_WORDS_SECONDS):
                            await courier.drained()
            finally:
                # In one wait, so that a stopped program leaves none of them behind.
                await ended(to_peer.running, to_dealer.running, *listening)


async def masked_layers(
    conversation: Conversation, preparation: Preparation, sizes: Sizes, device: torch.device
) -> int:
    """Receive the masked weights of all layers, and begin to prepare passes with them; returns their bytes."""
    numbers = await preparation.masks()
    layers: dict[str, FixedLinear] = {}
    octets = 0
    for name, shape in layer_shapes(sizes).items():
        masked = await conversation.expect(MaskedLayer)
        octets += len(masked.data)
        words = unpacked(np.frombuffer(masked.data, np.uint8), layer_bits(name, whole=sizes.whole), shape)
        layers[name] = FixedLinear(numbers[name], words, None, WORD_BITS).to(device)
    preparation.begin(layers)
    return octets
