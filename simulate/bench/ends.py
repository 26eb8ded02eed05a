"""The two ends of a secure sum with a clock around them: in memory, over real sockets, or in separate processes.

A party's time includes decoding its input, its machine, and encoding its output. A client's phase lasts from the
message that opens it to the client's answer; the server's phases are its states. A host process imports only the
protocol, and then runs its assigned clients; its peak is measured above its size after the imports.
"""

from __future__ import annotations

import asyncio
import gc
import os
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Container, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from tacit.parties.links.client_endpoint import ClientEndpoint
from tacit.parties.links.endpoint import EndpointClosedError, LinkLost, NotConnectedError, Received
from tacit.parties.links.keys import generate
from tacit.parties.links.server_endpoint import ServerEndpoint
from tacit.parties.session.shell import Stopwatch
from tacit.protocol.core.codec import Frame
from tacit.protocol.core.errors import Code
from tacit.protocol.core.link import Link, Traffic
from tacit.protocol.core.machine import Output, Send, consumed
from tacit.protocol.core.primitives import SigningKey
from tacit.protocol.core.roster import Roster
from tacit.protocol.session.messages import MESSAGES
from tacit.protocol.sum.agreement import Agreement
from tacit.protocol.sum.client import AggregationClient
from tacit.protocol.sum.exchange import ClientAborted, ServerAborted, Summed
from tacit.protocol.sum.server import AggregationServer
from tacit.protocol.sum.states import Phase
from tacit.secagg.ring import Ring, Words
from tacit.simulate.federation.memory import status_bytes

SERVER: Final = "server"
Frames = list[Frame]
Clock = Callable[[], float]
Progress = Callable[[str], object]
"""Receives the progress of a benchmark, in words."""


class BenchmarkError(Exception):
    """The sum was not computed; the message gives the reason."""


def vector(ring: Ring, length: int, number: int) -> Words:
    """Return a client's vector: uniform ring words, deterministic by its number."""
    words = np.random.default_rng(number).integers(0, 1 << 32, length, np.uint32).astype(ring.word)
    ring.reduce_into(words)
    return words


class TimedClient:
    """A client, timed by phase."""

    def __init__(
        self, agreement: Agreement, number: int, signing: SigningKey, words: Words, clock: Clock = time.perf_counter
    ) -> None:
        self._clock = clock
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
        """Return its advert. Its vector exists already."""
        began = self._clock()
        frames = self._frames(self._machine.start(0.0))
        self._machine.contribute(self._vector, 0.0)
        self.seconds[Phase.ADVERTISE_KEYS] += self._clock() - began
        return frames

    def receive(self, frames: Frames) -> list[Frames]:
        """Return its answer to a message of the server."""
        began = self._clock()
        packet = self._link.packet(frames)
        answer = self._frames(self._machine.receive(SERVER, packet, 0.0))
        self.seconds[Phase(packet.kind.PHASE)] += self._clock() - began
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

    def __init__(self, agreement: Agreement, clock: Clock = time.perf_counter) -> None:
        self._clock = clock
        self.seconds: dict[Phase, float] = defaultdict(float)
        self.traffic = Traffic()
        self.sent: Counter[str] = Counter()
        self.received: Counter[str] = Counter()
        self.summed: Summed | None = None
        self.machine = AggregationServer(agreement, 0.0)
        self._links = {name: Link(SERVER, name, agreement.session, self.traffic, MESSAGES) for name in agreement.cohort}

    def hear(self, sender: str, frames: Frames, dropping: Container[str]) -> list[tuple[str, Frames]]:
        """Return its answers to this message, with receivers. Dropping clients are gone when vectors are due."""
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
        began = self._clock()
        answers = []
        for output in consumed(act()):
            if isinstance(output, Send):
                frames = self._links[output.to].frames(output.message, round=1, payload=output.payload)
                answers.append((output.to, frames))
            elif isinstance(output, Summed):
                self.summed = output
            elif isinstance(output, ServerAborted):
                raise BenchmarkError(f"the server aborted: {output.detail}")
        self.seconds[phase] += self._clock() - began
        for name, frames in answers:
            self.sent[name] += sum(len(frame) for frame in frames)
        return answers


class Peak:
    """Peak memory since its creation."""

    def __init__(self) -> None:
        self._baseline = resident_bytes()
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")

    def bytes(self) -> int:
        return _status_bytes("VmHWM") - self._baseline


def resident_bytes() -> int:
    """Return the memory of this process now."""
    return _status_bytes("VmRSS")


def highest_bytes(process: int | Literal["self"] = "self") -> int:
    """Return the peak memory of this process, or of another. OSError or BenchmarkError if it has ended."""
    return _status_bytes("VmHWM", process)


def processor_seconds(process: int) -> float:
    """Return the processor time that a process has used, in all of its threads. OSError if it has ended."""
    # After the name, which may hold anything, the 12th and 13th fields are the ticks of user and system time.
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _status_bytes(field: str, process: int | Literal["self"] = "self") -> int:
    found = status_bytes(field, process)
    if found is None:
        raise BenchmarkError(f"this system does not report {field}; memory is measured on Linux only")
    return found


MOST_CLIENTS = 200
"""Every link takes its own threads and sockets in this one process."""

LOOPBACK = "tcp://127.0.0.1:*"


Ask = Callable[[Frames | None], list[Frames]]
"""Returns a client's answers to a message; None: it advertises its keys."""


async def exchange_over_sockets(
    clients: Mapping[str, Ask], server: TimedServer, dropping: set[str], progress: Progress
) -> None:
    """Compute the sum. A dropping client closes its link when its vector is due."""
    if len(clients) > MOST_CLIENTS:
        raise BenchmarkError(f"--transport zmq takes at most {MOST_CLIENTS} clients on one machine, not {len(clients)}")
    keys = {name: generate(name) for name in (SERVER, *clients)}
    roster = Roster(members=tuple(own.member("server" if name == SERVER else "client") for name, own in keys.items()))
    async with await ServerEndpoint.bind(LOOPBACK, keys=keys[SERVER], roster=roster) as endpoint:
        progress("connecting")
        links = await asyncio.gather(
            *(ClientEndpoint.connect(endpoint.address, keys=keys[name], server=roster.server) for name in clients)
        )
        tasks = [
            asyncio.ensure_future(_client(ask, link, server if name in dropping else None))
            for (name, ask), link in zip(clients.items(), links, strict=True)
        ]
        try:
            await _serve_sums(server, endpoint, progress)
        finally:
            await asyncio.gather(*(link.close() for link in links))
            await asyncio.gather(*tasks, return_exceptions=True)


async def _serve_sums(server: TimedServer, endpoint: ServerEndpoint, progress: Progress) -> None:
    phase = ""
    while server.summed is None:
        event = await endpoint.receive()
        if isinstance(event, Received):
            answers = server.receive(event.sender, list(event.frames))
        elif isinstance(event, LinkLost):
            answers = server.drop(event.peer)
        else:
            continue
        for receiver, frames in answers:
            try:
                await endpoint.send(receiver, frames)
            except NotConnectedError:
                continue
        if server.machine.state.value != phase:
            phase = server.machine.state.value
            progress(phase)


async def _client(ask: Ask, link: ClientEndpoint, drops: TimedServer | None) -> None:
    """Run a client at its link. drops: the server whose MASKED_INPUT it leaves before."""
    for frames in ask(None):
        await link.send(frames)
    try:
        while True:
            event = await link.receive()
            if not isinstance(event, Received):
                continue
            if drops is not None and drops.machine.state.value == Phase.MASKED_INPUT.value:
                await link.close()
                return
            for frames in ask(list(event.frames)):
                await link.send(frames)
    except EndpointClosedError:
        return


BATCH: Final = 32
"""Messages that are delivered to a host at once."""

Question = tuple[int, Frames | None]
"""A member, and a message of the server to it; None: advertise your keys."""
Answer = tuple[int, list[Frames]]


@dataclass(frozen=True)
class HostMetrics:
    """Measurements of a host."""

    seconds: dict[int, dict[Phase, float]]
    """Keyed by member."""
    masks: dict[int, int]
    """Keyed by member."""
    peak_bytes: int
    work_seconds: dict[str, float]
    """Keyed by kind of work; empty unless profiled."""


class ClientHost:
    """Members of the cohort, in another process; ends with its `with` block. secrets: signing secrets by member."""

    def __init__(self, agreement: Agreement, secrets: Mapping[int, bytes], clock: Clock, *, profile: bool) -> None:
        self.members = tuple(secrets)
        context = get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve_host, args=(theirs, agreement, dict(secrets), clock, profile), daemon=True
        )

    def __enter__(self) -> ClientHost:
        self._process.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.pipe.close()
        self._process.join()

    def post(self, batch: list[Question]) -> None:
        """Send questions; `collect` before the next ones, or both ends wait for each other."""
        self.pipe.send(
            [(member, None if frames is None else [bytes(frame) for frame in frames]) for member, frames in batch]
        )

    def ask(self, member: int, frames: Frames | None) -> list[Frames]:
        """Post one question and wait for its answer."""
        self.post([(member, frames)])
        answers: list[Frames] = self.collect()[0][1]
        return answers

    def metrics(self) -> HostMetrics:
        """Return its measurements so far."""
        self.pipe.send(None)
        measured: HostMetrics = self.collect()
        return measured

    def collect(self) -> Any:
        """Return the answers to posted questions, list[Answer], or the metrics. BenchmarkError if a client aborted."""
        try:
            received = self.pipe.recv()
        except EOFError:
            raise BenchmarkError(f"the process of {len(self.members)} clients died") from None
        if isinstance(received, str):
            raise BenchmarkError(received)
        return received


def exchange(
    hosts: list[ClientHost], server: TimedServer, dropping: set[str], progress: Progress, *, at_once: int
) -> None:
    """Compute a sum, until no message is left. BenchmarkError if it is aborted.

    at_once: largest number of hosts that work at the same time; with one, the server does not work beside it.
    """
    names = server.machine.agreement.cohort
    members = {name: member for member, name in enumerate(names)}
    queues = [(host, deque[Question]((member, None) for member in host.members)) for host in hosts]
    queue_of = {member: queue for host, queue in queues for member in host.members}
    busy: dict[object, ClientHost] = {}
    phase = ""
    while True:
        for host, queue in queues:
            if queue and host.pipe not in busy and len(busy) < at_once:
                host.post([queue.popleft() for _ in range(min(BATCH, len(queue)))])
                busy[host.pipe] = host
        if not busy:
            return
        for pipe in wait([host.pipe for host in busy.values()]):
            for member, answers in busy.pop(pipe).collect():
                for frames in answers:
                    for receiver, message in server.hear(names[member], frames, dropping):
                        queue_of[members[receiver]].append((members[receiver], message))
        if server.machine.state.value != phase:
            phase = server.machine.state.value
            progress(phase)


def _serve_host(pipe: Connection, agreement: Agreement, secrets: dict[int, bytes], clock: Clock, profile: bool) -> None:
    # A real client is alone, without the cost of a collector that walks over thousands of others.
    gc.disable()
    peak = Peak()
    clients = {
        member: TimedClient(
            agreement, member, SigningKey(secret), vector(agreement.ring, agreement.length, member), clock
        )
        for member, secret in secrets.items()
    }
    stopwatch = Stopwatch()
    with stopwatch if profile else nullcontext():
        while True:
            try:
                batch: list[Question] | None = pipe.recv()
            except EOFError:
                return
            if batch is None:
                pipe.send(
                    HostMetrics(
                        {member: dict(client.seconds) for member, client in clients.items()},
                        {member: client.masks for member, client in clients.items()},
                        peak.bytes(),
                        dict(stopwatch.seconds),
                    )
                )
                continue
            try:
                answers = [(member, _answer(clients[member], frames)) for member, frames in batch]
            except BenchmarkError as error:
                pipe.send(str(error))
            else:
                pipe.send(answers)


def _answer(client: TimedClient, frames: Frames | None) -> list[Frames]:
    answers = client.start() if frames is None else client.receive(frames)
    return [[bytes(frame) for frame in answer] for answer in answers]
