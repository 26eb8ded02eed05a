"""The running sum of the vectors on the server.

A vector that fits one chunk is added at once. Longer ones are fetched chunk by chunk, from at most UPLOADS clients at a
time, and added when complete: a client that vanishes in the middle leaves no trace. While there is room for present and
future uploads, clients whose vector is not ready are invited: the last vectors, which the sum waits for, then come at
once.

Members of a group are in the sum all or none, so their vectors are added separately until the last has come. Long ones
are fetched group by group, so that memory is bounded by 4 UPLOADS + 1 vectors for any number of clients (without groups
by 2 UPLOADS + 1). Without secure aggregation floats are added, in the order of the members, and a vector waits for
those before it (secagg/plain.py).

An upload delays waiting clients, and so has deadlines for its next chunk and for its end; waiting or invited clients
have none.
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
from tacit.secagg.plain import PlainSum
from tacit.secagg.work import WorkKind, work


@dataclass
class _Upload:
    """Received part of a vector. due: deadline of the next chunk; end: of all chunks."""

    due: float
    end: float
    received: int = 0
    words: npt.NDArray[Any] | None = None
    """Buffer for all words, allocated with the first chunk."""

    @property
    def deadline(self) -> float:
        return min(self.due, self.end)


class VectorSum:
    """`included`: the members in the sum; `vectors`: that of each, if the agreement requires single vectors."""

    def __init__(self, agreement: Agreement) -> None:
        self._agreement = agreement
        self._plain = None if agreement.plain is None else PlainSum(agreement.plain, agreement.size)
        self._total: npt.NDArray[Any] = np.zeros(0 if self._plain else agreement.length, agreement.ring.word)
        self.included: set[int] = set()
        self.settled: set[int] = set()
        """Members of whom nothing is due: their vector has come, or they are ready and their group is excluded."""
        self.vectors: dict[int, npt.NDArray[Any]] = {}
        self._apart: dict[tuple[int, ...], npt.NDArray[Any]] = {}
        """By incomplete group, the sum of its received vectors."""
        self._left_out: set[int] = set()
        """Members of groups that cannot be completed."""
        self.ready: set[int] = set()
        """Members that reported their vector ready."""
        self._invited: set[int] = set()
        """Members that were asked for theirs in advance."""
        self._last: deque[int] = deque()
        """Members that may be invited, if they are not ready: the others of their group are."""
        self._uploads: dict[int, _Upload] = {}
        self._queue: deque[int] = deque()

    @property
    def total(self) -> npt.NDArray[Any]:
        """Ring words of the agreement's length, or the total of a PlainSum when all members have come or left."""
        return self._total if self._plain is None else self._plain.total

    def words(self, payload: Frame, chunk: int) -> npt.NDArray[Any]:
        """The words of a chunk; refuses another length, words outside the ring, and invalid plain ones."""
        ring, span = self._agreement.ring, self._agreement.chunk_span(chunk)
        expected = (span.stop - span.start) * ring.wire_bytes
        if len(payload) != expected:
            raise RemoteProtocolError(
                Code.VECTOR, f"chunk {chunk} of the vector has {len(payload)} bytes, not {expected}"
            )
        try:
            words = ring.unpack(payload)
            if self._agreement.plain is not None:
                self._agreement.plain.check(words, span.start)
            return words
        except ValueError as error:
            raise RemoteProtocolError(Code.VECTOR, f"chunk {chunk} of the vector: {error}") from None

    def underway(self, member: int) -> bool:
        """Whether the vector of this member is being fetched, or waits for its turn or for others of its group."""
        return member in self.ready and member not in self.settled

    def deadlines(self) -> Iterator[float]:
        """Times at which uploads count as stalled."""
        return (upload.deadline for upload in self._uploads.values())

    def stalled(self, now: float) -> list[int]:
        """Members with stalled uploads."""
        return [member for member, upload in self._uploads.items() if now >= upload.deadline]

    def take(self, member: int, words: npt.NDArray[Any] | None, now: float) -> list[tuple[int, int]]:
        """Take a ready vector: these words, or None for one to fetch; returns the (member, chunk) to request now."""
        group = self._agreement.group_of[member]
        self.ready.add(member)
        if member in self._left_out:
            self.settled.add(member)
        elif words is not None:
            self._add(member, words)
        elif member in self._invited:
            self._invited.remove(member)
            self._upload(member, now)
        elif not (missing := [other for other in group if other not in self.ready]):
            self._queue.extend(group)
        elif len(missing) == 1:
            self._last += missing
        return self._admit(now)

    def invite(self, now: float) -> list[tuple[int, int]]:
        """Allow vectors from now on; returns the requests in advance."""
        if self._agreement.chunks > 1:
            self._last += (member for member, group in self._agreement.group_of.items() if len(group) == 1)
        return self._admit(now)

    def check(self, member: int, chunk: int) -> None:
        """Refuse a chunk that was not requested."""
        if member not in self._uploads:
            raise RemoteProtocolError(Code.UNEXPECTED, f"chunk {chunk} of a vector that nobody asked for")
        check_due(chunk, self._uploads[member].received, self._agreement.chunks)

    def store(self, member: int, chunk: int, words: npt.NDArray[Any], now: float) -> list[tuple[int, int]]:
        """Keep a chunk that `check` admitted; returns the requests to send now."""
        agreement, upload, chunks = self._agreement, self._uploads[member], self._agreement.chunks
        if upload.words is None:
            upload.words = np.empty(agreement.length, agreement.ring.word)
        upload.words[agreement.chunk_span(chunk)] = words
        upload.received, upload.due = upload.received + 1, now + agreement.phase_seconds
        if upload.received == chunks:
            del self._uploads[member]
            self._add(member, upload.words)
            return self._admit(now)
        return [(member, following) for following in requests_after(upload.received, chunks)]

    def discard(self, member: int, now: float) -> list[tuple[int, int]]:
        """Drop a member: without its vector its group is excluded; returns the requests to send now."""
        if self._plain is not None and member not in self.settled:
            self._plain.skip(member)
        if member not in self.settled:
            group = self._agreement.group_of[member]
            self._left_out.update(group)
            self.settled |= self.ready.intersection(group)
            self._apart.pop(group, None)
            self._invited.difference_update(group)
            self._uploads = {other: upload for other, upload in self._uploads.items() if other not in group}
            self._queue = deque(other for other in self._queue if other not in group)
        return self._admit(now)

    @work(WorkKind.SUMMING)
    def _add(self, member: int, words: npt.NDArray[Any]) -> None:
        """Add a whole vector to its group's sum, and that to the total when the group is complete."""
        group, ring = self._agreement.group_of[member], self._agreement.ring
        self.settled.add(member)
        if self._agreement.single_vectors:
            self.vectors[member] = words
        if self._plain is not None:
            self._plain.add(member, words)
            self.included.add(member)
            return
        if group in self._apart:
            ring.add_into(self._apart[group], words)
            words = self._apart.pop(group)
        if self.settled.issuperset(group):
            ring.add_into(self._total, words)
            self.included.update(group)
        else:
            # A vector of one chunk is a view of the frame.
            self._apart[group] = words if words.flags.writeable else words.copy()

    def _admit(self, now: float) -> list[tuple[int, int]]:
        """Fill the room for uploads: with waiting clients, else with invitations."""
        agreement, asked = self._agreement, []
        # An invited client uploads as soon as it is ready, and needs room then.
        invited = self._invited
        while (self._queue or self._last) and len(self._uploads) + (0 if self._queue else len(invited)) < UPLOADS:
            if self._queue:
                member = self._queue.popleft()
                self._upload(member, now)
            else:
                member = self._last.popleft()
                if member in self.ready or member in self._left_out:
                    continue
                invited.add(member)
                self._queue.extend(other for other in agreement.group_of[member] if other != member)
            asked.append(member)
        return [(member, chunk) for member in asked for chunk in requests_after(0, agreement.chunks)]

    def _upload(self, member: int, now: float) -> None:
        phase = self._agreement.phase_seconds
        self._uploads[member] = _Upload(now + phase, now + TRANSFER_LIMIT * phase)
