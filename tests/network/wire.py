"""A slow wire: Ethernet frames between two TAP devices, with delay, jitter, a rate and loss, both ways alike.

`tc netem` does this where the kernel has it; this needs TAP devices only. Frames are delayed and lost below TCP, so
that its handshakes, slow starts and retransmissions are those of a real line. Run in the namespace of the router as
`python wire.py NAME:MS:JITTER_MS:MBIT:LOSS ...`, it makes the devices NAME and NAME-far for every wire, says "ready",
and carries until its standard input ends. A frame waits for those before it, and is dropped where more than
QUEUE_SECONDS of them wait, as in a router's queue. Jitter delays, and never reorders.
"""

from __future__ import annotations

import fcntl
import os
import selectors
import struct
import sys
import time
from collections import deque
from dataclasses import dataclass
from random import Random
from typing import Final

QUEUE_SECONDS: Final = 0.5
_TUNSETIFF: Final = 0x400454CA
_TAP_WITHOUT_HEADER: Final = 0x0002 | 0x1000
_LARGEST_FRAME: Final = 1 << 16
_NAME_BYTES: Final = 16


@dataclass(frozen=True)
class Shape:
    """What a wire is like: milliseconds in one direction, megabits a second, and the fraction of frames lost."""

    delay_ms: float
    jitter_ms: float = 0.0
    mbit: float = 1_000.0
    loss: float = 0.0

    def argument(self, name: str) -> str:
        return f"{name}:{self.delay_ms}:{self.jitter_ms}:{self.mbit}:{self.loss}"


class _Line:
    def __init__(self, source: int, sink: int, shape: Shape) -> None:
        self.source = source
        self._sink = sink
        self._shape = shape
        # Which frames are lost is the same in every run, as far as frames are.
        self._random = Random(source)
        self._free = 0.0
        self._last_due = 0.0
        self._under_way: deque[tuple[float, bytes]] = deque()

    def take(self, now: float) -> None:
        while True:
            try:
                frame = os.read(self.source, _LARGEST_FRAME)
            except BlockingIOError:
                return
            begins = max(self._free, now)
            if begins - now > QUEUE_SECONDS or self._random.random() < self._shape.loss:
                continue
            self._free = begins + len(frame) / (self._shape.mbit * 125_000)
            jitter = self._random.random() * self._shape.jitter_ms
            self._last_due = max(self._last_due, self._free + (self._shape.delay_ms + jitter) / 1000)
            self._under_way.append((self._last_due, frame))

    def give(self, now: float) -> float:
        while self._under_way and self._under_way[0][0] <= now:
            try:
                os.write(self._sink, self._under_way.popleft()[1])
            except OSError:
                continue  # The device is down: nobody is there to get it.
        return self._under_way[0][0] - now if self._under_way else 60.0


def _device(name: str) -> int:
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack(f"{_NAME_BYTES}sH", name.encode("ascii"), _TAP_WITHOUT_HEADER))
    return descriptor


def _main(wires: list[str]) -> None:
    lines: list[_Line] = []
    waiting = selectors.DefaultSelector()
    for wire in wires:
        name, *numbers = wire.split(":")
        shape = Shape(*map(float, numbers))
        near, far = _device(name), _device(f"{name}-far")
        for source, sink in ((near, far), (far, near)):
            line = _Line(source, sink, shape)
            lines.append(line)
            waiting.register(source, selectors.EVENT_READ, line)
    waiting.register(sys.stdin, selectors.EVENT_READ)
    print("ready", flush=True)
    pause = 60.0
    while True:
        for key, _ in waiting.select(pause):
            if key.data is None:
                return
            try:
                key.data.take(time.monotonic())
            except OSError:
                # A device that is down cannot be read, and says so until it is up: looked at again a little later.
                time.sleep(0.001)
        now = time.monotonic()
        pause = min(line.give(now) for line in lines)


if __name__ == "__main__":
    _main(sys.argv[1:])
