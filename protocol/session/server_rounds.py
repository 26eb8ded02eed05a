"""What the server of a session goes by in a round, and what a round comes to."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from tacit.protocol.core.blob import OutgoingBlob, announce
from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.messages import Blob
from tacit.protocol.core.primitives import Label
from tacit.protocol.core.roster import Roster
from tacit.protocol.session.rounds import RoundDone, ServerPart
from tacit.protocol.sum.configuration import Configuration
from tacit.protocol.sum.counting import check_second_cohort, derive_limits
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
    """What its members fetch: the model, or in the second stage the limits."""
    counted: bool = False
    """Whether it is in its second stage."""
    earlier: tuple[Dropped, ...] = ()
    """Who was dropped in its first stage."""


def second_cohort(
    roster: Roster, configuration: Configuration, counted: Summed, drops: Collection[Dropped], there: Collection[str]
) -> tuple[bytes, tuple[str, ...]]:
    """The limits that follow from a sum of counts, and who is left, in whole groups, to contribute within them.

    Refuses a sum that is none of counts, and too few who are left.

    drops: who is out of that sum; there: who is in the session.
    """
    try:
        limits = derive_limits(counted.total, configuration, counted=len(counted.survivors))
    except ValueError as error:
        raise RemoteProtocolError(Code.VECTOR, str(error)) from None
    dropped = {drop.member for drop in drops}
    left = [name for name in counted.survivors if name in there and name not in dropped]
    cohort = roster.gather(left, len(left))
    check_second_cohort(configuration, cohort, counted.survivors)
    return limits, cohort


def outcome(number: int, part: CurrentRound, finished: ServerPart, result: Summed | ServerAborted) -> RoundDone:
    """What the round of this number came to."""
    summed = result if isinstance(result, Summed) else None
    aborted = result if isinstance(result, ServerAborted) else None
    return RoundDone(
        round=number,
        began=part.began,
        cohort=part.cohort,
        survivors=summed.survivors if summed else (),
        dropped=(*part.earlier, *finished.drops),
        total=summed.total if summed else None,
        code=aborted.code if aborted else None,
        detail=aborted.detail if aborted else "",
        culprit=aborted.culprit if aborted else "",
        vectors=summed.vectors if summed else {},
    )
