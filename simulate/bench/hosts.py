"""Clients in processes of their own: so that many use every core, and that the memory of one can be told.

A host imports the protocol and nothing else, notes its size, and then is the clients that it was given: batches of
frames come and go through a pipe, one batch at a time. Its peak is what it used above its size after the imports.
`exchange` delivers them to and from the server; a client that drops out is gone when the vectors are asked for.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any, Final

from tacit.parties.session.shell import Stopwatch
from tacit.protocol.core.messages import Phase
from tacit.protocol.core.primitives import SigningKey
from tacit.protocol.sum.agreement import Agreement
from tacit.simulate.bench.ends import BenchmarkError, Frames, TimedClient, TimedServer, vector
from tacit.simulate.bench.peak import Peak

BATCH: Final = 32
"""Messages that are delivered to a host at once."""

Question = tuple[int, Frames | None]
"""A member, and a message of the server to it; None: advertise your keys."""
Answer = tuple[int, list[Frames]]


@dataclass(frozen=True)
class HostFigures:
    """What a host measured."""

    seconds: dict[int, dict[Phase, float]]
    """By member."""
    masks: dict[int, int]
    """By member."""
    peak_bytes: int
    work_seconds: dict[str, float]
    """By kind of work; empty unless profiled."""


class ClientHost:
    """Some members of the cohort, elsewhere; ends with its `with` block. secrets: signing secrets by member."""

    def __init__(self, agreement: Agreement, secrets: Mapping[int, bytes], *, profile: bool) -> None:
        self.members = tuple(secrets)
        context = get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, agreement, dict(secrets), profile), daemon=True)

    def __enter__(self) -> ClientHost:
        self._process.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.pipe.close()
        self._process.join()

    def post(self, batch: list[Question]) -> None:
        """Ask; `collect` before the next question, or both ends wait for each other."""
        self.pipe.send(
            [(member, None if frames is None else [bytes(frame) for frame in frames]) for member, frames in batch]
        )

    def ask(self, member: int, frames: Frames | None) -> list[Frames]:
        """Post one question and wait for its answer."""
        self.post([(member, frames)])
        answers: list[Frames] = self.collect()[0][1]
        return answers

    def figures(self) -> HostFigures:
        """What it measured so far."""
        self.pipe.send(None)
        figures: HostFigures = self.collect()
        return figures

    def collect(self) -> Any:
        """The answers to what was posted, a list[Answer], or the figures. BenchmarkError if a client aborted."""
        try:
            received = self.pipe.recv()
        except EOFError:
            raise BenchmarkError(f"the process of {len(self.members)} clients died") from None
        if isinstance(received, str):
            raise BenchmarkError(received)
        return received


def exchange(
    hosts: list[ClientHost], server: TimedServer, dropping: set[str], progress: Callable[[str], None], *, at_once: int
) -> None:
    """Compute a sum: until nobody has anything more to say. BenchmarkError if it is aborted.

    at_once: how many hosts may work at the same time; with one, the server does not work beside it.
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


def _serve(pipe: Connection, agreement: Agreement, secrets: dict[int, bytes], profile: bool) -> None:
    # A real client is alone: it does not pay for a collector that walks over thousands of others.
    gc.disable()
    peak = Peak()
    clients = {
        member: TimedClient(agreement, member, SigningKey(secret), vector(agreement.ring, agreement.length, member))
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
                    HostFigures(
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
