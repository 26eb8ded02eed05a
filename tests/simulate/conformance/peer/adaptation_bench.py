"""Live parties of double-blind adaptation for the kit: our own, which learn beside a transformer of a few numbers."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Final

import pytest
import torch

from tacit.models.adapters.configuration import ParallelConfiguration
from tacit.models.adapters.federated import Schedule
from tacit.parties.adaptation.data_owner import LearnerSettings, PrivateLearner, SharesTask
from tacit.parties.adaptation.model_owner import TeachingParty, TeachingSettings
from tacit.parties.adaptation.public import PublicLearning, learning_terms
from tacit.parties.adaptation.rehearsed import Lesson, rehearsed_learning
from tacit.parties.adaptation.rounds import SCHEME, roster_of_sums
from tacit.parties.inference.data_owner import DataOwnerSettings
from tacit.parties.session.client import ClientParty, ClientSettings
from tacit.parties.session.event_log import EventLog
from tacit.parties.session.journal import JournalFile
from tacit.protocol.adaptation.messages import AdaptationTerms
from tacit.protocol.adaptation.sums import OpeningPolicy
from tacit.protocol.core.roster import Role
from tacit.protocol.inference.schedule import LOGITS
from tacit.protocol.sum.policy import Policy
from tacit.simulate.conformance.peer.play import Addresses, Side

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(Path(__file__).parent)
    from inference_bench import IMAGES, LIVE, MOST, ROLES, InferenceBench, private_model, transformer
    from live_party import SECONDS, free_address

LABELS: Final = torch.arange(len(IMAGES)) % 2
COHORT: Final = 3
"""The fewest data owners whose sum a live data owner takes part in."""


@cache
def learning() -> PublicLearning:
    schedule = Schedule(rounds=1, learning_rate=0.01, decay_rounds=())
    lesson = Lesson(adapter=ParallelConfiguration(rank=1), schedule=schedule, batch=2, batches=2, classes=2, seed=1)
    return rehearsed_learning(private_model(), transformer(), IMAGES, LABELS, lesson, margin=2.0)[0]


@dataclass
class AdaptationBench(InferenceBench):
    roles: ClassVar[dict[str, Role]] = {**ROLES, "hospice": "client"}

    def __post_init__(self) -> None:
        super().__post_init__()
        self.sums_address = free_address()

    def _addresses(self, side: Side) -> Addresses:
        sums = self.sums_address if side == "adapting-model-owner" else None
        return Addresses(self.address, self.dealer_address, sums)

    def _terms(self) -> AdaptationTerms:
        return learning_terms(
            private_model(), learning(), purpose="learning", results=LOGITS, most_images=MOST["most_images"], rounds=1,
            smallest_cohort=COHORT,
        )  # fmt: skip

    def _party(
        self, side: Side, sessions: int, event_log: EventLog, common: dict[str, Any]
    ) -> Callable[[], Awaitable[Any]]:
        if side == "adapting-data-owner":
            opening = OpeningPolicy(rounds=1 << 10, owners=2, smallest_cohort=2, colluders=0)
            settings = TeachingSettings(
                address=self.address, dealer_address=self.dealer_address, learning=learning(), opening=opening,
                **common, **MOST,
            )  # fmt: skip
            return TeachingParty(settings, private_model(), event_log).run
        owner = DataOwnerSettings(model_owner_address=self.address, dealer_address=self.dealer_address, **common)
        learner = LearnerSettings(owner=owner, batch=2, batches=2, rounds=1, smallest_cohort=COHORT)
        attempts = itertools.count()

        async def session() -> None:
            number = next(attempts)
            private = PrivateLearner(learner, IMAGES, LABELS, event_log)
            client = ClientSettings(
                address=self.sums_address,
                keys=self.keys[LIVE[side]],
                roster=roster_of_sums(self.roster),
                policy=Policy(schemes=(SCHEME,), smallest_cohort=2),
                journal=JournalFile(self.directory / f"journal-{number}"),
                patience=SECONDS,
                grace=0.2,
            )
            try:
                await ClientParty(client, {SCHEME: SharesTask(private)}, event_log).run()
            finally:
                await asyncio.shield(private.close())

        return session
