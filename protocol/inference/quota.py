"""Limits of a day (UTC) that an owner sets for one peer, and what that peer has used of them.

Both owners have such limits. Chosen images search the bounds of a model by whether they are refused, and its weights by
what is answered: so a model owner counts a data owner's images. A chosen model asks a question of its owner's choice
about every pass, which the verdict answers: so a data owner counts a model owner's passes. Both count before a pass
begins: as used, and as refused until the pass is known to be in range, or ends before an owner has opened its word of
the verdict. A peer that leaves later, or a process that is killed, has them counted. A clock that goes back renews
nothing.
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
    """All of them, those that are refused too."""
    refused: int = MOST_A_DAY


class Spent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Use of a quota on the last day that the peer used any."""

    day: Number = 0
    """Since 1970-01-01."""
    used: Number = 0
    refused: Number = 0
    """Those of passes that were out of range, or that ended when the peer could know a verdict already."""


class OverQuotaError(Exception):
    """A pass would exceed a limit.

    refused: whether it is that of refusals; most: the limit; left: the rest of it; renewed: when it renews.
    """

    def __init__(self, *, refused: bool, most: int, left: int, renewed: str) -> None:
        super().__init__(f"{most} a day, {left} left until {renewed}")
        self.refused = refused
        self.most = most
        self.left = left
        self.renewed = renewed


def charged(quota: Quota, spent: Spent, count: int, at: float, *, judged: bool = True) -> Spent:
    """Return the use once a pass of this count begins. at: Unix time in seconds; judged: whether it comes to a verdict.
    OverQuotaError."""
    day = int(at // DAY_SECONDS)
    before = spent if spent.day >= day else Spent(day=day)
    renewed = f"{datetime.fromtimestamp((before.day + 1) * DAY_SECONDS, UTC):%Y-%m-%dT%H:%M:%SZ}"
    for refused, most, already in ((False, quota.used, before.used), (True, quota.refused, before.refused)):
        if (judged or not refused) and count > (left := max(most - already, 0)):
            raise OverQuotaError(refused=refused, most=most, left=left, renewed=renewed)
    return Spent(day=before.day, used=before.used + count, refused=before.refused + count * judged)


def answered(spent: Spent, count: int) -> Spent:
    """Return the use once the pass is no refusal: it is in range, or nobody can know its verdict."""
    return msgspec.structs.replace(spent, refused=spent.refused - count)
