"""Runs a program over a link: sends what it yields, gives it what came, and keeps the time. Decides nothing."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass, field
from math import prod
from typing import TypeVar

import numpy as np
import torch

from tacit.parties.inference.operations import Program
from tacit.parties.inference.ring import byte_width, packed, unpacked
from tacit.parties.mpc.link import Link

T = TypeVar("T")


@dataclass
class Cost:
    """What one operation has cost one party online."""

    seconds: float = 0.0
    """From the end of the round before to the end of its own rounds: its computation, messages and waiting."""
    bytes_sent: int = 0
    """Words of shares; a link adds a header to each message."""
    rounds: int = 0


@dataclass
class Record:
    """The costs of one pass, by operation."""

    operations: defaultdict[str, Cost] = field(default_factory=lambda: defaultdict(Cost))

    @property
    def rounds(self) -> int:
        return sum(cost.rounds for cost in self.operations.values())

    @property
    def bytes_sent(self) -> int:
        return sum(cost.bytes_sent for cost in self.operations.values())


def drive(program: Program[T], link: Link, record: Record) -> T:
    """What the program returns at its end. MpcError as the link raises it: the pass is lost then."""
    before = time.perf_counter()
    received: list[torch.Tensor] | None = None
    last: Cost | None = None
    while True:
        try:
            exchange = program.send(received) if received is not None else next(program)
        except StopIteration as stop:
            if last is not None:
                last.seconds += time.perf_counter() - before
            result: T = stop.value
            return result
        last = record.operations[exchange.operation]
        if exchange.sent:
            frames = [packed(words, bits) for words, bits in exchange.sent]
            last.bytes_sent += sum(frame.nbytes for frame in frames)
            link.send(exchange.operation, frames)
        arrived: list[np.ndarray] = []
        if exchange.expected:
            expected = [(np.uint8, (prod(shape), byte_width(bits))) for shape, bits in exchange.expected]
            arrived = link.receive(exchange.operation, expected)
        pairs = zip(arrived, exchange.expected, strict=True)
        received = [unpacked(octets, bits, shape) for octets, (shape, bits) in pairs]
        last.rounds += 1
        now = time.perf_counter()
        last.seconds += now - before
        before = now
