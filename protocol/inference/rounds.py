"""Where one owner stands in the rounds of a pass: what it owes, what is due to it, and what may not come yet.

Both sides go through the same schedule. In a round each opens as many bytes as the schedule says, maybe none. A side
that owes nothing in a round does not wait in it, so messages may arrive for later rounds than the one in which this
side computes; but never for a round behind one in which this side still owes something, for what the peer opens there
depends on it.
"""

from __future__ import annotations

from collections.abc import Sequence

from tacit.protocol.core.codec import Frame
from tacit.protocol.core.errors import Code, LocalProtocolError, RemoteProtocolError
from tacit.protocol.inference.arrivals import Arrivals
from tacit.protocol.inference.schedule import Round


class PassRounds:
    """One owner in one pass."""

    def __init__(self, rounds: Sequence[Round], *, model_owner: bool) -> None:
        pairs = [(each.model_owner_bytes, each.data_owner_bytes) for each in rounds]
        own, peers = zip(*(pair if model_owner else pair[::-1] for pair in pairs), strict=True)
        self._owed = [(step, size) for step, size in enumerate(own) if size]
        self._given = 0
        self.arrivals = Arrivals("the opening of round", enumerate(peers))

    @property
    def owed(self) -> int | None:
        """The next round in which this side opens something."""
        return self._owed[self._given][0] if self._given < len(self._owed) else None

    @property
    def over(self) -> bool:
        """Whether nothing is owed and nothing is due."""
        return self.owed is None and self.arrivals.next is None

    @property
    def waiting(self) -> bool:
        """Whether it is the peer's turn, as far as this side can know."""
        due, owed = self.arrivals.next, self.owed
        return due is not None and (owed is None or due <= owed)

    def check(self, step: int, chunk: int, payload: Frame | None) -> None:
        """Refuse what is not due, or cannot be known to the peer yet."""
        self.arrivals.check(step, chunk, payload)
        if self.owed is not None and self.owed < step:
            raise RemoteProtocolError(
                Code.UNEXPECTED, f"the opening of round {step} came before this side has opened anything in {self.owed}"
            )

    def give(self, step: int, size: int) -> None:
        """Note what this side opens. LocalProtocolError for another round or length than is owed."""
        expected = self._owed[self._given] if self._given < len(self._owed) else None
        due = self.arrivals.next
        if (step, size) != expected or (due is not None and due < step):
            raise LocalProtocolError(f"{size} bytes for round {step}; owed (round, bytes): {expected}, due: {due}")
        self._given += 1
