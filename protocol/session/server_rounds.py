"""What the server of a session goes by in a round, and what a round comes to."""

from __future__ import annotations

from dataclasses import dataclass, field

from tacit.protocol.core.blob import OutgoingBlob, announce
from tacit.protocol.core.messages import Blob
from tacit.protocol.core.primitives import Label
from tacit.protocol.session.rounds import RoundDone
from tacit.protocol.sum.results import Dropped, ServerAborted, Summed


@dataclass(frozen=True)
class Model:
    """The server's model, little-endian float32 bytes, and what tells clients of it."""

    data: bytes = field(repr=False)
    announced: Blob

    @classmethod
    def of(cls, data: bytes) -> Model:
        """These bytes with their announcement."""
        return cls(data, announce(data, Label.MODEL))


@dataclass(frozen=True)
class CurrentRound:
    """The round that goes on."""

    began: float
    cohort: tuple[str, ...]
    outgoing: OutgoingBlob
    """The model, for its members to fetch."""


def outcome(number: int, part: CurrentRound, drops: tuple[Dropped, ...], result: Summed | ServerAborted) -> RoundDone:
    """What the round of this number came to; drops: who is out of its sum."""
    summed = result if isinstance(result, Summed) else None
    aborted = result if isinstance(result, ServerAborted) else None
    return RoundDone(
        round=number,
        began=part.began,
        cohort=part.cohort,
        survivors=summed.survivors if summed else (),
        dropped=drops,
        total=summed.total if summed else None,
        code=aborted.code if aborted else None,
        detail=aborted.detail if aborted else "",
        culprit=aborted.culprit if aborted else "",
        vectors=summed.vectors if summed else {},
    )
