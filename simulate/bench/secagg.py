"""`tacit bench secagg`: the cost of a secure sum, with the real machines and real cryptography.

Clients drop out after SHARE_KEYS, before they send their vector: the costly case. A sum that exceeds the memory of this
machine is refused before it starts. `keystream_ratio` is the time of masking over the time of drawing as much raw
keystream, in blocks of the same size on the same number of threads.
"""

from __future__ import annotations

import asyncio
import gc
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Final

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR

from tacit.models.configuration import gigabytes
from tacit.parties.hosting.folder import available_memory
from tacit.parties.session.shell import Stopwatch
from tacit.protocol.core.primitives import SigningKey
from tacit.protocol.sum.agreement import Agreement, record_bytes
from tacit.protocol.sum.configuration import share
from tacit.protocol.sum.states import Phase
from tacit.secagg.graph import GraphChoice, choose_parameters
from tacit.secagg.keystream import Mask, Usage, apply_masks
from tacit.secagg.packing import Packing, WeightForm
from tacit.secagg.ring import Ring
from tacit.simulate.bench.ends import (
    SERVER,
    BenchmarkError,
    ClientHost,
    Peak,
    Progress,
    TimedServer,
    exchange,
    exchange_over_sockets,
    vector,
)
from tacit.simulate.bench.results import SumBenchmarkResult

BLOCK_BYTES = 1 << 17


def keystream_ratio(ring: Ring, length: int, masks: int, *, repeats: int = 5) -> tuple[float, float]:
    """Return (ratio, milliseconds of masking) for a vector of `length` words under so many masks."""
    words = np.zeros(length, ring.word)
    drawn = [Mask(os.urandom(32), Usage.PAIRWISE_MASK, 1) for _ in range(masks)]
    masking, raw = [], []
    for _ in range(repeats):
        masking.append(_seconds(lambda: apply_masks(words, drawn, ring)))
        raw.append(_seconds(lambda: _draw(words.nbytes, masks)))
    return median(masking) / median(raw), median(masking) * 1e3


def _draw(length: int, streams: int) -> None:
    threads = os.cpu_count() or 1
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda _: draw_span(length // threads, streams), range(threads)))


def draw_span(length: int, streams: int) -> None:
    """Draw so many bytes of raw keystream for each of so many keys, on one core."""
    zeros, scratch = bytes(BLOCK_BYTES), bytearray(BLOCK_BYTES + 15)
    encryptors = [Cipher(AES256(os.urandom(32)), CTR(bytes(16))).encryptor() for _ in range(streams)]
    for low in range(0, length, BLOCK_BYTES):
        block = zeros[: min(BLOCK_BYTES, length - low)] if length - low < BLOCK_BYTES else zeros
        for encryptor in encryptors:
            encryptor.update_into(block, scratch)


def _seconds(act: Callable[[], None]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


VALUE_BITS: Final = 16
NO_DEADLINE: Final = 86_400.0
NEIGHBOUR_BYTES: Final = 1_200
"""Memory of a client and the server per neighbour, beside a copy of the neighbour's advert on either side: measured in
active mode, 1,100 to 1,300 with 52 to 178 neighbours."""
SEQUENTIAL_CLIENTS: Final = 1_000
"""Up to here one party works at a time and times are its own; beyond, all cores work, and times are processor times."""


@dataclass(frozen=True, kw_only=True)
class SumBenchmark:
    """Settings of the benchmark."""

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

    def agreement(self, signing_keys: tuple[bytes, ...]) -> Agreement:
        """Return the agreement of one round of these clients. ValueError without parameters for them."""
        packing = Packing(
            clients=self.clients,
            clip=1.0,
            value_bits=VALUE_BITS,
            max_weight=1,
            form=WeightForm.COORDINATE if self.counts else WeightForm.SCALAR,
            tensor_sizes=(self.dimension,),
            metrics=(),
        )
        parameters = choose_parameters(
            self.clients,
            colluders=share(self.corrupt, self.clients),
            dropouts=share(self.tolerate_dropout, self.clients),
            active=self.active,
            graph=self.graph,
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


def measure(setting: SumBenchmark, progress: Progress, *, profile: bool) -> SumBenchmarkResult:
    """Compute the sum and return its cost. BenchmarkError or ValueError if it cannot be computed.

    profile: also measure the seconds by kind of work, of all parties together.
    """
    secrets = {number: os.urandom(32) for number in range(setting.clients)}
    agreement = setting.agreement(tuple(SigningKey(secret).public for secret in secrets.values()))
    staying = setting.clients - int(setting.dropout * setting.clients)
    dropping = set(agreement.cohort[staying:])
    _check_memory(agreement)
    progress(f"preparing {setting.clients} clients")
    cores = (os.cpu_count() or 1) if setting.clients > SEQUENTIAL_CLIENTS else 1
    clock = time.process_time if cores > 1 else time.perf_counter
    server = TimedServer(agreement, clock)
    with ExitStack() as stack:
        hosts = [
            stack.enter_context(ClientHost(agreement, {n: secrets[n] for n in members}, clock, profile=profile))
            for members in (range(1), *(range(1 + core, setting.clients, cores) for core in range(cores)))
        ]
        # Exclude the cost of a collector that walks over this command's other modules.
        gc.collect()
        gc.freeze()
        stack.callback(gc.unfreeze)
        stopwatch = Stopwatch()
        if profile:
            stack.enter_context(stopwatch)
        server_peak = Peak()
        began = time.perf_counter()
        if setting.sockets:
            ends = {agreement.cohort[n]: partial(host.ask, n) for host in hosts for n in host.members}
            asyncio.run(exchange_over_sockets(ends, server, dropping, progress))
        else:
            exchange(hosts, server, dropping, progress, at_once=cores)
        wall_seconds = time.perf_counter() - began
        server_peak_bytes = server_peak.bytes()
        measured = [host.metrics() for host in hosts]
    if server.summed is None:
        raise BenchmarkError("the exchange ended without a sum")
    expected = np.zeros(agreement.length, agreement.ring.word)
    for name in server.summed.survivors:
        agreement.ring.add_into(expected, vector(agreement.ring, agreement.length, agreement.cohort.index(name)))
    seconds = [spent for host in measured for member, spent in host.seconds.items() if member < staying]
    masks = max(count for host in measured for member, count in host.masks.items() if member < staying)
    progress("comparing masks with raw keystream")
    ratio, masking_ms = keystream_ratio(agreement.ring, agreement.length, masks)
    phases = [phase for phase in Phase if any(phase in spent for spent in seconds)]
    by_phase = {phase.value: [1e3 * spent.get(phase, 0.0) for spent in seconds] for phase in phases}
    totals = [1e3 * sum(spent.values()) for spent in seconds]
    profiled = [stopwatch.seconds, *(host.work_seconds for host in measured)]
    return SumBenchmarkResult(
        clients=setting.clients,
        dimension=setting.dimension,
        client_total_ms=median(totals),
        client_total_p95_ms=float(np.percentile(totals, 95)),
        server_total_ms=1e3 * sum(server.seconds.values()),
        client_ms={phase: median(spent) for phase, spent in by_phase.items()},
        client_p95_ms={phase: float(np.percentile(spent, 95)) for phase, spent in by_phase.items()},
        server_ms={phase.value: 1e3 * server.seconds[phase] for phase in phases},
        bytes_up_per_client=round(sum(server.received.values()) / setting.clients),
        bytes_down_per_client=round(sum(server.sent.values()) / setting.clients),
        expansion=max(server.received.values()) / (4 * setting.dimension),
        masks_per_client=masks,
        masks_expanded_by_server=server.machine.masks,
        keystream_ratio=ratio,
        masking_ms=masking_ms,
        peak_rss_mb=measured[0].peak_bytes / 1e6,
        server_peak_rss_mb=server_peak_bytes / 1e6,
        peak_over_vector=measured[0].peak_bytes / (4 * setting.dimension),
        neighbours=agreement.parameters.neighbours,
        threshold=agreement.parameters.threshold,
        ring_bits=agreement.ring.bits,
        survivors=len(server.summed.survivors),
        sum_is_exact=bool((expected == server.summed.total).all()),
        wall_seconds=wall_seconds,
        profile_seconds={
            kind: sum(part.get(kind, 0.0) for part in profiled) for kind in sorted(set().union(*profiled))
        },
    )


def _check_memory(agreement: Agreement) -> None:
    """Raise BenchmarkError if such a sum does not fit in memory."""
    clients, neighbours = agreement.size, agreement.parameters.neighbours
    # In a regular graph of active mode a client holds shares for as many others again.
    others = min(clients - 1, 2 * neighbours if agreement.active else neighbours)
    vector_bytes = agreement.length * agreement.ring.word.itemsize
    needed = clients * (others * (2 * record_bytes(agreement) + NEIGHBOUR_BYTES) + vector_bytes)
    available = available_memory()
    if available is not None and needed > available:
        raise BenchmarkError(
            f"{clients:,} clients with {neighbours:,} neighbours and vectors of {vector_bytes:,} bytes take "
            f"about {gigabytes(needed)}, and there are {gigabytes(available)}: take fewer, or tolerate that fewer drop "
            "out (--tolerate-dropout), which makes fewer neighbours"
        )
