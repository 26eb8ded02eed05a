"""A slower link between two processes of this machine: a relay of TCP streams that adds delay and limits the rate.

`relaying` runs the relay in its own process. On request for a loopback port, it opens another port that leads there.
The link is a pair of one-way lines, shared by all streams: bytes enter a line at most at `bandwidth_mbit`, and leave it
`latency_ms` later. It loses and reorders nothing, and omits TCP's slow start, losses and handshake. Threads wait, not
an event loop: asyncio loops round delays up to milliseconds.

A relay may also record the traffic, as an eavesdropper on the wire sees it: `passed` reads it.
"""

from __future__ import annotations

import math
import os
import socket
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Condition, Lock, Thread
from typing import Any, Final

import msgpack

MOST_LATENCY_MS: Final = 1_000.0
MOST_BANDWIDTH_MBIT: Final = 2_000.0

_LOOPBACK: Final = "127.0.0.1"
_BYTES_IN_A_MEGABIT: Final = 125_000
# Read at once; with a limited rate, as much as passes in half a millisecond, so that a message's first bytes do not
# wait for those behind them.
_MOST_READ: Final = 1 << 18
_READ_SECONDS: Final = 0.0005
# Incoming buffer of a line, in time: it must not run dry while its threads wait for the processor; in bytes if there is
# no rate.
_SPARE_SECONDS: Final = 0.05
_UNLIMITED_HELD: Final = 1 << 26
# Requests at the desk: a port in decimal digits, or this. The answer is a number in decimal digits.
_FORWARDED: Final = "forwarded"
_WORD_LIMIT: Final = 64
_RESET: Final = struct.pack("ii", 1, 0)
"""Linger for zero seconds: closing then resets the connection."""


@dataclass(frozen=True, kw_only=True)
class Shaping:
    latency_ms: float | None = None
    """One-way delay of a byte in milliseconds; None: no delay."""
    bandwidth_mbit: float | None = None
    """Megabits (10^6 bits) per second and direction; None: no limit."""

    def __post_init__(self) -> None:
        for name, value, most in (
            ("latency", self.latency_ms, MOST_LATENCY_MS),
            ("bandwidth", self.bandwidth_mbit, MOST_BANDWIDTH_MBIT),
        ):
            if value is not None and not 0 < value <= most:
                raise ValueError(
                    f"the {name} is {value:g}: give a number above 0 and at most {most:g}, or leave it out"
                )

    def __bool__(self) -> bool:
        return self.latency_ms is not None or self.bandwidth_mbit is not None

    @property
    def delay(self) -> float:
        return (self.latency_ms or 0.0) / 1000

    @property
    def rate(self) -> float:
        return math.inf if self.bandwidth_mbit is None else self.bandwidth_mbit * _BYTES_IN_A_MEGABIT


@dataclass(frozen=True)
class Relay:
    """A running relay, usable by other processes of the same user too."""

    desk: Path
    """Socket for requests."""

    def through(self, port: int) -> int:
        """Return a loopback port that leads to this one through the link. OSError if the relay is gone."""
        return self._ask(str(port))

    def address(self, address: str) -> str:
        host, _, port = address.rpartition(":")
        return f"{host}:{self.through(int(port))}"

    def forwarded(self) -> int:
        """Return the bytes that have left the link so far, in both directions. OSError if the relay is gone."""
        return self._ask(_FORWARDED)

    def _ask(self, question: str) -> int:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:
            asking.connect(str(self.desk))
            asking.send(question.encode("ascii"))
            answer = asking.recv(_WORD_LIMIT)
        if not answer:
            raise ConnectionError(f"the relay has no answer to {question!r}")
        return int(answer)


@dataclass(frozen=True)
class PassedBytes:
    seconds: float
    """On the monotonic clock."""
    stream: int
    """Counted from 0, in order of opening."""
    onwards: bool
    """From the connecting to the accepting side; else back."""
    octets: bytes = field(repr=False)


def passed(tap: Path) -> Iterator[PassedBytes]:
    """Yield a relay's record in order. FileNotFoundError if it did not record."""
    with tap.open("rb") as file:
        for seconds, stream, onwards, octets in msgpack.Unpacker(file, max_buffer_size=0):
            yield PassedBytes(seconds, stream, onwards, octets)


@contextmanager
def relaying(shaping: Shaping, tap: Path | None = None) -> Iterator[Relay | None]:
    """Run a relay during the block; None without shaping or recording. It ends with the block, or with this process,
    however that ends. tap: a new file for all traffic, which only its owner may read."""
    if not shaping and tap is None:
        yield None
        return
    with TemporaryDirectory() as directory:
        desk = Path(directory) / "relay"
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
            listening.bind(str(desk))
            listening.listen()
            process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(listening.fileno()), repr(shaping.delay), repr(shaping.rate)]
                + ([] if tap is None else [str(tap)]),
                stdin=subprocess.PIPE,
                pass_fds=[listening.fileno()],
                start_new_session=True,  # Ctrl-C is this process's to handle.
            )
        with process:  # Closes its standard input, for which it waits.
            yield Relay(desk)


class _Line:
    def __init__(self, delay: float, rate: float) -> None:
        limited = math.isfinite(rate)
        self.read_at_once = min(_MOST_READ, math.ceil(rate * _READ_SECONDS)) if limited else _MOST_READ
        self.held_at_most = math.ceil(rate * (delay + _SPARE_SECONDS)) if limited else _UNLIMITED_HELD
        self.forwarded = 0
        self._delay = delay
        self._rate = rate
        self._free = 0.0
        self._lock = Lock()

    def enter(self, length: int) -> float:
        with self._lock:
            self._free = max(self._free, time.monotonic()) + length / self._rate
            return self._free + self._delay

    def count(self, length: int) -> None:
        with self._lock:
            self.forwarded += length


class _Direction:
    """One direction of a stream: a reading thread, a writing thread, and the data in transit."""

    def __init__(self, line: _Line, source: socket.socket, sink: socket.socket, keep: Callable[[bytes], None]) -> None:
        self._line = line
        self._keep = keep
        self._source = source
        self._sink = sink
        self._under_way: deque[tuple[float, bytes]] = deque()
        self._held = 0
        self._changed = Condition()
        self.threads = [_started(self._read), _started(self._write)]

    def _read(self) -> None:
        data = b"\0"
        while data:
            try:
                data = self._source.recv(self._line.read_at_once)
            except OSError:
                data = b""  # A stream that broke ends, too.
            due = self._line.enter(len(data))
            with self._changed:
                self._under_way.append((due, data))
                self._held += len(data)
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._held < self._line.held_at_most)

    def _write(self) -> None:
        data = b"\0"
        broken = False
        while data:
            with self._changed:
                self._changed.wait_for(lambda: self._under_way)
                due, data = self._under_way.popleft()
            time.sleep(max(0.0, due - time.monotonic()))
            try:
                if not data:
                    self._sink.shutdown(socket.SHUT_WR)
                elif not broken:
                    self._line.count(len(data))
                    self._keep(data)
                    self._sink.sendall(data)
            except OSError:
                broken = True
                with suppress(OSError):
                    # A sender that has filled the window notices a close only by a reset.
                    self._source.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                    self._source.shutdown(socket.SHUT_RD)  # The reader comes to an end.
            with self._changed:
                self._held -= len(data)
                self._changed.notify_all()


def _started(work: Callable[..., None], *arguments: object) -> Thread:
    thread = Thread(target=work, args=arguments, daemon=True)
    thread.start()
    return thread


class _Tap:
    def __init__(self, path: str | None) -> None:
        descriptor = None if path is None else os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        self._file = None if descriptor is None else os.fdopen(descriptor, "wb", buffering=0)
        self._lock = Lock()
        self._streams = 0

    def stream(self) -> tuple[Callable[[bytes], None], Callable[[bytes], None]]:
        """Return recorders for the next stream: onwards, and back."""
        with self._lock:
            number = self._streams
            self._streams += 1

        def keeping(onwards: bool) -> Callable[[bytes], None]:
            return lambda octets: self._write([time.monotonic(), number, onwards, octets])

        return keeping(True), keeping(False)

    def _write(self, piece: list[Any]) -> None:
        if self._file is not None:
            with self._lock:
                self._file.write(msgpack.packb(piece))


def _accept(listening: socket.socket, port: int, lines: tuple[_Line, _Line], tap: _Tap) -> None:
    while True:
        near, _ = listening.accept()
        _started(_connect, near, port, lines, tap.stream())


def _connect(
    near: socket.socket,
    port: int,
    lines: tuple[_Line, _Line],
    kept: tuple[Callable[[bytes], None], Callable[[bytes], None]],
) -> None:
    with near, suppress(ConnectionError), socket.create_connection((_LOOPBACK, port)) as far:
        for end in (near, far):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for way in [_Direction(lines[0], near, far, kept[0]), _Direction(lines[1], far, near, kept[1])]:
            for thread in way.threads:
                thread.join()


def _answer(desk: socket.socket, lines: tuple[_Line, _Line], tap: _Tap) -> None:
    while True:
        asking, _ = desk.accept()
        with asking:
            question = asking.recv(_WORD_LIMIT).decode("ascii")
            if question == _FORWARDED:
                answer = sum(line.forwarded for line in lines)
            else:
                listening = socket.create_server((_LOOPBACK, 0))
                _started(_accept, listening, int(question), lines, tap)
                answer = listening.getsockname()[1]
            asking.send(str(answer).encode("ascii"))


def _main(descriptor: str, delay: str, rate: str, tap: str | None = None) -> None:
    lines = _Line(float(delay), float(rate)), _Line(float(delay), float(rate))
    with socket.socket(fileno=int(descriptor)) as desk:
        _started(_answer, desk, lines, _Tap(tap))
        sys.stdin.buffer.read()


if __name__ == "__main__":
    _main(*sys.argv[1:])
