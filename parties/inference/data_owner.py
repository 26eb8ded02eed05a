"""The data owner of private inference as a party: its images go through a model owner's model, which sees none of them.

One session, over two links: to the model owner, and to the dealer.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import ClassVar

import torch

from tacit.models.training import CPU
from tacit.parties.inference.conversation import (
    AHEAD,
    FOR_OWNER,
    Conversation,
    Courier,
    InferenceError,
    Waiting,
    Worker,
    ended,
    hear,
    linked,
    tick,
)
from tacit.parties.inference.model import PublicModel
from tacit.parties.inference.operations import DATA, FixedLinear
from tacit.parties.inference.passes import Planned, Preparation, RoundCost, hold_pass, inference_plan
from tacit.parties.inference.ranking import logits
from tacit.parties.inference.ring import WORD_BITS
from tacit.parties.inference.stages import input_share
from tacit.parties.links.keys import PartyKeys
from tacit.parties.session.shell import Surroundings
from tacit.protocol.core.roster import Roster
from tacit.protocol.inference.data_owner import InferenceDataOwner, InferencePolicy, Wish
from tacit.protocol.inference.messages import Terms
from tacit.protocol.inference.results import Agreed, MaskedLayer, PassBegun
from tacit.protocol.inference.schedule import Sizes, layer_shapes


@dataclass(frozen=True, kw_only=True)
class DataOwnerSettings:
    """Everything a data owner needs beside its images."""

    model_owner_address: str
    dealer_address: str
    keys: PartyKeys
    roster: Roster
    policy: InferencePolicy = field(default_factory=InferencePolicy)
    patience: float = 60.0
    """Seconds from which it follows how long it waits for whoever is due (conversation.py)."""
    ahead: int | None = AHEAD
    """Stages to have ready ahead; None: a pass at a time, before its clock starts (passes.py)."""
    waiting: Waiting = field(default_factory=Waiting)
    """For the two others to come."""
    device: torch.device = CPU
    """Where it computes."""
    surroundings: Surroundings = field(default_factory=Surroundings, repr=False, compare=False)


@dataclass(frozen=True)
class PassCosts:
    """What one pass has cost the data owner."""

    images: int
    offline_seconds: float
    """That it waited for material before the pass."""
    online_seconds: float
    rounds: tuple[RoundCost, ...]
    refused: bool
    """Whether a value was out of range: the images are used, and nothing is known of any of them."""


@dataclass(frozen=True)
class Answer:
    """What one pass has brought."""

    logits: torch.Tensor | None = field(repr=False)
    """float64 [n, classes]; None where the pass was refused, or labels alone were told."""
    labels: torch.Tensor | None = field(repr=False)
    """int64 [n, labels], the numbers of the best classes, best first; None where the pass was refused, or logits were
    told."""
    costs: PassCosts = field(repr=False)
    classes: int
    """That are told apart."""


@dataclass(frozen=True)
class SessionKind:
    """What a session with a model owner is for: here, what its model says of images."""

    MACHINE: ClassVar[type[InferenceDataOwner]] = InferenceDataOwner
    planned: Planned = inference_plan

    def machine(self, settings: DataOwnerSettings, wish: Wish) -> InferenceDataOwner:
        """Of the data owner."""
        return self.MACHINE(
            settings.keys.name,
            settings.roster,
            wish=wish,
            policy=settings.policy,
            patience=FOR_OWNER * settings.patience,
        )


Prepare = Callable[[Terms, PublicModel], torch.Tensor]
"""Makes of one's images what a model of these terms takes: float32 [N, C, S, S], within a thread. ValueError if that
cannot be."""


@dataclass(frozen=True)
class Inferred:
    """What came out."""

    logits: torch.Tensor = field(repr=False)
    """float64 [N, classes]; not a number in the rows of images that were refused, and where labels alone were told."""
    labels: torch.Tensor = field(repr=False)
    """int64 [N, labels], the numbers of the best classes, best first: what was told, or the best one by the logits; -1
    in the rows of images that were refused."""
    passes: tuple[PassCosts, ...] = field(repr=False)
    weights_bytes: int
    """Of masked weights, received once."""

    @property
    def refused(self) -> torch.Tensor:
        """bool [N]: images whose pass was out of range, whichever of its images was."""
        counts = torch.tensor([each.images for each in self.passes])
        return torch.tensor([each.refused for each in self.passes]).repeat_interleave(counts)


async def infer(
    settings: DataOwnerSettings,
    images: torch.Tensor,
    *,
    batch: int,
    progress: Callable[[int], None] = lambda done: None,
    session: SessionKind | None = None,
) -> Inferred:
    """What the model owner's model says of images [N, C, S, S], `batch` at a time. `progress` gets the images done;
    session: of what kind, None: of private inference.

    One image out of range has all images of its pass refused: nobody is told which it was.

    Raises InferenceError, which names the party at fault, EndpointError when a party cannot be reached, and ValueError
    for images that are none, or that the model does not take.
    """
    if images.dim() != 4 or not len(images) or batch < 1:
        raise ValueError(
            f"images of shape {tuple(images.shape)}, {batch} at a time: give at least one image, [N, C, S, S], and a "
            "batch of at least 1"
        )
    wish = Wish(images=len(images), batch=batch, channels=images.shape[1], side=images.shape[-1])
    answers: list[Answer] = []

    def take(answer: Answer) -> None:
        answers.append(answer)
        progress(sum(each.costs.images for each in answers))

    agreed: list[Terms] = []

    def prepare(terms: Terms, public: PublicModel) -> torch.Tensor:
        agreed.append(terms)
        return images

    weights_bytes = await ask(settings, wish, prepare, take, session)
    (terms,) = agreed
    logits, labels = zip(*(_rows(each, terms) for each in answers), strict=True)
    return Inferred(torch.cat(logits), torch.cat(labels), tuple(answer.costs for answer in answers), weights_bytes)


def _rows(answer: Answer, terms: Terms) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and labels of all images of a pass, with those for what was not told."""
    images, logits, labels = answer.costs.images, answer.logits, answer.labels
    if labels is None:
        count = max(terms.results.labels, 1)
        labels = torch.full((images, count), -1) if logits is None else logits.argmax(1, keepdim=True)
    if logits is None:
        logits = torch.full((images, answer.classes), math.nan, dtype=torch.float64)
    return logits, labels


async def ask(
    settings: DataOwnerSettings,
    wish: Wish,
    prepare: Prepare,
    take: Callable[[Answer], None],
    session: SessionKind | None = None,
) -> int:
    """One session, whose answers are taken as they come; returns the bytes of masked weights.

    Raises InferenceError, which names the party at fault, EndpointError when a party cannot be reached, and ValueError
    for images that the model does not take. What was taken before stands.
    """
    kind = session or SessionKind()
    machine = kind.machine(settings, wish)
    async with conversing(settings, machine) as conversation:
        return await _session(conversation, machine, settings, prepare, take, kind.planned)


LAST_WORDS_SECONDS = 1.0
"""How long what was said last may take to leave."""


@asynccontextmanager
async def conversing(settings: DataOwnerSettings, machine: InferenceDataOwner) -> AsyncIterator[Conversation]:
    """One session with both others, from the links to them to the last words. EndpointError when one of them cannot be
    reached."""
    keys, roster, waiting, around = settings.keys, settings.roster, settings.waiting, settings.surroundings
    dealer = roster.dealer
    async with (
        await linked(settings.model_owner_address, keys, roster.server, settings.patience, waiting) as peer,
        await linked(settings.dealer_address, keys, dealer, settings.patience, waiting) as dealing,
    ):
        to_peer = Courier(peer.send, lambda detail: conversation.peer_lost(detail))
        to_dealer = Courier(dealing.send, lambda detail: conversation.dealer_lost(detail))
        conversation = Conversation(
            machine,
            roster,
            dealer=dealer.name,
            to_peer=to_peer,
            to_dealer=to_dealer,
            patience=settings.patience,
            entropy=around.entropy,
        )
        listening = [
            asyncio.ensure_future(hear("model owner", peer, conversation.from_peer, conversation.peer_lost, around)),
            asyncio.ensure_future(hear("dealer", dealing, conversation.from_dealer, conversation.dealer_lost, around)),
            asyncio.ensure_future(tick(conversation.expire)),
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
                # Also of a program that is stopped while its last words are on their way.
                await to_peer.close()
                await to_dealer.close()
                await ended(*listening)


async def _session(
    conversation: Conversation,
    machine: InferenceDataOwner,
    settings: DataOwnerSettings,
    prepare: Prepare,
    take: Callable[[Answer], None],
    planned: Planned,
) -> int:
    now = conversation.now
    conversation.hear(machine.start(now()))
    agreed = await conversation.expect(Agreed)
    worker = Worker()
    preparation: Preparation | None = None
    try:
        try:
            plan = planned(agreed.terms)
        except ValueError as error:
            conversation.refuse(f"its scales are not usable: {error}")
        public = plan.public
        images = await worker(prepare, agreed.terms, public)
        preparation = Preparation(
            conversation, public.sizes, plan.course, rank=DATA, ahead=settings.ahead, device=settings.device
        )
        weights_bytes = await masked_layers(conversation, preparation, public.sizes, settings.device)
        for number, pixels in enumerate(torch.split(images, agreed.batch), 1):
            began = time.perf_counter()
            share = await worker(input_share, public, len(pixels), pixels)
            await preparation.ready()
            conversation.hear(machine.ask(now()))
            await conversation.expect(PassBegun)
            ready = time.perf_counter()
            carried, costs = await hold_pass(conversation, preparation, worker, plan.begun(share))
            told = None if carried is None else carried.share
            online = time.perf_counter() - ready
            spent = PassCosts(len(pixels), ready - began, online, tuple(costs), told is None)
            preparation.over(number)
            results = agreed.terms.results
            take(
                Answer(
                    logits(told, results) if told is not None and results.bits else None,
                    told.cpu() if told is not None and results.labels else None,
                    spent,
                    plan.classes,
                )
            )
        conversation.hear(machine.finish(now()))
        await conversation.closed()
        return weights_bytes
    except InferenceError:
        raise
    except BaseException as error:
        conversation.fail(error)
        raise
    finally:
        if preparation is not None:
            await preparation.close()
        worker.close()


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
        words = torch.frombuffer(masked.data, dtype=torch.int64).reshape(shape)
        layers[name] = FixedLinear(numbers[name], words, None, WORD_BITS).to(device)
    preparation.begin(layers)
    return octets
