"""The data owner of private inference as a party: its images go through a model owner's model, which sees none of them.

One session, over two links: to the model owner, and to the dealer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from tacit.models.device import CPU
from tacit.parties.inference.conversation import FOR_OWNER, Conversation, Courier, InferenceError, Worker, ended
from tacit.parties.inference.model import PublicModel
from tacit.parties.inference.operations import DATA, FixedLinear
from tacit.parties.inference.owner import AHEAD, Waiting, hear, linked, tick
from tacit.parties.inference.passes import Preparation, RoundCost, hold_pass
from tacit.parties.inference.private_model import public_of
from tacit.parties.inference.ring import WORD_BITS
from tacit.parties.inference.stages import input_share, logits
from tacit.parties.links.keys import PartyKeys
from tacit.protocol.core.roster import Roster
from tacit.protocol.inference.data_owner import InferenceDataOwner, InferencePolicy, Wish
from tacit.protocol.inference.messages import Terms
from tacit.protocol.inference.results import Agreed, MaskedLayer, PassBegun
from tacit.protocol.inference.schedule import layer_shapes


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


@dataclass(frozen=True)
class PassCosts:
    """What one pass has cost the data owner."""

    images: int
    offline_seconds: float
    """That it waited for material before the pass."""
    online_seconds: float
    rounds: tuple[RoundCost, ...]


@dataclass(frozen=True)
class Answer:
    """What one pass has brought."""

    logits: torch.Tensor = field(repr=False)
    """float64 [n, classes]."""
    costs: PassCosts = field(repr=False)


Prepare = Callable[[Terms, PublicModel], torch.Tensor]
"""Makes of one's images what a model of these terms takes: float32 [N, C, S, S], within a thread. ValueError if that
cannot be."""


@dataclass(frozen=True)
class Inferred:
    """What came out."""

    logits: torch.Tensor = field(repr=False)
    """float64 [N, classes]."""
    passes: tuple[PassCosts, ...] = field(repr=False)
    weights_bytes: int
    """Of masked weights, received once."""


async def infer(
    settings: DataOwnerSettings,
    images: torch.Tensor,
    *,
    batch: int,
    progress: Callable[[int], None] = lambda done: None,
) -> Inferred:
    """The model owner's logits of images [N, C, S, S], `batch` at a time. `progress` gets the images done.

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

    weights_bytes = await ask(settings, wish, lambda terms, public: images, take)
    passes = tuple(answer.costs for answer in answers)
    return Inferred(torch.cat([answer.logits for answer in answers]), passes, weights_bytes)


async def ask(settings: DataOwnerSettings, wish: Wish, prepare: Prepare, take: Callable[[Answer], None]) -> int:
    """One session, whose answers are taken as they come; returns the bytes of masked weights.

    Raises InferenceError, which names the party at fault, EndpointError when a party cannot be reached, and ValueError
    for images that the model does not take. What was taken before stands.
    """
    keys, roster, waiting = settings.keys, settings.roster, settings.waiting
    dealer = roster.dealer
    async with (
        await linked(settings.model_owner_address, keys, roster.server, settings.patience, waiting) as peer,
        await linked(settings.dealer_address, keys, dealer, settings.patience, waiting) as dealing,
    ):
        patience = FOR_OWNER * settings.patience
        machine = InferenceDataOwner(keys.name, roster, wish=wish, policy=settings.policy, patience=patience)
        to_peer = Courier(peer.send, lambda detail: conversation.peer_lost(detail))
        to_dealer = Courier(dealing.send, lambda detail: conversation.dealer_lost(detail))
        conversation = Conversation(
            machine,
            roster,
            dealer=dealer.name,
            to_peer=to_peer,
            to_dealer=to_dealer,
            patience=settings.patience,
        )
        listening = [
            asyncio.ensure_future(hear("model owner", peer, conversation.from_peer, conversation.peer_lost)),
            asyncio.ensure_future(hear("dealer", dealing, conversation.from_dealer, conversation.dealer_lost)),
            asyncio.ensure_future(tick(conversation.expire)),
        ]
        try:
            return await _session(conversation, settings, prepare, take)
        finally:
            for courier in (to_peer, to_dealer):
                await asyncio.wait([asyncio.ensure_future(courier.drained())], timeout=1.0)
                await courier.close()
            await ended(*listening)


async def _session(
    conversation: Conversation,
    settings: DataOwnerSettings,
    prepare: Prepare,
    take: Callable[[Answer], None],
) -> int:
    machine, now = conversation.machine, conversation.now
    assert isinstance(machine, InferenceDataOwner)
    conversation.hear(machine.start(now()))
    agreed = await conversation.expect(Agreed)
    worker = Worker()
    preparation: Preparation | None = None
    try:
        try:
            public = public_of(agreed.terms)
        except ValueError as error:
            conversation.refuse(f"its scales are not usable: {error}")
        images = await worker(prepare, agreed.terms, public)
        preparation = Preparation(conversation, public, rank=DATA, ahead=settings.ahead, device=settings.device)
        numbers = await preparation.masks()
        layers: dict[str, FixedLinear] = {}
        weights_bytes = 0
        for name, shape in layer_shapes(public.sizes).items():
            masked = await conversation.expect(MaskedLayer)
            weights_bytes += len(masked.data)
            words = torch.frombuffer(masked.data, dtype=torch.int64).reshape(shape)
            layers[name] = FixedLinear(numbers[name], words, None, WORD_BITS).to(settings.device)
        preparation.begin(layers, numbers)
        for pixels in torch.split(images, agreed.batch):
            began = time.perf_counter()
            share = await worker(input_share, public, len(pixels), pixels)
            await preparation.ready()
            conversation.hear(machine.ask(now()))
            await conversation.expect(PassBegun)
            ready = time.perf_counter()
            share, costs = await hold_pass(conversation, preparation, worker, share)
            spent = PassCosts(len(pixels), ready - began, time.perf_counter() - ready, tuple(costs))
            take(Answer(logits(public, share).cpu(), spent))
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
