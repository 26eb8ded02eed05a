"""Our sides in double-blind adaptation: an owner and the dealer, towards the other owner.

Our parties are those of private inference in other sessions (inference_cast.py). Towards a model owner, our second data
owner takes part in cases with a sum. Towards a data owner the dealer serves the sums too, to all other data owners,
which are ours and report to the model owner that they survived: one training round, and one in which its sum is
revealed. Ours train nothing: their shares are random words, which the model owner's sum, also ours, completes to
parameters of zero, and valid counters.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

import numpy as np
import torch
from msgspec import structs

from tacit.parties.adaptation.rounds import (
    RoundsKeeper,
    RoundsTask,
    configure_rounds,
    contribution,
    read_rounds_task,
    read_sum,
    roster_of_sums,
)
from tacit.parties.inference.conversation import limits
from tacit.parties.links.endpoint import Event, Received
from tacit.protocol.adaptation.data_owner import adaptation_terms
from tacit.protocol.adaptation.messages import ADAPTATION_MESSAGES, AdaptationTerms, AskSum
from tacit.protocol.adaptation.schedule import COUNTED, sum_words
from tacit.protocol.adaptation.states import SumAsked, SumTold
from tacit.protocol.adaptation.sums import OpeningPolicy, sum_of_weights
from tacit.protocol.core.errors import RemoteProtocolError
from tacit.protocol.core.messages import Abort, Message
from tacit.protocol.inference.data_owner import InferenceRequest
from tacit.protocol.inference.messages import Terms
from tacit.protocol.session.messages import Hello
from tacit.protocol.session.rounds import RoundDone
from tacit.protocol.sum.configuration import Proposal, share
from tacit.secagg.ring import Words
from tacit.simulate.conformance.peer.adaptation_cases import ASKS, NO_SUM, SUM, OtherLearning, SharedRound
from tacit.simulate.conformance.peer.against_client import Session
from tacit.simulate.conformance.peer.cast import Keyring, Line, connecting, listening
from tacit.simulate.conformance.peer.inference_cast import (
    AgainstDataOwner,
    AgainstModelOwner,
    OneSession,
    OwnerAndDealer,
)
from tacit.simulate.conformance.peer.script import saying, with_received
from tacit.simulate.world.adaptation import MemoryAdaptation, round_plan
from tacit.simulate.world.world import Parcel

SECONDS: Final = 100.0
"""Phase deadline of the live data owner, unless it is told to continue."""


class SumsOfShares:
    """At this address, one session after the other, for each hello of the live data owner."""

    def __init__(self, keyring: Keyring, live: str, terms: AdaptationTerms, address: str) -> None:
        sums, dealer = roster_of_sums(keyring.roster), keyring.roster.dealer.name
        self.line = Line(f"{dealer} (sums)", live, listening(keyring.keys[dealer], sums, address))
        self._keyring, self._live, self._terms = replace(keyring, roster=sums), live, terms
        self._session: SharesSession | None = None

    @property
    def session(self) -> SharesSession:
        assert self._session is not None
        return self._session

    async def take(self, event: Event) -> None:
        if not isinstance(event, Received) or event.sender != self._live:
            return
        parcel = Parcel(self._live, self._keyring.roster.server.name, event.frames)
        message: Message | None = None
        with suppress(RemoteProtocolError):
            envelope = parcel.packet.envelope
            message = parcel.message
        if isinstance(message, Hello):
            self._session = SharesSession(self._keyring, self._live, self._terms, envelope.link)
        session = self._session
        if session is None or session.over:
            return
        session.over = isinstance(message, Abort) and not envelope.round
        session.put(with_received(parcel, session.said))
        session.advance()
        session.go_on()
        session.advance()
        for due in session.due:
            session.said += 1
            await self.line.send(saying(due.packet).frames(session.link))
        session.due.clear()


class SharesSession(Session):
    """One session of sums; `reproach` also reports an invalid share from the live data owner."""

    def __init__(self, keyring: Keyring, live: str, terms: AdaptationTerms, number: int) -> None:
        task = RoundsTask(words=sum_words(terms.sizes, terms.learning), rounds=1)
        proposal = Proposal(
            mode="active", graph="complete", colluders=share(0.33, len(keyring.roster.clients)), dropout=0.33,
            threshold=0, clients=len(keyring.roster.clients), clip=1.0, value_bits=20, max_weight=1,
            train_seconds=SECONDS, phase_seconds=SECONDS,
        )  # fmt: skip
        configuration = configure_rounds(proposal, task)
        self.keeper = RoundsKeeper(configuration)
        self.survivors: tuple[str, ...] = ()
        """Survivors of the training round, once it is over."""
        self.fault = ""
        """Fault in the live data owner's contribution."""
        self._weight, _ = sum_of_weights(len(keyring.roster.clients), terms.least_count)
        super().__init__(keyring, live, configuration, number=number, model=self.keeper.bytes)

    def draw(self, name: str, round: int) -> Words:
        share = np.frombuffer(os.urandom(8 * read_rounds_task(self.configuration).words), np.int64)
        words = self.vectors[name, round] = contribution(self.configuration, torch.from_numpy(share.copy()))
        return words

    def go_on(self) -> None:
        if self.over or not self.held():
            return
        done = self.outcome(RoundDone)[-1]
        if done.total is not None:
            try:
                self.keeper.apply(self.keeper.decode(done.total, len(done.survivors)), round=done.round)
            except ValueError as error:
                self.fault = f"contributes what is no share ({error})"
        self.survivors = self.survivors or tuple(sorted(done.survivors))
        following = self.server.next_round if done.round == 1 else self.server.finish
        self.over = done.round > 1
        self.emit(self.host, following(self.keeper.bytes, 0.0))

    def own_sum(self) -> bytes:
        found = read_sum(self.keeper.bytes)
        assert found is not None
        due = torch.zeros_like(found.words)
        due[len(due) - len(COUNTED) :] = torch.tensor([0, 0, 0, self._weight])
        return (due - found.words).numpy().astype("<i8").tobytes()


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
