"""`tacit bench secagg`: what a secure sum costs, with the real machines and real cryptography.

Every simulated party computes its own keys, agreements and signatures; nothing is shared between the two ends. The
clients that drop out do so after SHARE_KEYS, before they send their vector: the costly case.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

import numpy as np

from tacit.parties.stopwatch import Stopwatch
from tacit.protocol.agreement import Agreement
from tacit.protocol.messages import Phase
from tacit.protocol.primitives import SigningKey
from tacit.secagg.graph import GraphChoice, choose_parameters
from tacit.secagg.packing import Packing, WeightForm
from tacit.simulate.bench.ends import SERVER, BenchmarkError, ClientEnd, Frames, TimedClient, TimedServer, vector
from tacit.simulate.bench.keystream import keystream_ratio
from tacit.simulate.bench.remote import RemoteClient
from tacit.simulate.bench.sockets import exchange_over_sockets

VALUE_BITS: Final = 16
NO_DEADLINE: Final = 86_400.0


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What to measure."""

    clients: int
    dimension: int
    dropout: float
    """Fraction of the clients that really drop out."""
    tolerate_dropout: float
    corrupt: float
    active: bool
    graph: GraphChoice
    counts: bool
    """Whether every coordinate carries a count of its contributors."""
    sockets: bool
    """Whether messages go over ZeroMQ with CURVE instead of a queue in memory."""

    def packing(self) -> Packing:
        """The layout of the vectors that are summed."""
        return Packing(
            clients=self.clients,
            clip=1.0,
            value_bits=VALUE_BITS,
            max_weight=1,
            form=WeightForm.COORDINATE if self.counts else WeightForm.SCALAR,
            tensor_sizes=(self.dimension,),
            metrics=(),
        )

    def agreement(self, signing_keys: tuple[bytes, ...]) -> Agreement:
        """One round of these clients. ValueError where there are no parameters for them."""
        packing = self.packing()
        parameters = choose_parameters(
            self.clients, corrupt=self.corrupt, dropout=self.tolerate_dropout, active=self.active, graph=self.graph
        )
        return Agreement(
            session=os.urandom(32),
            round=1,
            server=SERVER,
            cohort=tuple(f"client-{number + 1}" for number in range(self.clients)),
            signing_keys=signing_keys,
            active=self.active,
            regular=parameters.neighbours < self.clients - 1,
            parameters=parameters,
            ring=packing.ring,
            length=packing.length,
            roster=bytes(32),
            configuration=bytes(32),
            model=bytes(32),
            train_seconds=NO_DEADLINE,
            phase_seconds=NO_DEADLINE,
        )


def measure(setting: Setting, progress: Callable[[str], None], *, profile: bool) -> dict[str, Any]:
    """Hold the sum and return the figures. BenchmarkError or ValueError if it cannot be held.

    profile: tell the seconds by kind of work, of all parties but the first client together.
    """
    secrets = [os.urandom(32) for _ in range(setting.clients)]
    signing = [SigningKey(secret) for secret in secrets]
    agreement = setting.agreement(tuple(key.public for key in signing))
    server = TimedServer(agreement)
    staying = setting.clients - int(setting.dropout * setting.clients)
    dropping = set(agreement.cohort[staying:])
    progress(f"preparing {setting.clients} clients")
    with RemoteClient(agreement, signing_secret=secrets[0]) as remote:
        clients: dict[str, ClientEnd] = {agreement.cohort[0]: remote}
        for number in range(1, setting.clients):
            clients[agreement.cohort[number]] = TimedClient(agreement, number, signing[number])
        stopwatch = Stopwatch().install() if profile else Stopwatch()
        began = time.perf_counter()
        if setting.sockets:
            asyncio.run(exchange_over_sockets(clients, server, dropping, progress))
        else:
            _exchange(clients, server, dropping, progress)
        wall_seconds = time.perf_counter() - began
        stopwatch.remove()
        peak_bytes = remote.peak_bytes()
    if server.summed is None:
        raise BenchmarkError("the exchange ended without a sum")
    expected = np.zeros(agreement.length, agreement.ring.word)
    for name in server.summed.survivors:
        agreement.ring.add_into(expected, vector(agreement.ring, agreement.length, agreement.cohort.index(name)))
    finished = [client for name, client in clients.items() if name not in dropping]
    masks = max(client.masks for client in finished)
    progress("comparing masks with raw keystream")
    ratio, masking_ms = keystream_ratio(agreement.ring, agreement.length, masks)
    return {
        **_times(finished, server),
        "bytes_up_per_client": round(sum(server.received.values()) / setting.clients),
        "bytes_down_per_client": round(sum(server.sent.values()) / setting.clients),
        "expansion": max(server.received.values()) / (4 * setting.dimension),
        "masks_per_client": masks,
        "masks_expanded_by_server": server.machine.masks,
        "keystream_ratio": ratio,
        "masking_ms": masking_ms,
        "peak_rss_mb": peak_bytes / 1e6,
        "peak_over_vector": peak_bytes / (4 * setting.dimension),
        "neighbours": agreement.parameters.neighbours,
        "threshold": agreement.parameters.threshold,
        "ring_bits": agreement.ring.bits,
        "survivors": len(server.summed.survivors),
        "sum_is_exact": bool((expected == server.summed.total).all()),
        "wall_seconds": wall_seconds,
        **({"profile_seconds": dict(stopwatch.seconds)} if profile else {}),
    }


def _exchange(
    clients: dict[str, ClientEnd], server: TimedServer, dropping: set[str], progress: Callable[[str], None]
) -> None:
    """Deliver in the order of sending. A dropping client is gone when the vectors are asked for."""
    inbox: deque[tuple[str, Frames]] = deque()
    for name, client in clients.items():
        inbox.extend((name, frames) for frames in client.start())
    phase = ""
    gone: set[str] = set()
    while inbox:
        sender, frames = inbox.popleft()
        answers = deque(server.receive(sender, frames))
        while answers:
            receiver, answer = answers.popleft()
            if receiver in dropping and server.machine.state.value == Phase.MASKED_INPUT.value:
                if receiver not in gone:
                    gone.add(receiver)
                    answers.extend(server.drop(receiver))
                continue
            inbox.extend((receiver, reply) for reply in clients[receiver].receive(answer))
        if server.machine.state.value != phase:
            phase = server.machine.state.value
            progress(phase)


def _times(clients: list[ClientEnd], server: TimedServer) -> dict[str, Any]:
    phases = [phase for phase in Phase if any(client.seconds[phase] for client in clients)]
    totals = [1e3 * sum(client.seconds.values()) for client in clients]
    return {
        "client_total_ms": median(totals),
        "client_total_p95_ms": float(np.percentile(totals, 95)),
        "server_total_ms": 1e3 * sum(server.seconds.values()),
        "client_ms": {phase.value: 1e3 * median(client.seconds[phase] for client in clients) for phase in phases},
        "client_p95_ms": {
            phase.value: 1e3 * float(np.percentile([client.seconds[phase] for client in clients], 95))
            for phase in phases
        },
        "server_ms": {phase.value: 1e3 * server.seconds[phase] for phase in phases},
    }
