"""The running sum of masked vectors on the server.

A vector that fits one chunk is added at once. Longer ones are fetched chunk by chunk into a buffer of their own, from
at most UPLOADS clients at a time (the others wait their turn), and added when whole: a client that vanishes in the
middle leaves no trace in the sum. Only where the agreement asks for single vectors is each of them kept.

Members of a group are in the sum all or none: their vectors are added apart until the last of them has come. Long ones
are fetched group by group, when all members of a group are ready, in the order in which groups were. So every group
that is not whole has a member that uploads, and memory is bounded by 2 UPLOADS + 1 vectors whatever the number of
clients (without groups, where everybody is a group of one, by UPLOADS + 1); vectors of one chunk, of which each group
may have begun, by that and one for each group.

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
        self.settled: set[int] = set()
        """Members of whom nothing is due: their vector has come, or they are ready and their group is left out."""
        self.vectors: dict[int, npt.NDArray[Any]] = {}
        self._apart: dict[tuple[int, ...], npt.NDArray[Any]] = {}
        """By group that is not whole yet, the sum of the vectors of it that have come."""
        self._left_out: set[int] = set()
        """Members of groups that will never be whole."""
        self._ready: set[int] = set()
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

    def announced(self, member: int) -> bool:
        """Whether this member said that its vector is ready."""
        return member in self._ready

    def underway(self, member: int) -> bool:
        """Whether the vector of this member is being fetched, or waits for its turn or for others of its group."""
        return member in self._ready and member not in self.settled

    def deadlines(self) -> Iterator[float]:
        """When uploads count as stalled."""
        return (upload.deadline for upload in self._uploads.values())

    def stalled(self, now: float) -> list[int]:
        """The members whose uploads do."""
        return [member for member, upload in self._uploads.items() if now >= upload.deadline]

    def take(self, member: int, words: npt.NDArray[Any] | None, now: float) -> list[tuple[int, int]]:
        """A vector is ready: these words, or a long one, to be fetched; returns the (member, chunk) to ask for now."""
        group = self._agreement.group_of[member]
        self._ready.add(member)
        if member in self._left_out:
            self.settled.add(member)
        elif words is not None:
            self._add(member, words)
        elif self._ready.issuperset(group):
            self._queue.extend(group)
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
            del self._uploads[member]
            self._add(member, upload.words)
            return self._admit(now)
        return [(member, following) for following in requests_after(upload.received, chunks)]

    def discard(self, member: int, now: float) -> list[tuple[int, int]]:
        """A member is gone: without its vector its group is left out; returns what to ask for now."""
        if member not in self.settled:
            group = self._agreement.group_of[member]
            self._left_out.update(group)
            self.settled |= self._ready.intersection(group)
            self._apart.pop(group, None)
            self._uploads = {other: upload for other, upload in self._uploads.items() if other not in group}
            self._queue = deque(other for other in self._queue if other not in group)
        return self._admit(now)

    @work(WorkKind.SUMMING)
    def _add(self, member: int, words: npt.NDArray[Any]) -> None:
        """Add a whole vector: to those of its group that have come, and these to the sum when they are all there."""
        group, ring = self._agreement.group_of[member], self._agreement.ring
        self.settled.add(member)
        if group in self._apart:
            ring.add_into(self._apart[group], words)
            words = self._apart.pop(group)
        if self.settled.issuperset(group):
            ring.add_into(self.total, words)
            self.included.update(group)
        else:
            # What came in one chunk is a view of the frame.
            self._apart[group] = words if words.flags.writeable else words.copy()
        if self._agreement.single_vectors:
            self.vectors[member] = words

    def _admit(self, now: float) -> list[tuple[int, int]]:
        agreement, requests = self._agreement, []
        while self._queue and len(self._uploads) < UPLOADS:
            member = self._queue.popleft()
            words = np.empty(agreement.length, agreement.ring.word)
            due, end = now + agreement.phase_seconds, now + TRANSFER_LIMIT * agreement.phase_seconds
            self._uploads[member] = _Upload(words, due, end)
            requests += [(member, chunk) for chunk in requests_after(0, agreement.chunks)]
        return requests
