"""`tacit bench network`: the cost of the network for a federation, without training (docs/network.md).

A round lasts from the start-round message to the sum, less the training time of clients. The same rounds through a
relay without delay give the number of one-way delays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from tacit.simulate.bench.ends import BenchmarkError, Progress
from tacit.simulate.bench.federation_ends import BenchedSession, ServerMeasurement, ServerProcess, join_all
from tacit.simulate.bench.results import DelayedRound, NetworkBenchmarkResult, ServerMemory, UploadMetrics
from tacit.simulate.federation.relay import MOST_BANDWIDTH_MBIT, Shaping, relaying

ROUND_PARAMETERS: Final = 10_000
TRAINING_SECONDS: Final = 0.5
TRAINING_DELAYS: Final = 5
"""Least duration of training, in delays: keys and shares take three of them, and the work."""
UPLOAD_ROUNDS: Final = 5
UPLOAD_MBIT: Final = 1_000.0
_BITS: Final = 8


@dataclass(frozen=True, kw_only=True)
class NetworkBenchmark:
    """Settings of the benchmark."""

    clients: int
    rounds: int
    delays_ms: Sequence[float]
    """In one direction."""
    connected: int
    """Connected clients in the measurement of the server's memory."""
    uploading: int = 3
    """Clients that upload vectors at once."""
    upload_parameters: int = 4_000_000
    """Entries of each vector."""


def measure(setting: NetworkBenchmark, progress: Progress) -> NetworkBenchmarkResult:
    """Run the sessions and return their cost. BenchmarkError if one fails."""
    training = max(TRAINING_SECONDS, TRAINING_DELAYS * max(setting.delays_ms, default=0.0) / 1000)
    cast = BenchedSession.of(
        setting.clients, parameters=ROUND_PARAMETERS, rounds=setting.rounds, training_seconds=training
    )
    delays = {delay: Shaping(latency_ms=delay) for delay in setting.delays_ms}
    found, _ = _play(cast, Shaping(bandwidth_mbit=MOST_BANDWIDTH_MBIT), _about(progress, "no delay"))
    without = _seconds(found)
    delayed = {}
    for delay, shaping in delays.items():
        found, _ = _play(cast, shaping, _about(progress, f"{delay:g} ms"))
        seconds = _seconds(found)
        delayed[f"{delay:g}"] = DelayedRound(seconds=seconds, one_way_delays=(seconds - without) / (delay / 1000))
    return NetworkBenchmarkResult(
        clients=setting.clients,
        rounds=setting.rounds,
        parameters=ROUND_PARAMETERS,
        training_seconds=training,
        seconds_without_delay=without,
        by_delay_ms=delayed,
        upload_by_delay_ms={f"{delay:g}": _upload(setting, delay, progress) for delay in (0.0, *setting.delays_ms)},
        uploading=setting.uploading,
        upload_parameters=setting.upload_parameters,
        memory=_memory(setting.connected, progress),
    )


def _upload(setting: NetworkBenchmark, delay: float, progress: Progress) -> UploadMetrics:
    """Upload vectors of several megabytes from all clients at once, over a shared line of 1 Gbit/s.

    The time from sending the first piece to receiving the last one, less one delay, determines the bandwidth.
    """
    cast = BenchedSession.of(setting.uploading, parameters=setting.upload_parameters, rounds=UPLOAD_ROUNDS)
    shaping = Shaping(latency_ms=delay or None, bandwidth_mbit=UPLOAD_MBIT)
    found, began = _play(cast, shaping, _about(progress, f"1 Gbit/s, {delay:g} ms"))
    words, ring = cast.configuration.packing().length, cast.configuration.ring_bits
    megabits = setting.uploading * words * ring / 1e6
    mbit = median(megabits / (one.uploaded - began[round] - delay / 1000) for round, one in enumerate(found.rounds, 1))
    return UploadMetrics(megabytes=megabits / _BITS, throughput_mbit=mbit, utilisation=mbit / UPLOAD_MBIT)


def _memory(connected: int, progress: Progress) -> ServerMemory:
    cast = BenchedSession.of(connected, parameters=ROUND_PARAMETERS, rounds=1)
    found, _ = _play(cast, Shaping(), _about(progress, f"{connected} clients"))
    return ServerMemory(
        idle_mb=found.idle_bytes / 1e6,
        clients=connected,
        connected_mb=found.connected_bytes / 1e6,
        kb_per_client=(found.connected_bytes - found.idle_bytes) / 1e3 / connected,
    )


def _play(cast: BenchedSession, shaping: Shaping, progress: Progress) -> tuple[ServerMeasurement, dict[int, float]]:
    """Run a session; return the server's measurements, and the result of join_all."""
    progress("starting")
    with ServerProcess(cast) as server, relaying(shaping) as relay:
        address = server.address if relay is None else relay.address(server.address)
        try:
            began = asyncio.run(join_all(cast, address, progress))
        except ExceptionGroup as errors:
            raise BenchmarkError(str(errors.exceptions[0])) from None
        return server.measurement(), began


def _about(progress: Progress, subject: str) -> Progress:
    return lambda text: progress(f"{subject}: {text}")


def _seconds(found: ServerMeasurement) -> float:
    return median(one.seconds for one in found.rounds)
