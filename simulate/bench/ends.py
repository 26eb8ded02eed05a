"""The two ends of a secure sum with a clock around them.

A party's time is that of decoding what it receives, its machine, and encoding what it says; waiting and delivery are
nobody's. A client's phase runs from the message that opens it to the client's answer; the server's are its states.
"""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Container, Iterable
from typing import Final

import numpy as np

from tacit.protocol.core.codec import Frame
from tacit.protocol.core.errors import Code
from tacit.protocol.core.link import Link, Traffic
from tacit.protocol.core.machine import Output, Send
from tacit.protocol.core.messages import Phase
from tacit.protocol.core.primitives import SigningKey
from tacit.protocol.session.messages import MESSAGES
from tacit.protocol.sum.agreement import Agreement
from tacit.protocol.sum.client import AggregationClient
from tacit.protocol.sum.exchange import ClientAborted, ServerAborted, Summed
from tacit.protocol.sum.server import AggregationServer
from tacit.secagg.ring import Ring, Words

SERVER: Final = "server"
Frames = list[Frame]


class BenchmarkError(Exception):
    """The sum was not computed; the message says why."""


def vector(ring: Ring, length: int, number: int) -> Words:
    """The vector of a client: uniform ring words, the same whenever it is asked for."""
    words = np.random.default_rng(number).integers(0, 1 << 32, length, np.uint32).astype(ring.word)
    ring.reduce_into(words)
    return words


class TimedClient:
    """A client, timed by phase."""

    def __init__(self, agreement: Agreement, number: int, signing: SigningKey, words: Words) -> None:
        self.seconds: dict[Phase, float] = defaultdict(float)
        self.masks = 0
        self._name = agreement.cohort[number]
        self._link = Link(self._name, SERVER, agreement.session, Traffic(), MESSAGES)
        self._machine = AggregationClient(
            agreement,
            self._name,
            signing=signing,
            entropy=os.urandom,
        )
        self._vector = words

    def start(self) -> list[Frames]:
        """Its advert. Its vector is there already."""
        began = time.perf_counter()
        frames = self._frames(self._machine.start(0.0))
        self._machine.contribute(self._vector, 0.0)
        self.seconds[Phase.ADVERTISE_KEYS] += time.perf_counter() - began
        return frames

    def receive(self, frames: Frames) -> list[Frames]:
        """Its answer to a message of the server."""
        began = time.perf_counter()
        packet = self._link.packet(frames)
        answer = self._frames(self._machine.receive(SERVER, packet, 0.0))
        self.seconds[packet.kind.PHASE] += time.perf_counter() - began
        self.masks = max(self.masks, self._machine.masks)
        return answer

    def _frames(self, outputs: Iterable[Output]) -> list[Frames]:
        frames = []
        for output in outputs:
            if isinstance(output, Send):
                frames.append(self._link.frames(output.message, round=1, payload=output.payload))
            elif isinstance(output, ClientAborted):
                raise BenchmarkError(f"{self._name} aborted: {output.detail}")
        return frames


class TimedServer:
    """The server, timed by state."""

    def __init__(self, agreement: Agreement) -> None:
        self.seconds: dict[Phase, float] = defaultdict(float)
        self.traffic = Traffic()
        self.sent: Counter[str] = Counter()
        self.received: Counter[str] = Counter()
        self.summed: Summed | None = None
        self.machine = AggregationServer(agreement, 0.0)
        self._links = {name: Link(SERVER, name, agreement.session, self.traffic, MESSAGES) for name in agreement.cohort}

    def hear(self, sender: str, frames: Frames, dropping: Container[str]) -> list[tuple[str, Frames]]:
        """What it says to whom after this message, when those who drop out are gone as it asks for the vectors."""
        messages, delivered = deque(self.receive(sender, frames)), []
        while messages:
            receiver, message = messages.popleft()
            if receiver in dropping and self.machine.state.value == Phase.MASKED_INPUT.value:
                messages.extend(self.drop(receiver))
            else:
                delivered.append((receiver, message))
        return delivered

    def receive(self, sender: str, frames: Frames) -> list[tuple[str, Frames]]:
        self.received[sender] += sum(len(frame) for frame in frames)
        return self._timed(lambda: self.machine.receive(sender, self._links[sender].packet(frames), 0.0))

    def drop(self, name: str) -> list[tuple[str, Frames]]:
        return self._timed(lambda: self.machine.drop(name, Code.LEFT, "dropped by the benchmark", 0.0))

    def _timed(self, act: Callable[[], list[Output]]) -> list[tuple[str, Frames]]:
        phase = Phase(self.machine.state.value)
        began = time.perf_counter()
        answers = []
        for output in act():
            if isinstance(output, Send):
                frames = self._links[output.to].frames(output.message, round=1, payload=output.payload)
                answers.append((output.to, frames))
            elif isinstance(output, Summed):
                self.summed = output
            elif isinstance(output, ServerAborted):
                raise BenchmarkError(f"the server aborted: {output.detail}")
        self.seconds[phase] += time.perf_counter() - began
        for name, frames in answers:
            self.sent[name] += sum(len(frame) for frame in frames)
        return answers
