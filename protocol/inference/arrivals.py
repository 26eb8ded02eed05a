"""Byte strings of known length on their way in chunks: which chunk must come next, and what is complete.

Only what is expected is kept, and it grows as it comes: whoever announces much and sends little takes no memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from tacit.protocol.core.codec import Frame
from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.messages import CHUNK_BYTES


class Arrivals:
    """What is due from one sender, in the order in which it must come: pairs of an index and a length in bytes.

    name: what one of them is called, in refusals.
    """

    def __init__(self, name: str, due: Iterable[tuple[int, int]] = ()) -> None:
        self._name = name
        self._due = deque((index, size) for index, size in due if size)
        self._arrived = bytearray()

    def expect(self, due: Iterable[tuple[int, int]]) -> None:
        """Add to what is due."""
        self._due.extend((index, size) for index, size in due if size)

    @property
    def next(self) -> int | None:
        """Index of what is due next; None when nothing is."""
        return self._due[0][0] if self._due else None

    def check(self, index: int, chunk: int, payload: Frame | None) -> None:
        """Refuse anything but the next chunk in its full length."""
        if not self._due:
            raise RemoteProtocolError(Code.UNEXPECTED, f"{self._name} {index} came where nothing is due")
        due, size = self._due[0]
        expected_chunk = len(self._arrived) // CHUNK_BYTES
        if (index, chunk) != (due, expected_chunk):
            raise RemoteProtocolError(
                Code.UNEXPECTED,
                f"chunk {chunk} of {self._name} {index} came where chunk {expected_chunk} of {due} was due",
            )
        expected = min(CHUNK_BYTES, size - len(self._arrived))
        actual = 0 if payload is None else len(payload)
        if actual != expected:
            raise RemoteProtocolError(
                Code.VECTOR, f"chunk {chunk} of {self._name} {index} has {actual} bytes; {expected} are due"
            )

    def ends_with(self, payload: Frame | None) -> bool:
        """Whether nothing is due any more after this chunk, which `check` admitted."""
        return len(self._due) == 1 and len(self._arrived) + len(payload or b"") == self._due[0][1]

    def take(self, payload: Frame | None) -> tuple[int, bytearray] | None:
        """Keep the chunk that `check` admitted; the index and the whole if it is complete now."""
        self._arrived += payload or b""
        index, size = self._due[0]
        if len(self._arrived) < size:
            return None
        whole, self._arrived = self._arrived, bytearray()
        self._due.popleft()
        return index, whole

    def forget(self) -> None:
        """Drop everything."""
        self._due.clear()
        self._arrived = bytearray()


def chunks(data: Frame) -> Iterator[tuple[int, Frame]]:
    """A byte string in chunks, each with its number."""
    view = memoryview(data).cast("B")
    for start in range(0, len(view), CHUNK_BYTES):
        yield start // CHUNK_BYTES, view[start : start + CHUNK_BYTES]
