"""`tacit bench secagg --cohorts`: a sum over so many clients that one server does not serve them at once.

Clients come in cohorts. Each has a secure sum of its own, with the machines and the cryptography of all other sums,
and every client with keys of its own; what the cohorts open is added up. So the work grows with the number of cohorts
alone, and cohorts share nothing: each core works on one at a time, with server and clients in one process.

A cohort that is done is kept in the directory of the benchmark (`cohorts/NUMBER.npz`: its total, uint64 [D], its
survivors, and its figures), so that a command that was interrupted goes on where it was, and one for more cohorts adds
to them. Values are 16 bits of a ring that holds the sum over everybody, so that the total is one of whole numbers; at
the end it is compared with the plain sum of what all survivors gave.
"""

from __future__ import annotations

import gc
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from multiprocessing import active_children, get_context, parent_process
from pathlib import Path
from statistics import median
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from tacit.parties.runs.directory import RunDirectoryError, claim, write_arrays, writing
from tacit.protocol.core.primitives import SigningKey
from tacit.simulate.bench.ends import BenchmarkError, Frames, TimedClient, TimedServer
from tacit.simulate.bench.peak import highest_bytes
from tacit.simulate.bench.secagg import VALUE_BITS, SumBenchmark, check_memory
from tacit.simulate.federation.processes import starting_deaf

EVERYBODY: Final = 1 << 20
"""Clients of all cohorts together, at most: the ring is for so many, whatever their number, so that more cohorts can be
added later."""

Total = npt.NDArray[np.uint64]
"""Sum of values, [D]."""
Members = npt.NDArray[np.int64]
"""Their places in the cohort."""


@dataclass(frozen=True, kw_only=True)
class CohortFigures:
    """What one cohort took."""

    clients: int
    survivors: int
    client_ms: float
    """Median of the clients that stayed."""
    server_ms: float
    seconds: float
    bytes_up: int
    """Of all of its clients."""
    peak_mb: float
    """Of the process that worked on it, highest so far."""


@dataclass(frozen=True, kw_only=True)
class CohortsBenchmark:
    """What to measure."""

    setting: SumBenchmark
    """Of one cohort, with a ring for all."""
    cohorts: int
    directory: Path

    def path(self, number: int) -> Path:
        """Of a cohort that is done."""
        return self.directory / "cohorts" / f"{number}.npz"


def measure(benchmark: CohortsBenchmark, progress: Callable[[str], None]) -> dict[str, Any]:
    """Sum the cohorts that are missing, add up all, and return the figures.

    Raises BenchmarkError if a sum was not computed or has no room here, RunDirectoryError if the directory is that of
    another setting, OSError if it cannot be written, and ValueError for more clients than EVERYBODY,
    and where there are no parameters for a cohort.
    """
    if (clients := benchmark.setting.clients * benchmark.cohorts) > EVERYBODY:
        raise ValueError(f"{clients:,} clients are more than {EVERYBODY:,}, for which the ring is; take fewer cohorts")
    agreement = benchmark.setting.agreement(tuple(bytes(32) for _ in range(benchmark.setting.clients)))
    missing = [number for number in range(benchmark.cohorts) if not benchmark.path(number).exists()]
    if missing:
        check_memory(agreement, at_once=min(_processes(), len(missing)))
    _claim(benchmark)
    began, kept = time.perf_counter(), benchmark.cohorts - len(missing)
    for done, number in enumerate(_work(benchmark.setting, missing, benchmark.directory), start=kept + 1):
        progress(f"cohort {number + 1} is done, {done:,} of {benchmark.cohorts:,}")
    wall_seconds = time.perf_counter() - began
    total, expected, figures = np.zeros(agreement.length, np.uint64), np.zeros(agreement.length, np.uint64), []
    progress("adding up all cohorts")
    for number in range(benchmark.cohorts):
        one, members, found = _read(benchmark.path(number))
        total += one
        for member in members:
            expected += values(number, int(member), agreement.length)
        figures.append(found)
    survivors = sum(one.survivors for one in figures)
    return {
        "clients": sum(one.clients for one in figures),
        "cohorts": len(figures),
        "computed_now": len(missing),
        "survivors": survivors,
        "total_mean": float(total.mean() / survivors),
        "client_median_ms": median(one.client_ms for one in figures),
        "server_median_ms": median(one.server_ms for one in figures),
        "cohort_seconds": sum(one.seconds for one in figures),
        "bytes_up_per_client": round(sum(one.bytes_up for one in figures) / sum(one.clients for one in figures)),
        "peak_mb_of_a_process": max(one.peak_mb for one in figures),
        "peak_mb_of_all": highest_bytes() / 1e6
        + min(_processes(), benchmark.cohorts) * max(one.peak_mb for one in figures),
        "neighbours": agreement.parameters.neighbours,
        "threshold": agreement.parameters.threshold,
        "ring_bits": agreement.ring.bits,
        "wall_seconds": wall_seconds,
        "sum_is_exact": bool((total == expected).all()),
    }


def cohort(setting: SumBenchmark, number: int) -> tuple[Total, Members, CohortFigures]:
    """One cohort, in this process: the total, whose it is, and what it took. BenchmarkError if it is not computed."""
    began = time.perf_counter()
    signing = [SigningKey(os.urandom(32)) for _ in range(setting.clients)]
    agreement = setting.agreement(tuple(key.public for key in signing))
    staying = setting.clients - int(setting.dropout * setting.clients)
    dropping = set(agreement.cohort[staying:])
    server = TimedServer(agreement)
    clients = {
        name: TimedClient(agreement, member, key, values(number, member, agreement.length).astype(agreement.ring.word))
        for member, (name, key) in enumerate(zip(agreement.cohort, signing, strict=True))
    }
    waiting: deque[tuple[str, Frames | None]] = deque((name, None) for name in clients)
    while waiting:
        name, frames = waiting.popleft()
        answers = clients[name].start() if frames is None else clients[name].receive(frames)
        for answer in answers:
            waiting.extend(server.hear(name, answer, dropping))
    if server.summed is None:
        raise BenchmarkError(f"cohort {number}: the exchange ended without a sum")
    survivors = np.array([agreement.cohort.index(name) for name in server.summed.survivors], np.int64)
    stayed = [sum(clients[name].seconds.values()) for name in agreement.cohort[:staying]]
    return (
        server.summed.total.astype(np.uint64),
        survivors,
        CohortFigures(
            clients=setting.clients,
            survivors=len(survivors),
            client_ms=1e3 * median(stayed),
            server_ms=1e3 * sum(server.seconds.values()),
            seconds=time.perf_counter() - began,
            bytes_up=sum(server.received.values()),
            peak_mb=highest_bytes() / 1e6,
        ),
    )


def values(number: int, member: int, length: int) -> Total:
    """What a client of a cohort gives: uniform 16-bit values, the same whenever they are asked for."""
    return np.random.default_rng([number, member]).integers(0, 1 << VALUE_BITS, length, np.uint64)


def _work(setting: SumBenchmark, missing: list[int], directory: Path) -> Iterator[int]:
    if not missing:
        return
    others, context = set(active_children()), get_context("spawn")
    with ProcessPoolExecutor(_processes(), mp_context=context, initializer=_end_with_the_command) as pool:
        try:
            with starting_deaf():
                paths = {number: directory / "cohorts" / f"{number}.npz" for number in missing}
                waiting = [pool.submit(_keep, setting, number, path) for number, path in paths.items()]
            for done in as_completed(waiting):
                yield done.result()
        except (KeyboardInterrupt, GeneratorExit):
            # Nobody waits for cohorts that are half done.
            for worker in set(active_children()) - others:
                worker.terminate()
            raise
        except BrokenProcessPool:
            raise BenchmarkError("a process that works on cohorts died; give the same command again") from None
        finally:
            pool.shutdown(cancel_futures=True)


def _end_with_the_command() -> None:
    """In a worker, first: however the command ends, it ends too."""
    command = parent_process()
    assert command is not None

    def wait() -> None:
        command.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _keep(setting: SumBenchmark, number: int, path: Path) -> int:
    gc.disable()  # A real client is alone: it does not pay for a collector that walks over a thousand others.
    total, survivors, figures = cohort(setting, number)
    gc.collect()
    half = path.with_suffix(".part.npz")
    write_arrays(
        half, total=total, survivors=survivors, figures=np.frombuffer(msgspec.json.encode(asdict(figures)), np.uint8)
    )
    half.replace(path)
    return number


def _read(path: Path) -> tuple[Total, Members, CohortFigures]:
    with np.load(path) as kept:
        return kept["total"], kept["survivors"], msgspec.json.decode(kept["figures"].tobytes(), type=CohortFigures)


def _processes() -> int:
    return len(os.sched_getaffinity(0))


def _claim(benchmark: CohortsBenchmark) -> None:
    # The number of cohorts may grow; what one of them is may not change.
    stamp = msgspec.json.encode(asdict(benchmark.setting))
    path = benchmark.directory / "benchmark.json"
    if not path.exists():
        claim(benchmark.directory, benchmark.directory / "cohorts")
        with writing(path):
            path.write_bytes(stamp)
    elif path.read_bytes() != stamp:
        raise RunDirectoryError(f"{benchmark.directory} holds cohorts of another setting: choose another with --out")
