"""The running sum of masked vectors on the server.

A vector that fits one chunk is added at once. Longer ones are fetched chunk by chunk into a buffer of their own, from
at most UPLOADS clients at a time (the others wait their turn), and added when whole: a client that vanishes in the
middle leaves no trace in the sum, and memory is bounded by UPLOADS + 1 vectors whatever the number of clients. Only
where the agreement asks for single vectors is each of them kept.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tacit.protocol.core.blob import check_due, requests_after
from tacit.protocol.core.codec import Frame
from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.sum.agreement import Agreement
from tacit.secagg.filled_blocks import unpack_filled
from tacit.secagg.work import WorkKind, work

UPLOADS: Final = 4


class VectorSum:
    """`total`: ring words of the agreement's length; `included`: the members whose vectors are in it.

    `vectors`: each of them, where the agreement asks for single vectors.
    """

    def __init__(self, agreement: Agreement) -> None:
        self._agreement = agreement
        self.total: npt.NDArray[Any] = np.zeros(agreement.length, agreement.ring.word)
        self.included: set[int] = set()
        self.vectors: dict[int, npt.NDArray[Any]] = {}
        self._uploads: dict[int, tuple[npt.NDArray[Any], int]] = {}
        """By member, the words, and how many chunks of them have come."""
        self._queue: deque[int] = deque()

    def words(self, payload: Frame, chunk: int) -> npt.NDArray[Any]:
        """The words of a chunk; refuses another length, words outside the ring, and skipped zeros in another form."""
        ring, span = self._agreement.ring, self._agreement.chunk_span(chunk)
        length = span.stop - span.start
        expected = length * ring.wire_bytes
        if len(payload) != expected and not self._agreement.skip_zeros:
            raise RemoteProtocolError(
                Code.VECTOR, f"chunk {chunk} of the vector has {len(payload)} bytes, not {expected}"
            )
        try:
            return unpack_filled(ring, payload, length) if self._agreement.skip_zeros else ring.unpack(payload)
        except ValueError as error:
            raise RemoteProtocolError(Code.VECTOR, f"chunk {chunk} of the vector: {error}") from None

    @work(WorkKind.SUMMING)
    def add(self, member: int, words: npt.NDArray[Any]) -> None:
        """Add a whole vector."""
        self._agreement.ring.add_into(self.total, words)
        self.included.add(member)
        if self._agreement.single_vectors:
            self.vectors[member] = words

    def announced(self, member: int) -> bool:
        """Whether this member said that its vector is ready."""
        return member in self.included or member in self._uploads or member in self._queue

    def enqueue(self, member: int) -> list[tuple[int, int]]:
        """A member with a long vector is ready; returns the (member, chunk) pairs to ask for now."""
        self._queue.append(member)
        return self._admit()

    def check(self, member: int, chunk: int) -> None:
        """Refuse a chunk that was not asked for."""
        if member not in self._uploads:
            raise RemoteProtocolError(Code.UNEXPECTED, f"chunk {chunk} of a vector that nobody asked for")
        check_due(chunk, self._uploads[member][1], self._agreement.chunks)

    def store(self, member: int, chunk: int, words: npt.NDArray[Any]) -> list[tuple[int, int]]:
        """Keep a chunk that `check` admitted; returns what to ask for now."""
        buffer, received = self._uploads[member]
        buffer[self._agreement.chunk_span(chunk)] = words
        if received + 1 == self._agreement.chunks:
            self.add(member, buffer)
            return self.discard(member)
        self._uploads[member] = buffer, received + 1
        return [(member, following) for following in requests_after(received + 1, self._agreement.chunks)]

    def discard(self, member: int) -> list[tuple[int, int]]:
        """Forget an upload, finished or not; returns what to ask for now."""
        self._uploads.pop(member, None)
        if member in self._queue:
            self._queue.remove(member)
        return self._admit()

    def _admit(self) -> list[tuple[int, int]]:
        requests = []
        while self._queue and len(self._uploads) < UPLOADS:
            member = self._queue.popleft()
            self._uploads[member] = np.empty(self._agreement.length, self._agreement.ring.word), 0
            requests += [(member, chunk) for chunk in requests_after(0, self._agreement.chunks)]
        return requests
