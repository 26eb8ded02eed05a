"""How much a model owner computes for each data owner in a day (UTC), and what a data owner has used of it.

Chosen images search the bounds of a model by whether they are refused, and its weights by what is answered. So both are
counted, before a pass begins: its images as used, and as refused until both know that it is in range. A data owner that
leaves in between, or a model owner that is killed, has them counted. A clock that goes back renews nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from tacit.protocol.core.errors import Code, RemoteProtocolError

DAY_SECONDS: Final = 86_400
MOST_A_DAY: Final = 1 << 40

Number = Annotated[int, Meta(ge=0, le=MOST_A_DAY)]


@dataclass(frozen=True, kw_only=True)
class Quota:
    """Of each data owner, in a day."""

    images: int = MOST_A_DAY
    """That it may ask about; those that are refused count."""
    refused: int = MOST_A_DAY
    """That may be refused."""


class Spent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a data owner has used on its last day."""

    day: Number = 0
    """Since 1970-01-01."""
    images: Number = 0
    refused: Number = 0
    """Of these: images of passes that were out of range, or came to no verdict."""


def charged(quota: Quota, spent: Spent, images: int, at: float) -> Spent:
    """What is used once a pass of so many images begins. at: Unix time in seconds.

    RemoteProtocolError, with what remains and when it renews, where that is more than the quota.
    """
    day = int(at // DAY_SECONDS)
    used = spent if spent.day >= day else Spent(day=day)
    renewed = f"{datetime.fromtimestamp((used.day + 1) * DAY_SECONDS, UTC):%Y-%m-%dT%H:%M:%SZ}"
    for what, most, already in (
        ("a data owner may ask about", quota.images, used.images),
        ("of a data owner may be refused", quota.refused, used.refused),
    ):
        if images > (left := max(most - already, 0)):
            raise RemoteProtocolError(
                Code.POLICY,
                f"the quota: {most} images a day {what}, {left} are left until {renewed}, and a pass of {images} is "
                "wanted: take a smaller batch, or ask again then",
            )
    return Spent(day=used.day, images=used.images + images, refused=used.refused + images)


def answered(spent: Spent, images: int) -> Spent:
    """What is used once the pass is in range."""
    return msgspec.structs.replace(spent, refused=spent.refused - images)
