"""The passes of a session at one owner: fetches preprocessing ahead, prepares stages, and advances them in a thread.

All passes of a session compute the same function (PassPlan), which both owners derive from its terms: here a model's
predictions for images. Other protocols define their own passes, and use the owners unchanged.

While a pass is computed, the correlated randomness of the stages to come is already being fetched: `ahead` stages are
ready or being prepared at any time. With `ahead = None` a whole pass is prepared when the previous one is over, and
nothing beyond it, so that measurements of the online phase are undisturbed. Neither owner waits for the other's
request: the dealer serves requests that both have ordered, and both need it.

If the terms have an audit of the dealer (protocol/inference/audit.py), a whole pass is fetched when the previous one is
over, and held until both owners have audited it at the pass's start; only then are its stages prepared.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hmac import compare_digest
from itertools import islice
from math import prod
from typing import Any

import numpy as np
import torch

from tacit.parties.correlated.material import Weight
from tacit.parties.inference.conversation import Conversation, InferenceError, Worker, ended
from tacit.parties.inference.material import (
    AnyBlockRequest,
    corrected,
    correction_bytes,
    drawn,
    encoded_requests,
    openable,
    recomputed,
)
from tacit.parties.inference.model import PublicModel
from tacit.parties.inference.operations import DATA, MODEL, Communication, Expected, FixedLinear, Party, Program
from tacit.parties.inference.private_model import AskedModel, public_of
from tacit.parties.inference.ring import byte_width, joined, unpacked
from tacit.parties.inference.stages import Carried, PassStage, Run, stages
from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.primitives import KEY_BYTES
from tacit.protocol.inference.audit import AuditAsked, AuditPicked, KeysRevealed, RequestKeys
from tacit.protocol.inference.dealer import MOST_ORDERS
from tacit.protocol.inference.messages import Terms
from tacit.protocol.inference.results import MaterialArrived, MaterialKey, Opened, PassRefused
from tacit.protocol.inference.schedule import Sizes, layer_shapes


@dataclass(frozen=True)
class RoundCost:
    stage: str
    operation: str
    seconds: float
    """Seconds since the end of the previous round: computation, messages and waiting."""
    sent: int
    """Bytes of share words; a message adds its envelope."""
    received: int


@dataclass(frozen=True)
class ReadyStage:
    name: str
    run: Run


@dataclass(frozen=True)
class ReadyPass:
    """Enough stages are ready for a pass to begin."""


@dataclass(frozen=True)
class DeliveredRequest:
    request: AnyBlockRequest
    number: int
    data: bytearray | None


@dataclass(frozen=True)
class DeliveredPass:
    """All requests of a pass before their audit, by stage."""

    stages: Sequence[tuple[PassStage, list[DeliveredRequest]]]


Course = Callable[[int], Sequence[PassStage]]
"""The stages of the pass of this number, from 1; no pass has more than the first."""


class Preparation:
    """Preprocessing of one owner in one session, after the agreement. course: stages of its passes; ahead: see
    above."""

    def __init__(
        self,
        conversation: Conversation,
        sizes: Sizes,
        course: Course,
        *,
        rank: int,
        ahead: int | None,
        device: torch.device,
    ) -> None:
        self._conversation = conversation
        self._rank = rank
        self._agreed = conversation.machine.agreed
        self._course = course
        self._audited = conversation.machine.agreed.terms.audited > 0
        self._whole_passes = ahead is None or self._audited
        # One more order for the masks, and one in transit: the dealer lets neither owner get further ahead.
        most = min(len(course(1)), MOST_ORDERS - 2)
        self._room = asyncio.Semaphore(most if ahead is None else min(ahead, most))
        self._enough = most if ahead is None else 1
        self._between_passes = asyncio.Semaphore(1)
        self._worker = Worker()
        self._device = device
        self._keys: RequestKeys
        self._layers: Mapping[str, FixedLinear] = {}
        self._delivered = DeliveredPass(())
        self._masks = {name: Weight(MODEL, shape) for name, shape in layer_shapes(sizes).items()}
        self._task: asyncio.Task[None] | None = None
        self._numbers = {name: number for number, name in enumerate(self._masks)}
        """Numbers of the mask requests, by the name of the layer."""
        self._taken: defaultdict[int, int] = defaultdict(int)
        """Bytes of corrections for this owner, by pass."""

    async def masks(self) -> Mapping[str, int]:
        """Wait for the dealer to provide a mask for every layer; returns the numbers of their requests by name."""
        self._keys = RequestKeys((await self._conversation.expect(MaterialKey)).key)
        self._order(tuple(self._masks.values()))
        return self._numbers

    async def without_layers(self) -> None:
        """Wait for the dealer, and start to prepare passes without layers."""
        self._keys = RequestKeys((await self._conversation.expect(MaterialKey)).key)
        self.begin({})

    async def mask(self, name: str, number: int) -> torch.Tensor:
        """Mask V of a layer, at the model owner."""
        (words,) = await self._drawn(self._masks[name], number)
        return words

    def begin(self, layers: Mapping[str, FixedLinear]) -> None:
        self._layers = layers
        self._task = asyncio.ensure_future(self._prepare())

    def over(self, number: int) -> int:
        """End the pass of this number; returns the bytes of corrections that it used here."""
        self._between_passes.release()
        return self._taken.pop(number, 0)

    async def ready(self) -> None:
        """Wait until the next pass can begin, or be audited. InferenceError if the session ends before."""
        if self._audited:
            self._delivered = await self._conversation.expect(DeliveredPass)
        else:
            await self._conversation.expect(ReadyPass)

    async def audit(self) -> None:
        """Audit the dealer before the pass begins, if the terms require it. InferenceError if the session ends before,
        or a request is wrong."""
        if not self._audited:
            return
        number = self._conversation.machine.number
        delivered = [each for _, requests in self._delivered.stages for each in requests]
        places = [place for place, each in enumerate(delivered) if openable(each.request)]
        while True:
            candidates = {delivered[place].number: place for place in places}
            picked = await self._opened({each: delivered[place] for each, place in candidates.items()})
            if not picked:
                break
            places = [candidates[each] for each in picked]
            again = await self._fetched([delivered[place].request for place in places], number)
            for place, replacement in zip(places, again, strict=True):
                delivered[place] = replacement
        usable = iter(delivered)
        for stage, requests in self._delivered.stages:
            material: deque[list[torch.Tensor]] = deque()
            for each in islice(usable, len(requests)):
                words = await self._drawn(each.request, each.number)
                material.append(words if each.data is None else words + corrected(each.request, each.data))
            self._conversation.put(ReadyStage(stage.name, await self._made(stage, number, material)))
        self._delivered = DeliveredPass(())

    async def _opened(self, candidates: Mapping[int, DeliveredRequest]) -> tuple[int, ...]:
        """Toss the joint coin over requests that have arrived; open and check the selected ones, and return their
        numbers."""
        conversation, machine, rank = self._conversation, self._conversation.machine, self._rank
        if rank == DATA:
            await conversation.expect(AuditAsked)
        contribution = conversation.entropy(KEY_BYTES)
        conversation.hear(machine.audit(contribution, tuple(candidates), conversation.now()))
        picked = (await conversation.expect(AuditPicked)).numbers
        if not picked:
            return picked
        own = [self._keys.reveal(number) for number in picked]
        if rank == DATA:
            conversation.hear(machine.reveal(own, conversation.now()))
        theirs = (await conversation.expect(KeysRevealed)).keys
        if rank == MODEL:
            conversation.hear(machine.reveal(own, conversation.now()))
        for number, *keys in zip(picked, own, theirs, strict=True):
            opened = candidates[number]
            if opened.data is None:
                continue  # Only the peer received a correction.
            dealt = await self._worker(recomputed, opened.request, keys if rank == MODEL else keys[::-1])
            if not compare_digest(dealt, opened.data):
                conversation.refuse(
                    f"request {number} fails the audit: the dealer's correction is wrong, or {machine.peer} revealed "
                    "another key than it had",
                    Code.SHARES,
                    culprit=conversation.dealer,
                )
        return picked

    async def stages(self) -> AsyncIterator[ReadyStage]:
        """Yield the stages of a pass, in order. InferenceError if the session ends before."""
        for _ in self._course(self._conversation.machine.number):
            ready = await self._conversation.expect(ReadyStage)
            if not self._audited:
                self._room.release()
            yield ready

    async def close(self) -> None:
        """Stop preparing, even if cancelled meanwhile."""
        try:
            if self._task is not None:
                await ended(self._task)
        finally:
            self._worker.close()

    async def _prepare(self) -> None:
        try:
            for number in range(1, self._agreed.passes + 1):
                if self._whole_passes:
                    await self._between_passes.acquire()
                if self._audited:
                    images = self._agreed.images_of(number)
                    fetched = [
                        (stage, await self._fetched(stage.requests(images, self._numbers), number))
                        for stage in self._course(number)
                    ]
                    self._conversation.put(DeliveredPass(fetched))
                    continue
                course = self._course(number)
                for position, stage in enumerate(course):
                    await self._room.acquire()
                    run = await self._prepared(stage, number)
                    self._conversation.put(ReadyStage(stage.name, run))
                    if position + 1 == min(self._enough, len(course)):
                        self._conversation.put(ReadyPass())
        except InferenceError:
            return  # The program notices it at its next wait.
        except Exception as error:
            self._conversation.fail(error)
            raise

    async def _prepared(self, stage: PassStage, number: int) -> Run:
        requests = stage.requests(self._agreed.images_of(number), self._numbers)
        material: deque[list[torch.Tensor]] = deque()
        for place, request in enumerate(requests, self._order(requests)):
            # Drawn while the correction is in transit.
            words = await self._drawn(request, place)
            data = await self._arrived(request, number)
            material.append(words if data is None else words + corrected(request, data))
        return await self._made(stage, number, material)

    async def _made(self, stage: PassStage, number: int, material: deque[list[torch.Tensor]]) -> Run:
        party = Party(self._rank, lambda request: material.popleft(), self._device)
        return await self._worker(stage.prepared, party, self._agreed.images_of(number), self._layers)

    async def _fetched(self, requests: Sequence[AnyBlockRequest], number: int) -> list[DeliveredRequest]:
        """Order requests for the pass of this number, and wait for their corrections."""
        first = self._order(requests)
        return [
            DeliveredRequest(request, place, await self._arrived(request, number))
            for place, request in enumerate(requests, first)
        ]

    async def _drawn(self, request: AnyBlockRequest, number: int) -> list[torch.Tensor]:
        return await self._worker(partial(drawn, request, rank=self._rank, key=self._keys.use(number)))

    async def _arrived(self, request: AnyBlockRequest, number: int) -> bytearray | None:
        """Wait for the correction of this request, if this owner receives one; number: of the pass."""
        if not self._receives(request):
            return None
        data = (await self._conversation.expect(MaterialArrived)).data
        self._taken[number] += len(data)
        return data

    def _order(self, requests: Sequence[AnyBlockRequest]) -> int:
        """Order requests at the dealer; returns the number of the first."""
        conversation, first = self._conversation, self._keys.order([openable(each) for each in requests])
        corrections = [
            (number, correction_bytes(request))
            for number, request in enumerate(requests, first)
            if self._receives(request)
        ]
        conversation.hear_dealer(
            conversation.material.order(encoded_requests(requests), len(requests), corrections, conversation.now())
        )
        return first

    def _receives(self, request: AnyBlockRequest) -> bool:
        return self._rank in request.receivers and bool(request.dependent())


async def hold_pass(
    conversation: Conversation, preparation: Preparation, worker: Worker, carried: Carried | None
) -> tuple[Carried | None, list[RoundCost]]:
    """Compute all stages of a pass on this owner's shares; return the last ones, and the costs of the rounds.

    The shares are None if the pass was refused as out of range. InferenceError if the session ends before, or a program
    refuses the other owner's opening."""

    async def advance(*given: Any) -> tuple[Communication, memoryview | None] | Carried:
        try:
            return await worker(_advanced, *given)
        except RemoteProtocolError as error:
            conversation.refuse(error.detail, error.code)

    costs: list[RoundCost] = []
    since = time.perf_counter()
    async for stage in preparation.stages():
        if carried is None:
            continue  # The rest of a refused pass is of no use.
        program = stage.run(carried)
        advanced = await advance(program, None, ())
        while not isinstance(advanced, Carried):
            exchange, data = advanced
            if data is not None:
                conversation.hear(conversation.machine.give(len(costs), data, conversation.now()))
            received = (await conversation.expect(Opened)).data if exchange.expected else b""
            sent, now = 0 if data is None else data.nbytes, time.perf_counter()
            costs.append(RoundCost(stage.name, exchange.operation, now - since, sent, len(received)))
            since = now
            if conversation.kept(PassRefused) is not None:
                program.close()
                break
            advanced = await advance(program, received, exchange.expected)
        carried = advanced if isinstance(advanced, Carried) else None
        del stage  # Release its correlated randomness before the next stage is prepared.
    return carried, costs


def _advanced(
    program: Program[Carried], received: bytes | bytearray | None, expected: tuple[Expected, ...]
) -> tuple[Communication, memoryview | None] | Carried:
    """Advance a program to its next exchange; returns that with the words to open, or the program's result."""
    try:
        exchange = next(program) if received is None else program.send(_words(received, expected))
    except StopIteration as stop:
        result: Carried = stop.value
        return result
    size = sum(words.numel() * byte_width(bits) for words, bits in exchange.sent)
    return exchange, joined(exchange.sent, size).data if exchange.sent else None


def _words(received: bytes | bytearray, expected: tuple[Expected, ...]) -> list[torch.Tensor]:
    octets, start, found = np.frombuffer(received, np.uint8), 0, []
    for shape, bits in expected:
        end = start + prod(shape) * byte_width(bits)
        found.append(unpacked(octets[start:end], bits, shape))
        start = end
    return found


@dataclass(frozen=True)
class PassPlan:
    public: AskedModel
    course: Course
    classes: int
    begun: Callable[[torch.Tensor], Carried] = Carried
    """Initial state of a pass, from this owner's share of its images."""


Planned = Callable[[Terms], PassPlan]


def inference_plan(terms: Terms) -> PassPlan:
    return of_model(public_of(terms), terms)


def of_model(public: PublicModel, terms: Terms) -> PassPlan:
    passed = stages(public, results=terms.results)
    return PassPlan(public, lambda number: passed, terms.sizes.classes)
