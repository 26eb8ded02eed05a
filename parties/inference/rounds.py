"""The rounds of a pass at one owner: programs are advanced in a thread, and what they open goes through the machine."""

from __future__ import annotations

import time
from dataclasses import dataclass
from math import prod

import numpy as np
import torch

from tacit.parties.inference.conversation import Conversation, Worker
from tacit.parties.inference.operations import Communication, Expected, Program
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


class PassAtWork:
    """One pass of one owner."""

    def __init__(self, conversation: Conversation, worker: Worker) -> None:
        self._conversation = conversation
        self._worker = worker
        self._step = 0
        self._since = time.perf_counter()
        self.costs: list[RoundCost] = []

    async def run(self, stage: str, program: Program[torch.Tensor]) -> torch.Tensor:
        """What the program returns. InferenceError when the session ends before."""
        conversation = self._conversation
        advanced = await self._worker(_advanced, program, None, ())
        while not isinstance(advanced, torch.Tensor):
            exchange, data = advanced
            if data is not None:
                conversation.hear(conversation.machine.give(self._step, data, conversation.now()))
            received = (await conversation.expect(Opened)).data if exchange.expected else b""
            self._note(stage, exchange.operation, 0 if data is None else data.nbytes, len(received))
            self._step += 1
            advanced = await self._worker(_advanced, program, received, exchange.expected)
        return advanced

    def _note(self, stage: str, operation: str, sent: int, received: int) -> None:
        now = time.perf_counter()
        self.costs.append(RoundCost(stage, operation, now - self._since, sent, received))
        self._since = now


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
