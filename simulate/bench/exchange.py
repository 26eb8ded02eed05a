"""The exchange of messages in memory: the server here, the clients in their hosts.

Messages are delivered in batches, one batch to a host at a time, and to as many hosts at once as may work at once. A
client that drops out is gone when the vectors are asked for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from multiprocessing.connection import wait
from typing import Final

from tacit.protocol.core.messages import Phase
from tacit.simulate.bench.ends import Frames, TimedServer
from tacit.simulate.bench.hosts import ClientHost, Question

BATCH: Final = 32


class BenchmarkExchange:
    """One sum. at_once: how many hosts may work at the same time; with one, the server does not work beside it."""

    def __init__(
        self,
        hosts: list[ClientHost],
        server: TimedServer,
        dropping: set[str],
        progress: Callable[[str], None],
        *,
        at_once: int,
    ) -> None:
        self._server = server
        self._dropping = dropping
        self._progress = progress
        self._at_once = at_once
        cohort = server.machine.agreement.cohort
        self._members = {name: member for member, name in enumerate(cohort)}
        self._names = cohort
        self._queues: list[tuple[ClientHost, deque[Question]]] = [
            (host, deque((member, None) for member in host.members)) for host in hosts
        ]
        self._queue_of = {member: queue for host, queue in self._queues for member in host.members}

    def run(self) -> None:
        """Until nobody has anything more to say. BenchmarkError if the sum is aborted."""
        busy: dict[object, ClientHost] = {}
        phase = ""
        while True:
            for host, queue in self._queues:
                if queue and host.pipe not in busy and len(busy) < self._at_once:
                    host.post([queue.popleft() for _ in range(min(BATCH, len(queue)))])
                    busy[host.pipe] = host
            if not busy:
                return
            for pipe in wait([host.pipe for host in busy.values()]):
                for member, answers in busy.pop(pipe).collect():
                    for frames in answers:
                        self._deliver(self._server.receive(self._names[member], frames))
            if self._server.machine.state.value != phase:
                phase = self._server.machine.state.value
                self._progress(phase)

    def _deliver(self, messages: list[tuple[str, Frames]]) -> None:
        answers = deque(messages)
        while answers:
            receiver, frames = answers.popleft()
            if receiver in self._dropping and self._server.machine.state.value == Phase.MASKED_INPUT.value:
                answers.extend(self._server.drop(receiver))
                continue
            member = self._members[receiver]
            self._queue_of[member].append((member, frames))
