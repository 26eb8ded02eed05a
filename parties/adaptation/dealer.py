"""The dealer of double-blind adaptation as a party: it deals material, and serves the sum of data owners' shares.

Two services of one party, each at an address of its own, with the same keys. What it sums is noise to it: the other
share of all that is learned is the model owner's, who tells its sum to the data owners alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tacit.parties.adaptation.rounds import RoundsKeeper
from tacit.parties.inference.conversation import ended
from tacit.parties.inference.dealer import DealerParty, DealerSettings
from tacit.parties.session.diary import Diary
from tacit.parties.session.server import ServerParty, ServerSettings
from tacit.protocol.core.machine import Ended
from tacit.protocol.session.rounds import RoundDone
from tacit.secagg.packing import Total


@dataclass(frozen=True, kw_only=True)
class SummingDealerSettings:
    """What the dealer needs for both."""

    dealing: DealerSettings
    summing: ServerSettings
    last: bytes | None = None
    """The sum that a former session has left."""


async def deal_and_sum(
    settings: SummingDealerSettings,
    *,
    dealt: Diary,
    summed: Diary,
    on_sum: Callable[[int, bytes], None] = lambda round, words: None,
) -> Ended:
    """Serve both until the rounds are over, and how the session of sums ended. EndpointError if it cannot listen.

    dealt, summed: the diaries of both services; on_sum: called in a thread with every round that has a sum, and what
    the next one begins with. ValueError for a last sum that is none of this task.
    """
    keeper = RoundsKeeper(settings.summing.configuration, last=settings.last)

    def keep(done: RoundDone, total: Total | None) -> dict[str, Any]:
        if total is not None:
            on_sum(done.round, keeper.bytes)
        return {}

    dealer = DealerParty(settings.dealing, dealt)
    dealing = asyncio.ensure_future(dealer.run())
    summing = asyncio.ensure_future(ServerParty(settings.summing, keeper, summed, on_round=keep).run())
    try:
        await asyncio.wait([dealing, summing], return_when=asyncio.FIRST_COMPLETED)
        if dealing.done():
            await dealing  # It serves until it is cancelled: it could not.
        over = await summing
        # Data owners close their sessions with the model owner when they have heard the last sum.
        with suppress(TimeoutError):
            async with asyncio.timeout(settings.dealing.patience):
                await dealer.quiet()
        return over
    finally:
        await ended(dealing, summing)
