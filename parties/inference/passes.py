"""The passes of a session at one owner: their material is ordered ahead and made into stages that are ready, whose
programs are advanced in a thread; what these open goes through the machine.

While a pass is computed, the material of the stages to come is already being fetched: `ahead` stages are ready or being
made at any time. With `ahead = None` a whole pass is made ready when it is wanted, and nothing beyond it, so that what
is measured online is not disturbed.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import torch

from tacit.parties.correlated.material import Weight
from tacit.parties.inference.conversation import Conversation, InferenceError, Worker, ended
from tacit.parties.inference.material import AnyBlockRequest, corrected, correction_bytes, drawn, encoded_requests
from tacit.parties.inference.model import PublicModel
from tacit.parties.inference.operations import MODEL, Communication, Expected, FixedLinear, Party, Program
from tacit.parties.inference.ring import byte_width, packed, unpacked
from tacit.parties.inference.stages import ModelStage, Run, stages
from tacit.protocol.inference.dealer import MOST_ORDERS
from tacit.protocol.inference.results import MaterialArrived, MaterialKey, Opened
from tacit.protocol.inference.schedule import layer_shapes


@dataclass(frozen=True)
class RoundCost:
    """What one round has cost this owner."""

    stage: str
    operation: str
    seconds: float
    """From the end of the round before: computation, messages and waiting."""
    sent: int
    """Bytes of words of shares; a message adds its envelope."""
    received: int


@dataclass(frozen=True)
class ReadyStage:
    """A stage of a pass with its material."""

    name: str
    run: Run


@dataclass(frozen=True)
class ReadyPass:
    """Enough of a pass is ready for it to begin."""


class Preparation:
    """Of one owner in one session, after the agreement. ahead: see above."""

    def __init__(
        self,
        conversation: Conversation,
        public: PublicModel,
        *,
        rank: int,
        ahead: int | None,
        device: torch.device,
    ) -> None:
        self._conversation = conversation
        self._public = public
        self._rank = rank
        self._agreed = conversation.machine.agreed
        self._stages = stages(public, known=self._agreed.terms.input == "known")
        self._whole_passes = ahead is None
        # One order more is for the masks, and one may be under way: the dealer lets nobody get further ahead.
        most = min(len(self._stages), MOST_ORDERS - 2)
        self._room = asyncio.Semaphore(most if ahead is None else min(ahead, most))
        self._enough = most if ahead is None else 1
        self._wanted = asyncio.Semaphore(0)
        self._worker = Worker()
        self._device = device
        self._ordered = 0
        self._key = b""
        self._masks = {name: Weight(MODEL, shape) for name, shape in layer_shapes(public.sizes).items()}
        self._task: asyncio.Task[None] | None = None

    async def masks(self) -> Mapping[str, int]:
        """Wait for the dealer, and have a mask for every layer; the numbers of their requests by name."""
        self._key = (await self._conversation.expect(MaterialKey)).key
        self._order(tuple(self._masks.values()))
        return {name: number for number, name in enumerate(self._masks)}

    async def mask(self, name: str, number: int) -> torch.Tensor:
        """V of a layer, at the model owner."""
        (words,) = await self._worker(lambda: drawn(self._masks[name], number, rank=self._rank, key=self._key))
        return words

    def begin(self, layers: Mapping[str, FixedLinear], numbers: Mapping[str, int]) -> None:
        """Start to prepare the passes."""
        self._task = asyncio.ensure_future(self._prepare(layers, numbers))

    async def ready(self) -> None:
        """Until the next pass can begin. InferenceError when the session ends before."""
        self._wanted.release()
        await self._conversation.expect(ReadyPass)

    async def stages(self) -> AsyncIterator[ReadyStage]:
        """Those of a pass, in order. InferenceError when the session ends before."""
        for _ in self._stages:
            ready = await self._conversation.expect(ReadyStage)
            self._room.release()
            yield ready

    async def close(self) -> None:
        """Stop preparing."""
        if self._task is not None:
            await ended(self._task)
        self._worker.close()

    async def _prepare(self, layers: Mapping[str, FixedLinear], numbers: Mapping[str, int]) -> None:
        try:
            for number in range(1, self._agreed.passes + 1):
                if self._whole_passes:
                    await self._wanted.acquire()
                for position, stage in enumerate(self._stages):
                    await self._room.acquire()
                    run = await self._prepared(stage, self._agreed.images_of(number), layers, numbers)
                    self._conversation.put(ReadyStage(stage.name, run))
                    if position + 1 == self._enough:
                        self._conversation.put(ReadyPass())
        except InferenceError:
            return  # The program learns of it where it waits.
        except Exception as error:
            self._conversation.fail(error)
            raise

    async def _prepared(
        self, stage: ModelStage, images: int, layers: Mapping[str, FixedLinear], numbers: Mapping[str, int]
    ) -> Run:
        requests = stage.requests(images, numbers)
        first = self._order(requests)
        material: deque[list[torch.Tensor]] = deque()
        for number, request in enumerate(requests, first):
            words = await self._worker(lambda: drawn(request, number, rank=self._rank, key=self._key))  # noqa: B023
            if self._receives(request):
                data = (await self._conversation.expect(MaterialArrived)).data
                words += corrected(request, data)
            material.append(words)
        party = Party(self._rank, lambda request: material.popleft(), self._device)
        return await self._worker(stage.prepared, party, images, layers)

    def _order(self, requests: Sequence[AnyBlockRequest]) -> int:
        """Order at the dealer; the number of the first request."""
        conversation, first = self._conversation, self._ordered
        corrections = [
            (number, correction_bytes(request))
            for number, request in enumerate(requests, first)
            if self._receives(request)
        ]
        self._ordered += len(requests)
        conversation.hear_dealer(
            conversation.material.order(encoded_requests(requests), len(requests), corrections, conversation.now())
        )
        return first

    def _receives(self, request: AnyBlockRequest) -> bool:
        return request.receiver == self._rank and bool(request.dependent())


async def hold_pass(
    conversation: Conversation, preparation: Preparation, worker: Worker, share: torch.Tensor
) -> tuple[torch.Tensor, list[RoundCost]]:
    """All stages of a pass, from this owner's share of the input to that of the output, and what they cost.

    InferenceError when the session ends before.
    """
    costs: list[RoundCost] = []
    since = time.perf_counter()
    async for stage in preparation.stages():
        program = stage.run(share)
        advanced = await worker(_advanced, program, None, ())
        while not isinstance(advanced, torch.Tensor):
            exchange, data = advanced
            if data is not None:
                conversation.hear(conversation.machine.give(len(costs), data, conversation.now()))
            received = (await conversation.expect(Opened)).data if exchange.expected else b""
            sent, now = 0 if data is None else data.nbytes, time.perf_counter()
            costs.append(RoundCost(stage.name, exchange.operation, now - since, sent, len(received)))
            since = now
            advanced = await worker(_advanced, program, received, exchange.expected)
        share = advanced
    return share, costs


def _advanced(
    program: Program[torch.Tensor], received: bytes | bytearray | None, expected: tuple[Expected, ...]
) -> tuple[Communication, memoryview | None] | torch.Tensor:
    """Run a program up to its next exchange: that, and what it opens there; or what it returns."""
    try:
        exchange = next(program) if received is None else program.send(_words(received, expected))
    except StopIteration as stop:
        result: torch.Tensor = stop.value
        return result
    parts = [packed(words, bits).reshape(-1) for words, bits in exchange.sent]
    return exchange, (np.concatenate(parts) if len(parts) > 1 else parts[0]).data if parts else None


def _words(received: bytes | bytearray, expected: tuple[Expected, ...]) -> list[torch.Tensor]:
    octets, start, found = np.frombuffer(received, np.uint8), 0, []
    for shape, bits in expected:
        end = start + prod(shape) * byte_width(bits)
        found.append(unpacked(octets[start:end].reshape(-1, byte_width(bits)), bits, shape))
        start = end
    return found
