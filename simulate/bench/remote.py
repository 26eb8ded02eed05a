"""A client in a process of its own, so that its peak memory can be told from everybody else's.

The process imports the protocol and nothing else, notes its size, and then is that client: frames come and go through a
pipe. Its peak is what it held above its size after the imports, in bytes, as Linux accounts it (VmHWM).
"""

from __future__ import annotations

from collections import defaultdict
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tacit.protocol.agreement import Agreement
from tacit.protocol.messages import Phase
from tacit.protocol.primitives import SigningKey
from tacit.simulate.bench.ends import BenchmarkError, Frames, TimedClient


class RemoteClient:
    """The first client of the cohort, elsewhere; ends with its `with` block."""

    def __init__(self, agreement: Agreement, *, signing_secret: bytes) -> None:
        self.seconds: dict[Phase, float] = defaultdict(float)
        self.masks = 0
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, agreement, signing_secret), daemon=True)

    def __enter__(self) -> RemoteClient:
        self._process.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._pipe.close()
        self._process.join()

    def start(self) -> list[Frames]:
        """Its advert."""
        return self._ask(None)

    def receive(self, frames: Frames) -> list[Frames]:
        """Its answer to a message of the server."""
        return self._ask([bytes(frame) for frame in frames])

    def peak_bytes(self) -> int:
        """What the process held at most, above its size after the imports."""
        self._pipe.send("peak")
        peak: int = self._pipe.recv()
        return peak

    def _ask(self, frames: Frames | None) -> list[Frames]:
        self._pipe.send(frames)
        answer = self._pipe.recv()
        if isinstance(answer, str):
            raise BenchmarkError(answer)
        frames_out: list[Frames]
        frames_out, self.seconds, self.masks = answer
        return frames_out


def _serve(pipe: Connection, agreement: Agreement, signing_secret: bytes) -> None:
    baseline = _status_bytes("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    client = TimedClient(agreement, 0, SigningKey(signing_secret))
    while True:
        try:
            request: Any = pipe.recv()
        except EOFError:
            return
        if request == "peak":
            pipe.send(_status_bytes("VmHWM") - baseline)
            continue
        try:
            answers = client.start() if request is None else client.receive(request)
        except BenchmarkError as error:
            pipe.send(str(error))
            continue
        pipe.send(([[bytes(frame) for frame in frames] for frames in answers], client.seconds, client.masks))


def _status_bytes(field: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise BenchmarkError(f"this system does not tell {field}; memory is measured on Linux only")
