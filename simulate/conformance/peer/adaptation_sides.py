"""Our sides in double-blind adaptation: an owner and the dealer, towards the other owner.

Our parties are those of private inference in other sessions (inference_cast.py). Towards a model owner, our second data
owner takes part in cases with a sum. Towards a data owner the dealer serves the sums too (adaptation_sums.py), to all
other data owners, which are ours and report to the model owner that they survived.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from msgspec import structs

from tacit.parties.inference.conversation import limits
from tacit.parties.links.endpoint import Event
from tacit.protocol.adaptation.data_owner import adaptation_terms
from tacit.protocol.adaptation.messages import ADAPTATION_MESSAGES, AdaptationTerms, AskSum
from tacit.protocol.adaptation.states import SumAsked, SumTold
from tacit.protocol.adaptation.sums import OpeningPolicy
from tacit.protocol.core.messages import Message
from tacit.protocol.inference.data_owner import InferenceRequest
from tacit.protocol.inference.messages import Terms
from tacit.simulate.conformance.peer.adaptation_cases import ASKS, NO_SUM, SUM, OtherLearning, SharedRound
from tacit.simulate.conformance.peer.adaptation_sums import SumsOfShares
from tacit.simulate.conformance.peer.cast import Keyring, Line, connecting
from tacit.simulate.conformance.peer.inference_cast import (
    AgainstDataOwner,
    AgainstModelOwner,
    OneSession,
    OwnerAndDealer,
)
from tacit.simulate.world.adaptation import MemoryAdaptation, round_plan
from tacit.simulate.world.world import Parcel


class LearnersAndDealer(OwnerAndDealer, MemoryAdaptation):
    """As OwnerAndDealer, in training sessions."""


class TeacherAndDealer(OwnerAndDealer, MemoryAdaptation):
    def __init__(self, cast: AgainstLearner, terms: AdaptationTerms, sums_served: SumsOfShares) -> None:
        owners = len(cast.roster.clients)
        opening = OpeningPolicy(rounds=terms.rounds, owners=owners, smallest_cohort=2, colluders=0)
        super().__init__(cast, {}, terms=terms, opening=opening)
        self._served = sums_served

    def sum_of(self, number: int) -> bytes:
        return self._served.session.own_sum()

    def others_say(self, number: int) -> None:
        """Let all other data owners report that they trained in the round, and its survivors."""
        survivors = self._served.session.survivors
        for name in survivors:
            if name != self.outside:
                self.sums.begin(name, number)
                self.sums.keep(name, number)
        for name in survivors:
            if name != self.outside:
                self.sums.say(name, number, survivors, self.now)


class AgainstLearner(AgainstDataOwner):
    """We play the model owner at this address, and the dealer, whose sums are at another one. A live data owner that
    completed a round, or is refused, must be restarted."""

    SPOKEN = ADAPTATION_MESSAGES

    def __init__(
        self,
        keyring: Keyring,
        live: str,
        terms: AdaptationTerms,
        address: str,
        dealer_address: str,
        sums_address: str,
        *,
        wait: float,
        tell: Callable[[str], None],
    ) -> None:
        super().__init__(keyring, live, terms, address, dealer_address, wait=wait, tell=tell)
        self._served = SumsOfShares(keyring, live, terms, sums_address)
        self.lines[self._served.line.own] = self._served.line

    def session_on(self, terms: Terms) -> OneSession:
        found, case = adaptation_terms(terms), self.case
        if isinstance(case, OtherLearning):
            self.observed.liar = self.own
            sizes = {"rank": found.learning.rank + case.rank, "classes": found.learning.classes + case.classes}
            found = structs.replace(found, learning=structs.replace(found.learning, **sizes))
        return TeacherAndDealer(self, found, self._served)

    async def begin(self) -> None:
        # A party that contacts only the sums, never the model owner, is no sign of life.
        async with asyncio.timeout(self.wait):
            await super().begin()

    async def take(self, own: str, event: Event) -> None:
        if own == self._served.line.own:
            await self._served.take(event)
        else:
            await super().take(own, event)

    async def feed(self, parcel: Parcel, message: Message | None) -> None:
        if isinstance(message, AskSum) and isinstance(self.world, TeacherAndDealer):
            if message.survivors != self._served.session.survivors:
                self.observed.reproach = "names other survivors than the sums have"
            self.world.others_say(message.number)
        await super().feed(parcel, message)

    def conclude(self) -> None:
        super().conclude()
        if self.world is not None and self.observed.held:
            self.observed.reproach = self.observed.reproach or self._served.session.fault
            self.observed.found = ASKS if self.world.outcome(SumAsked) else ""


class AgainstTeacher(AgainstModelOwner):
    """We play these two data owners, the first of which lies; the model owner listens at the address, and has revealed
    no sum before."""

    SPOKEN = ADAPTATION_MESSAGES
    TERMS = AdaptationTerms

    def __init__(
        self, keyring: Keyring, owners: Sequence[str], address: str, dealer_address: str, *, wait: float
    ) -> None:
        own, other = owners
        super().__init__(keyring, own, address, dealer_address, wait=wait)
        live = keyring.roster.server
        link = connecting(keyring.keys[other], live, address, wait, limits(wait))
        self.lines[other] = Line(other, live.name, link)
        self._other = other
        self._number = 0
        """Number of this case's round, or the last one."""
        self._told = 0
        """Last round whose sum was revealed."""

    def session_on(self, terms: Terms) -> OneSession:
        found = adaptation_terms(terms)
        self._number += 1
        learns = [self.own]
        if isinstance(self.case, SharedRound):
            learns.append(self._other)
            self.involved.add(self._other)
        plan = round_plan(self._number, sorted(learns), based=self._told)
        batch, sizes = found.learning.batch, found.sizes
        return LearnersAndDealer(
            self,
            dict.fromkeys(learns, plan),
            terms=found,
            counts=dict.fromkeys(learns, found.least_count),
            request=InferenceRequest(images=batch, batch=batch, channels=sizes.channels, side=sizes.side),
        )

    def conclude(self) -> None:
        super().conclude()
        told = [] if self.world is None else self.world.outcome(SumTold)
        sums = {None if each.data is None else bytes(each.data) for each in told}
        if sums:
            self.observed.found = "tells different sums" if len(sums) > 1 else NO_SUM if None in sums else SUM
        if sums - {None}:
            self._told = self._number
