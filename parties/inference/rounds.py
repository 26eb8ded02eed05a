"""The rounds of a pass at one owner: programs are advanced in a thread, and what they open goes through the machine."""

from __future__ import annotations

import time
from dataclasses import dataclass
from math import prod

import numpy as np
import torch

from tacit.parties.inference.conversation import Conversation, Worker
from tacit.parties.inference.operations import Communication, Expected, Program
from tacit.parties.inference.preparation import Preparation
from tacit.parties.inference.ring import byte_width, packed, unpacked
from tacit.protocol.inference.results import Opened


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
