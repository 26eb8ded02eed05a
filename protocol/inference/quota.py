"""Daily limits (UTC) that an owner sets for a peer, and the peer's use of them.

Both owners have such limits. A data owner with chosen images can search a model's ranges by their verdicts, and its
weights by its answers, so a model owner counts a data owner's images. A model owner with a chosen model asks its own
question about every pass, and the verdict answers it, so a data owner counts a model owner's passes. Both charge before
a pass begins, as used and as refused. The charge for refusal is undone once the pass is in range, or if it ends before
an owner has opened its word of the verdict. Later departures and killed processes stay charged. Setting a clock back
renews nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Final

import msgspec
from msgspec import Meta

DAY_SECONDS: Final = 86_400
MOST_A_DAY: Final = 1 << 40

Number = Annotated[int, Meta(ge=0, le=MOST_A_DAY)]


@dataclass(frozen=True, kw_only=True)
class Quota:
    """Limits for one peer in a day: images at a model owner, passes at a data owner."""

    used: int = MOST_A_DAY
    """Including refused ones."""
    refused: int = MOST_A_DAY


class Spent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Use of a quota on the last day that the peer used any."""

    day: Number = 0
    """Days since 1970-01-01."""
    used: Number = 0
    refused: Number = 0
    """Passes out of range, and passes that ended when the peer could already know the verdict."""


class OverQuotaError(Exception):
    """A pass would exceed a limit.

    refused: whether it is the limit of refusals; most: the limit; left: its rest; renewed: when it renews.
    """

    def __init__(self, *, refused: bool, most: int, left: int, renewed: str) -> None:
        super().__init__(f"{most} a day, {left} left until {renewed}")
        self.refused = refused
        self.most = most
        self.left = left
        self.renewed = renewed


def charged(quota: Quota, spent: Spent, count: int, at: float, *, judged: bool = True) -> Spent:
    """Return the use once a pass of this count begins. at: Unix time in seconds; judged: whether the pass ends in a
    verdict. Raises OverQuotaError."""
    day = int(at // DAY_SECONDS)
    before = spent if spent.day >= day else Spent(day=day)
    renewed = f"{datetime.fromtimestamp((before.day + 1) * DAY_SECONDS, UTC):%Y-%m-%dT%H:%M:%SZ}"
    for refused, most, already in ((False, quota.used, before.used), (True, quota.refused, before.refused)):
        if (judged or not refused) and count > (left := max(most - already, 0)):
            raise OverQuotaError(refused=refused, most=most, left=left, renewed=renewed)
    return Spent(day=before.day, used=before.used + count, refused=before.refused + count * judged)


def answered(spent: Spent, count: int) -> Spent:
    """Return the use once the pass is known to be no refusal: it is in range, or its verdict stays unknown."""
    return msgspec.structs.replace(spent, refused=spent.refused - count)
