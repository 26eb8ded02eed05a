"""Dealer, model owner and data owners that adapt a model, in one event loop, over real sockets and CURVE, with links
that can be cut. As in tests/parties/inference/in_one_loop.py, tests wait for events of the parties."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from tacit.models.adapters.federated import Features, FullBatches, Schedule, federated
from tacit.models.adapters.parallel import AdapterParameters, FinalNorm
from tacit.parties.adaptation.data_owner import LearnerSettings, PrivateLearner, RoundLearned, SharesTask
from tacit.parties.adaptation.events import BatchEnded, ImagesKept
from tacit.parties.adaptation.learning_passes import LearningPasses
from tacit.parties.adaptation.model_owner import TeachingParty, TeachingSettings
from tacit.parties.adaptation.public import PublicLearning
from tacit.parties.adaptation.rounds import (
    SCHEME,
    RoundsTask,
    configure_rounds,
    deal_and_sum,
    roster_of_sums,
)
from tacit.parties.adaptation.standing import Common
from tacit.parties.inference.data_owner import DataOwnerSettings
from tacit.parties.inference.dealer import DealerSettings
from tacit.parties.inference.events import InferenceSessionEnded
from tacit.parties.inference.private_model import PrivateModel
from tacit.parties.inference.stages import material_bytes
from tacit.parties.links import endpoint
from tacit.parties.session.client import ClientParty, ClientSettings
from tacit.parties.session.event_log import EventFile, EventLog
from tacit.parties.session.events import ListeningStarted
from tacit.parties.session.journal import JournalFile
from tacit.parties.session.server import ServerSettings
from tacit.protocol.adaptation.schedule import sum_words
from tacit.protocol.adaptation.sums import OpeningPolicy
from tacit.protocol.inference.data_owner import InferencePolicy
from tacit.protocol.sum.configuration import Proposal
from tacit.protocol.sum.policy import Policy
from tests.parties.adaptation.test_public import PARALLEL, made
from tests.parties.adaptation.whole import block_outputs
from tests.parties.inference.conftest import Transformer
from tests.parties.inference.in_one_loop import (
    DEALER,
    KEYS,
    LISTEN,
    MODEL_OWNER,
    OWNERS,
    PATIENCE,
    ROSTER,
    House,
    house,
)

SUMS = "sums"
"""The dealer's second address."""
POLICY = OpeningPolicy(rounds=8, owners=3, smallest_cohort=2, colluders=0)


@dataclass(frozen=True)
class Owned:
    images: torch.Tensor
    labels: torch.Tensor


@dataclass
class AdaptingHouse:
    house: House
    model: PrivateModel
    learning: PublicLearning
    told: dict[str, list[RoundLearned]] = field(default_factory=lambda: {name: [] for name in OWNERS})
    learners: dict[str, PrivateLearner] = field(default_factory=dict)
    teacher: Callable[..., TeachingParty] = TeachingParty
    learner: Callable[..., PrivateLearner] = PrivateLearner
    """What model owner and data owners are."""

    async def dealer(self, **changed: Any) -> None:
        learning = self.learning
        task = RoundsTask(words=sum_words(learning.public.sizes, learning.learning), rounds=learning.schedule.rounds)
        mode = changed.pop("mode", "active")
        terms = Proposal(
            # Against a server that lies, all three must answer.
            mode=mode, graph="auto", colluders=0, dropout=0.0 if mode == "active" else 0.34, threshold=0, clients=3,
            clip=1.0, value_bits=20, max_weight=1, train_seconds=PATIENCE, phase_seconds=PATIENCE,
        )  # fmt: skip
        summing = ServerSettings(
            address=LISTEN,
            keys=KEYS[DEALER],
            roster=roster_of_sums(ROSTER),
            configuration=configure_rounds(terms, changed.pop("task", task)),
            rounds=learning.schedule.rounds + 1,
            completed=0,
            smallest_cohort=2,
            join_seconds=PATIENCE,
            grace=0.5,
        )
        dealing = DealerSettings(address=LISTEN, keys=KEYS[DEALER], roster=ROSTER, patience=PATIENCE)
        log = self.house.logs.enter_context(EventFile(self.house.directory / "dealer.jsonl", DEALER))
        dealt, summed = (
            EventLog(log, lambda event, name=name: self.house.tell(name, event))  # type: ignore[misc]
            for name in (DEALER, SUMS)
        )
        sums = deal_and_sum(dealing, replace(summing, **changed), dealt=dealt, summed=summed)
        self.house.tasks[DEALER] = asyncio.ensure_future(sums)
        for name in (DEALER, SUMS):
            self.house.addresses[name] = (await self.house.waits(name, ListeningStarted)).address

    async def model_owner(self, address: str = LISTEN, **changed: Any) -> TeachingParty:
        settings = TeachingSettings(
            address=address,
            keys=KEYS[MODEL_OWNER],
            roster=ROSTER,
            dealer_address=self.house.addresses[DEALER],
            most_images=1 << 10,
            most_batch=self.learning.batch,
            learning=self.learning,
            opening=POLICY,
            patience=PATIENCE,
        )
        party = self.teacher(replace(settings, **changed), self.model, self.house.event_log(MODEL_OWNER))
        self.house.tasks[MODEL_OWNER] = asyncio.ensure_future(party.run())
        self.house.addresses[MODEL_OWNER] = (await self.house.waits(MODEL_OWNER, ListeningStarted)).address
        return party

    def learns(
        self, name: str, own: Owned, *, links: tuple[str, str] | None = None, **changed: Any
    ) -> asyncio.Task[Any]:
        """A data owner at work until the sums are over. links: where it finds model owner and dealer."""
        model_owner, dealer = links or (self.house.addresses[MODEL_OWNER], self.house.addresses[DEALER])
        learning, event_log = self.learning, self.house.event_log(name)
        owner = DataOwnerSettings(
            model_owner_address=model_owner,
            dealer_address=dealer,
            keys=KEYS[name],
            roster=ROSTER,
            patience=changed.pop("patience", PATIENCE),
            policy=InferencePolicy(audited=changed.pop("audited", 0)),
        )
        kept: Path | None = changed.pop("kept", None)
        last: Common | None = changed.pop("last", None)
        settings = LearnerSettings(
            owner=owner,
            batch=learning.batch,
            batches=learning.batches,
            rounds=learning.schedule.rounds,
            smallest_cohort=2,
            seed=(1, OWNERS.index(name)),
        )
        learner = self.learner(
            replace(settings, **changed),
            own.images,
            own.labels,
            event_log,
            last=last,
            kept=kept,
            on_round=self.told[name].append,
        )
        client = ClientSettings(
            address=self.house.addresses[SUMS],
            keys=KEYS[name],
            roster=roster_of_sums(ROSTER),
            policy=Policy(schemes=(SCHEME,), smallest_cohort=2, modes=("active", "semi-honest")),
            journal=JournalFile(self.house.directory / f"{name}-journal.jsonl"),
            patience=PATIENCE,
            grace=0.5,
        )
        self.learners[name] = learner

        async def work() -> Any:
            try:
                return await ClientParty(client, {SCHEME: SharesTask(learner)}, event_log).run()
            finally:
                closing = asyncio.ensure_future(learner.close())
                try:
                    await asyncio.shield(closing)
                except asyncio.CancelledError:
                    # A test that is over waits for it, or it would go on behind the house.
                    await closing
                    raise

        self.house.tasks[name] = asyncio.ensure_future(work())
        return self.house.tasks[name]

    async def over(self, *names: str) -> None:
        """Until these data owners, and the dealer's sums, have come to their ends in order."""
        async with asyncio.timeout(PATIENCE):
            for name in names:
                ended = await self.house.tasks[name]
                assert ended.code is None, ended

    def common(self, name: str) -> AdapterParameters:
        found = self.learners[name].common
        assert found is not None
        return found


@asynccontextmanager
async def adapting(directory: Path, model: PrivateModel, learning: PublicLearning) -> AsyncIterator[AdaptingHouse]:
    async with house(directory) as found:
        yield AdaptingHouse(found, model, learning)


STEP_ERROR = 2.0**-7
"""Of a step, relative to how far all parameters move (test_stages.py)."""
BLOCK_ERROR = 1e-3
"""Of what a block leaves, relative to it, and so of derivatives, which are products of two such values."""


@pytest.fixture(autouse=True)
def _no_long_farewells(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is meant for a party that is gone is given up sooner than in earnest."""
    monkeypatch.setattr(endpoint, "_LINGER_MS", 300)


def short(learning: PublicLearning, rounds: int = 2, batches: int = 2) -> PublicLearning:
    schedule = Schedule(rounds=rounds, learning_rate=0.05, decay_rounds=())
    return msgspec.structs.replace(learning, schedule=schedule, batches=batches)


@pytest.fixture(scope="module")
def learning(one_block: Transformer) -> PublicLearning:
    return short(made(one_block, PARALLEL))


@pytest.fixture(scope="module")
def owned(one_block: Transformer) -> dict[str, Owned]:
    """Images that the bounds of the model are for, a few each."""
    images = one_block.images
    parts = {name: images[6 * place : 6 * place + 6] for place, name in enumerate(OWNERS)}
    return {name: Owned(part, torch.arange(len(part)) % 3) for name, part in parts.items()}


def in_the_clear(
    model: Transformer,
    learning: PublicLearning,
    owned: Sequence[Owned],
    weights: Sequence[int] = (),
) -> list[AdapterParameters]:
    norm = FinalNorm.plain(learning.public.sizes.width, learning.epsilon)
    clients = [Features(outputs=block_outputs(model, own.images), labels=own.labels) for own in owned]
    work = FullBatches(learning.batch, learning.batches)
    return list(federated(learning.initial(), norm, clients, learning.schedule, work, seed=1, weights=weights))


def distance(one: AdapterParameters, other: AdapterParameters) -> float:
    parts = zip(one.tensors.values(), other.tensors.values(), strict=True)
    return sum((left - right).square().sum().item() for left, right in parts) ** 0.5


async def begun(found: AdaptingHouse, owned: dict[str, Owned], mode: str = "active", **changed: Any) -> None:
    await found.dealer(mode=mode)
    await found.model_owner(**changed)
    for name, own in owned.items():
        found.learns(name, own)


async def check_material(
    found: AdaptingHouse, learning: PublicLearning, name: str, passes: LearningPasses | None = None
) -> None:
    """Both owners and the dealer say of every batch, and of the session, what its requests come to."""
    bringing = [] if passes else [4, 2]
    passes = passes or LearningPasses(learning, len(bringing))
    batches = learning.schedule.rounds * learning.batches
    dealt = dict.fromkeys((MODEL_OWNER, name), 0)
    for number, images in enumerate(bringing + [4] * batches, 1):
        kind = BatchEnded if number > len(bringing) else ImagesKept
        sizes = material_bytes(passes.course(number), images, learning.public.sizes)
        assert min(sizes) > 0
        for owner, size in zip((MODEL_OWNER, name), sizes, strict=True):
            peer = {"peer": name} if owner == MODEL_OWNER else {}
            await found.house.waits(owner, kind, preprocessing_bytes=size, **peer)
            dealt[owner] += size
    await found.house.waits(DEALER, InferenceSessionEnded, peers=[MODEL_OWNER, name], preprocessing_bytes=dealt)


def check_learned(found: AdaptingHouse, model: Transformer, learning: PublicLearning, owned: dict[str, Owned]) -> None:
    """What was learned in every round is what is learned in the clear."""
    clear = in_the_clear(model, learning, list(owned.values()))
    for told, expected in zip(found.told["alice"], clear, strict=True):
        assert told.owners == 3
        assert told.counted.images == 3 * learning.batch * learning.batches
        moved = distance(expected, learning.initial())
        # Every step is off by its own error, and by what follows from where it begins, which is no more.
        bound = 2 * (STEP_ERROR + 2 * BLOCK_ERROR) * moved
        assert distance(told.parameters, expected) <= bound
