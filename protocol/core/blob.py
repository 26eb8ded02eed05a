"""Transfer of a byte string between two parties: announced by digest and length, then fetched chunk by chunk.

The receiver requests chunks, a few at a time, and accepts each once, in order and in full length; the whole must match
the announcement. The sender sends each chunk once. So both sides hold a bounded number of chunks, no unwanted data is
sent, and every chunk is a sign of life.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Annotated, Final, Literal

import msgspec
import numpy as np
from msgspec import Meta

from tacit.protocol.core.codec import Frame
from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.messages import CHUNK_BYTES, Blob, Fetch
from tacit.protocol.core.primitives import Label, digest

WINDOW: Final = 4

NO_BLOB: Final = Blob(digest=bytes(32), size=0)
"""Placeholder for an announcement when there is nothing to announce."""


class StateLayout(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Form of a round's initial state: little-endian numbers of one type."""

    type: Literal["float32", "uint64"]
    count: Annotated[int, Meta(ge=0, le=2**40)]

    @property
    def size(self) -> int:
        return self.count * np.dtype(self.type).itemsize

    def check(self, state: bytes) -> None:
        """Refuse floating-point numbers that are not finite."""
        if self.type == "float32" and not np.isfinite(np.frombuffer(state, "<f4")).all():
            raise RemoteProtocolError(Code.MODEL, "the model has numbers that are not finite")


NO_STATE: Final = StateLayout(type="float32", count=0)


def requests_after(received: int, chunks: int) -> range:
    """The chunks to request after `received` of all: the first few at the start, then one for each arrival."""
    return range(received and min(received + WINDOW - 1, chunks), min(received + WINDOW, chunks))


def check_due(chunk: int, received: int, chunks: int) -> None:
    """Refuse a chunk that was not requested, or not now, after `received` of all."""
    if chunk != received or received == chunks:
        raise RemoteProtocolError(Code.UNEXPECTED, f"chunk {chunk} came where chunk {received} of {chunks} was due")


def announce(data: bytes, label: Label) -> Blob:
    """The announcement of these bytes; label: their kind."""
    return Blob(digest=digest(label, data), size=len(data))


@dataclass(frozen=True)
class IncomingBlob:
    """Received part of an announced blob; label: of its kind; layout: of a state."""

    announced: Blob
    label: Label
    layout: StateLayout | None = None
    chunks: tuple[Frame, ...] = field(default=(), repr=False)

    @property
    def requests(self) -> tuple[Fetch, ...]:
        """Present requests: at first for several chunks, afterwards for one on the arrival of each."""
        return tuple(Fetch(chunk=chunk) for chunk in requests_after(len(self.chunks), self._count))

    def after(self, chunk: int, payload: Frame | None) -> IncomingBlob:
        """The same with one more chunk. Refuses unrequested chunks, and another length."""
        due = len(self.chunks)
        check_due(chunk, due, self._count)
        expected = min(self.announced.size - due * CHUNK_BYTES, CHUNK_BYTES)
        if payload is None or len(payload) != expected:
            raise RemoteProtocolError(Code.MODEL, f"chunk {chunk} of the {self._name} does not have {expected} bytes")
        return replace(self, chunks=(*self.chunks, payload))

    @property
    def complete(self) -> bool:
        return len(self.chunks) == self._count

    def whole(self) -> bytes:
        """All of it. Refuses bytes that do not match the announcement or the layout."""
        data = b"".join(self.chunks)
        if digest(self.label, data) != self.announced.digest:
            raise RemoteProtocolError(Code.MODEL, f"what came of the {self._name} is not what was announced")
        if self.layout is not None:
            self.layout.check(data)
        return data

    @property
    def _count(self) -> int:
        return -(-self.announced.size // CHUNK_BYTES)

    @property
    def _name(self) -> str:
        return self.label.decode().removeprefix("tacit/1 ")


class OutgoingBlob:
    """Progress of the receivers of a blob."""

    def __init__(self, data: bytes, receivers: Iterable[str]) -> None:
        self._data = data
        self._due = dict.fromkeys(receivers, 0)

    @property
    def awaited(self) -> tuple[str, ...]:
        """The receivers that have not fetched all of it."""
        return tuple(name for name, due in self._due.items() if due * CHUNK_BYTES < len(self._data))

    def chunk(self, receiver: str, chunk: int) -> memoryview:
        """The chunk that a receiver requests. Refuses any but its next, so that nothing is sent twice."""
        due = self._due.get(receiver)
        if due is None:
            raise RemoteProtocolError(Code.UNEXPECTED, "it asks for what is not for it")
        if chunk != due:
            raise RemoteProtocolError(
                Code.UNEXPECTED, f"it asks for chunk {chunk}, not for chunk {due}: each goes out once"
            )
        if chunk * CHUNK_BYTES >= len(self._data):
            raise RemoteProtocolError(Code.MODEL, f"chunk {chunk} is beyond the end")
        return memoryview(self._data)[chunk * CHUNK_BYTES : (chunk + 1) * CHUNK_BYTES]

    def is_last(self, chunk: int) -> bool:
        return (chunk + 1) * CHUNK_BYTES >= len(self._data)

    def sent(self, receiver: str) -> Callable[[], None]:
        """Return a function that counts the chunk from `chunk`, to call when it is sent."""

        def count() -> None:
            self._due[receiver] += 1

        return count

    def drop(self, receiver: str) -> None:
        self._due.pop(receiver, None)
