"""A blob in chunks: docs/spec/session.md, *Fetching*."""

import math
import struct
from typing import Any

from constants import CHUNK_BYTES, WINDOW, require
from primitives import digest


def state_size(configuration: dict[str, Any]) -> int:
    """The length of what a round begins with."""
    return {"float32": 4, "uint64": 8}[configuration["state"]["type"]] * int(configuration["state"]["count"])


class Incoming:
    """What has come of it; `label` is that of its digest; `state`: the form of a state."""

    def __init__(self, label: bytes, blob: dict[str, Any], state: dict[str, Any] | None = None) -> None:
        self.floats = state is not None and state["type"] == "float32"
        self.label, self.expected, self.size, self.data = label, blob["digest"], blob["size"], b""

    @property
    def chunks(self) -> int:
        return -(-self.size // CHUNK_BYTES)

    @property
    def whole(self) -> bool:
        return len(self.data) == self.size

    def first(self) -> range:
        return range(min(WINDOW, self.chunks))

    def take(self, chunk: int, raw: bytes | None) -> int | None:
        """The chunk to ask for now."""
        require(chunk * CHUNK_BYTES == len(self.data), "UNEXPECTED")
        require(raw is not None and len(raw) == min(CHUNK_BYTES, self.size - len(self.data)), "MODEL")
        self.data += raw or b""
        if self.whole:
            require(digest(self.label, self.data) == self.expected, "MODEL")
        if self.whole and self.floats:
            numbers = struct.unpack(f"<{self.size // 4}f", self.data)
            require(all(math.isfinite(number) for number in numbers), "MODEL")
        return chunk + WINDOW if chunk + WINDOW < self.chunks else None


def announcement(label: bytes, data: bytes) -> dict[str, Any]:
    return {"digest": digest(label, data), "size": len(data)}


class Outgoing:
    """What one receiver has fetched of it."""

    def __init__(self, data: bytes) -> None:
        self.data, self.due = data, 0

    def give(self, chunk: int) -> bytes:
        require(chunk == self.due, "UNEXPECTED")
        require(chunk * CHUNK_BYTES < len(self.data), "MODEL")
        self.due += 1
        return self.data[chunk * CHUNK_BYTES : self.due * CHUNK_BYTES]

    @property
    def done(self) -> bool:
        return self.due * CHUNK_BYTES >= len(self.data)
