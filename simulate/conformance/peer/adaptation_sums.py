"""Sums of data owners' parameters, which our dealer serves to a live data owner and to ours: one training round, and
one in which its sum is revealed.

Our data owners train nothing: their shares are random words. The model owner's sum, also ours, completes them to
parameters of zero, and valid counters.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from typing import Final

import numpy as np
import torch

from tacit.parties.adaptation.rounds import (
    RoundsKeeper,
    RoundsTask,
    configure_rounds,
    contribution,
    read_rounds_task,
    read_sum,
    roster_of_sums,
)
from tacit.parties.links.endpoint import Event, Received
from tacit.protocol.adaptation.messages import AdaptationTerms
from tacit.protocol.adaptation.schedule import COUNTED, sum_words
from tacit.protocol.adaptation.sums import sum_of_weights
from tacit.protocol.core.errors import RemoteProtocolError
from tacit.protocol.core.messages import Abort, Message
from tacit.protocol.session.messages import Hello
from tacit.protocol.session.rounds import RoundDone
from tacit.protocol.sum.configuration import Proposal, share
from tacit.secagg.ring import Words
from tacit.simulate.conformance.peer.against_client import Session
from tacit.simulate.conformance.peer.cast import Keyring, Line, listening
from tacit.simulate.conformance.peer.script import saying, with_received
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
