"""The running sum of masked vectors on the server.

A vector that fits one chunk is added at once. Longer ones are fetched chunk by chunk into a buffer of their own, from
at most UPLOADS clients at a time (the others wait their turn), and added when whole: a client that vanishes in the
middle leaves no trace in the sum, and memory is bounded by UPLOADS + 1 vectors whatever the number of clients. Only
where the agreement asks for single vectors is each of them kept.

Who uploads holds up those who wait. So an upload has deadlines, one for its next chunk and one for its end, and who
waits has none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tacit.protocol.core.blob import check_due, requests_after
from tacit.protocol.core.codec import Frame
from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.sum.agreement import TRANSFER_LIMIT, UPLOADS, Agreement
from tacit.secagg.filled_blocks import unpack_filled
from tacit.secagg.work import WorkKind, work


@dataclass
class _Upload:
    """What has come of a vector. due: when the next chunk must be there; end: when all of them must."""

    words: npt.NDArray[Any]
    due: float
    end: float
    received: int = 0
    """Chunks."""

    @property
    def deadline(self) -> float:
        return min(self.due, self.end)


class VectorSum:
    """`total`: ring words of the agreement's length; `included`: the members whose vectors are in it.

    `vectors`: each of them, where the agreement asks for single vectors.
    """

    def __init__(self, agreement: Agreement) -> None:
        self._agreement = agreement
        self.total: npt.NDArray[Any] = np.zeros(agreement.length, agreement.ring.word)
        self.included: set[int] = set()
        self.vectors: dict[int, npt.NDArray[Any]] = {}
        self._uploads: dict[int, _Upload] = {}
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
        return member in self.included or self.underway(member)

    def underway(self, member: int) -> bool:
        """Whether the vector of this member is being fetched, or waits for that."""
        return member in self._uploads or member in self._queue

    def deadlines(self) -> Iterator[float]:
        """When uploads count as stalled."""
        return (upload.deadline for upload in self._uploads.values())

    def stalled(self, now: float) -> list[int]:
        """The members whose uploads do."""
        return [member for member, upload in self._uploads.items() if now >= upload.deadline]

    def enqueue(self, member: int, now: float) -> list[tuple[int, int]]:
        """A member with a long vector is ready; returns the (member, chunk) pairs to ask for now."""
        self._queue.append(member)
        return self._admit(now)

    def check(self, member: int, chunk: int) -> None:
        """Refuse a chunk that was not asked for."""
        if member not in self._uploads:
            raise RemoteProtocolError(Code.UNEXPECTED, f"chunk {chunk} of a vector that nobody asked for")
        check_due(chunk, self._uploads[member].received, self._agreement.chunks)

    def store(self, member: int, chunk: int, words: npt.NDArray[Any], now: float) -> list[tuple[int, int]]:
        """Keep a chunk that `check` admitted; returns what to ask for now."""
        upload, chunks = self._uploads[member], self._agreement.chunks
        upload.words[self._agreement.chunk_span(chunk)] = words
        upload.received, upload.due = upload.received + 1, now + self._agreement.phase_seconds
        if upload.received == chunks:
            self.add(member, upload.words)
            return self.discard(member, now)
        return [(member, following) for following in requests_after(upload.received, chunks)]

    def discard(self, member: int, now: float) -> list[tuple[int, int]]:
        """Forget an upload, finished or not; returns what to ask for now."""
        self._uploads.pop(member, None)
        if member in self._queue:
            self._queue.remove(member)
        return self._admit(now)

    def _admit(self, now: float) -> list[tuple[int, int]]:
        agreement, requests = self._agreement, []
        while self._queue and len(self._uploads) < UPLOADS:
            member = self._queue.popleft()
            words = np.empty(agreement.length, agreement.ring.word)
            due, end = now + agreement.phase_seconds, now + TRANSFER_LIMIT * agreement.phase_seconds
            self._uploads[member] = _Upload(words, due, end)
            requests += [(member, chunk) for chunk in requests_after(0, agreement.chunks)]
        return requests
