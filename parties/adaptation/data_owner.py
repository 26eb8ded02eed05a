"""The data owner in double-blind adaptation: trains adapters on its images beside a model that it does not receive.

It is a client in two sessions. In the session of sums with the dealer it is asked for an update in every round
(`SharesTask`). It computes that update batch by batch in a session with the model owner (`PrivateLearner`). Its images
pass the blocks once at the beginning, and both owners keep shares of the blocks' outputs (kept.py). In a round it opens
the last sum, which yields the common parameters, trains on batches that it draws from its images, and submits its
refreshed share to the sum. It reopens lost sessions with the model owner, and resumes behind the last batch.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import ClassVar, Final

import numpy as np
import torch

from tacit.models.adapters.configuration import Weights
from tacit.models.adapters.federated import FullBatches, Order
from tacit.models.adapters.parallel import AdapterParameters
from tacit.models.interruption import Proceed
from tacit.parties.adaptation.events import (
    AdaptersUpdated,
    BatchEnded,
    ImagesKept,
    LearningRoundLost,
    LearningSessionLost,
    LearningSessionOpened,
)
from tacit.parties.adaptation.kept import KeptShares
from tacit.parties.adaptation.learning_passes import Batch, LearningPasses
from tacit.parties.adaptation.public import PublicLearning, learning_of
from tacit.parties.adaptation.rounds import (
    RoundsTask,
    SharesSum,
    contribution,
    mean_of,
    read_rounds_task,
    read_sum,
    refreshed,
    shares_of_known,
)
from tacit.parties.adaptation.stages import CollectedCarried
from tacit.parties.adaptation.standing import COUNTS, Common, Counted, Standing, zeros
from tacit.parties.inference.conversation import FOR_OWNER, RECONNECT_SECONDS, Conversation, InferenceError, Worker
from tacit.parties.inference.data_owner import DataOwnerSettings, PassCosts, conversing, masked_layers
from tacit.parties.inference.model import PublicModel
from tacit.parties.inference.operations import DATA
from tacit.parties.inference.passes import Preparation, hold_pass
from tacit.parties.inference.stages import input_share
from tacit.parties.links.endpoint import EndpointError
from tacit.parties.protections.sides import TaskError
from tacit.parties.session.event_log import EventLog
from tacit.parties.session.task import ClientTask, Contribution, RoundWork
from tacit.protocol.adaptation.data_owner import LearningDataOwner, adaptation_terms
from tacit.protocol.adaptation.schedule import REFUSED
from tacit.protocol.adaptation.states import LearningAgreed, RoundAnswered, SumTold
from tacit.protocol.adaptation.sums import sum_of_weights, weight_of
from tacit.protocol.core.errors import Code
from tacit.protocol.core.machine import Trigger
from tacit.protocol.core.messages import LARGEST_COHORT
from tacit.protocol.inference.data_owner import InferenceRequest
from tacit.protocol.inference.results import Agreed, PassBegun

RETRYABLE: Final = (Code.LEFT, Code.TIMEOUT, Code.LOCAL)
"""Ends of a session with the model owner after which another one may succeed."""


@dataclass(frozen=True, kw_only=True)
class LearnerSettings:
    owner: DataOwnerSettings
    batch: int
    """Images of a batch; the model owner's terms must say the same."""
    batches: int
    rounds: int
    smallest_cohort: int
    """Smallest number of data owners in a sum it joins, not counting those that may collude."""
    weights: Weights = "equal"
    """Weighting of data owners: equal, or by their numbers of images, which they then disclose."""
    seed: tuple[int, int] | None = None
    """Seed and data owner number for the order of the images; None: a seed derived from the images, so that it is the
    same after a restart."""


@dataclass(frozen=True)
class RoundLearned:
    round: int
    parameters: AdapterParameters
    """The common parameters from now on, float64."""
    owners: int
    """Number of data owners in the mean."""
    counted: Counted
    refused: int = field(repr=False)
    refused_batches: int | None = None
    """Total over all rounds and owners, after the last round. None before, and if this owner missed a sum."""


@dataclass(frozen=True)
class _Session:
    conversation: Conversation
    machine: LearningDataOwner
    agreed: Agreed
    learning: PublicLearning
    passes: LearningPasses
    preparation: Preparation
    worker: Worker
    kept: KeptShares | None
    """None if nothing is kept."""


class PrivateLearner:
    """The training state of a data owner, and its session with the model owner.

    images: float32 [N, C, S, S], as the model takes them; labels: int64 [N]; last: common parameters of an earlier
    process; terms: the digest of the terms agreed on then, empty for none; kept: the folder of kept shares, None for
    memory; on_round: called with the results of every round; on_batch: called with the costs of every batch. ValueError
    for images that cannot form a batch."""

    MACHINE: ClassVar[type[LearningDataOwner]] = LearningDataOwner

    def __init__(
        self,
        settings: LearnerSettings,
        images: torch.Tensor,
        labels: torch.Tensor,
        event_log: EventLog,
        *,
        last: Common | None = None,
        terms: bytes = b"",
        kept: Path | None = None,
        on_round: Callable[[RoundLearned], None] = lambda results: None,
        on_batch: Callable[[PassCosts], None] = lambda costs: None,
    ) -> None:
        if len(images) < settings.batch:
            raise ValueError(
                f"{settings.owner.keys.name} has {len(images)} images, and a batch takes {settings.batch}: give it "
                "more, or lower adaptation.batch"
            )
        self.common: AdapterParameters | None
        """Float64; None before the first session."""
        self.based: int
        """Round whose sum gave the common parameters; 0: the initial ones."""
        self.common, self.based, self._refused = last or (None, 0, 0)
        self._settings = settings
        self._images, self._labels = images, labels
        self._count = len(images) if settings.weights == "counts" else 0
        self._event_log = event_log
        self._on_round = on_round
        self._on_batch = on_batch
        self._standing = Standing()
        bound = sha256(images.numpy().tobytes() + labels.numpy().tobytes()).digest()
        path = None if kept is None else kept / f"{settings.owner.roster.server.name}.shares"
        self._kept = KeptShares(path, bound=bound)
        self._seed = settings.seed or (int.from_bytes(bound[:8], "big"), 0)
        self._used = self._trained_indices()
        """Indices of the images that batches are drawn from, in rising order: these pass the blocks."""
        self._exit = AsyncExitStack()
        self._session: _Session | None = None
        self._conversation: Conversation | None = None
        """Conversation of the session, also while it is being opened."""
        self._terms = terms
        """Digest of the terms of its training so far."""

    async def learn(self, round: int, last: SharesSum | None, survivors: tuple[str, ...]) -> torch.Tensor:
        """Train one round and return this owner's share of the update for the sum: int64 [n].

        last: the data owners' last sum; survivors: the data owners in it, if this one was present. TaskError for values
        that differ from the agreed ones."""
        while True:
            try:
                session = await self._opened()
                await self._pass_images(session)
                await self._take_up(session, last, survivors)
                return await self._round(session, round)
            except (InferenceError, EndpointError) as error:
                await self._leave()
                code = error.code if isinstance(error, InferenceError) else Code.LEFT
                if code not in RETRYABLE:
                    raise TaskError(str(error)) from error
                self._event_log.write(LearningSessionLost(code=code.name, detail=str(error)))
            except BaseException as error:
                # In the middle of a batch this session cannot be resumed.
                if self._conversation is not None:
                    self._conversation.fail(error)
                await self._leave()
                raise
            await asyncio.sleep(RECONNECT_SECONDS)

    async def hear_last(self, last: SharesSum | None, survivors: tuple[str, ...]) -> None:
        """Open the sum of the last round. TaskError as in `learn`."""
        try:
            await self._take_up(await self._opened(), last, survivors)
        except (InferenceError, EndpointError) as error:
            raise TaskError(f"the last round's sum was not revealed: {error}") from error

    async def close(self) -> None:
        """Close the session, in order if it is between two batches."""
        session = self._session
        if session is not None and session.machine.admits(Trigger.FINISH):
            session.conversation.hear(session.machine.finish(session.conversation.now()))
            try:
                await session.conversation.closed()
            except InferenceError as error:
                code = error.code.name if error.code else None
                self._event_log.write(LearningSessionLost(code=code, detail=str(error)))
        await self._leave()

    async def _leave(self) -> None:
        self._session = self._conversation = None
        await self._exit.aclose()

    async def _opened(self) -> _Session:
        if self._session is not None and self._session.conversation.ended is None:
            return self._session
        await self._leave()
        own = self._settings.owner
        machine = self._machine(self._request())
        conversation = await self._exit.enter_async_context(conversing(own, machine))
        self._conversation = conversation
        conversation.hear(machine.start(conversation.now()))
        agreed: Agreed = await conversation.expect(LearningAgreed if machine.KEEPS else Agreed)
        try:
            learning = learning_of(adaptation_terms(agreed.terms))
            self._check(learning, agreed)
        except ValueError as error:
            conversation.refuse(f"what it offers is not usable: {error}")
        self._terms = agreed.digest
        if self.common is None:
            self.common = learning.initial()
        worker = Worker()
        self._exit.callback(worker.close)
        sizes = learning.public.sizes
        kept = self._kept if machine.keeps else None
        if kept is not None:
            kept.resumed(learning.sizes.kept, machine.session, machine.learning_agreed.kept)
        passes = self._passes(agreed, learning)
        preparation = Preparation(
            conversation,
            sizes,
            passes.course,
            rank=DATA,
            ahead=own.ahead,
            device=own.device,
        )
        self._exit.push_async_callback(preparation.close)
        octets = 0
        if kept is None or machine.learning_agreed.keeping:
            octets = await masked_layers(conversation, preparation, sizes, own.device)
        else:
            await preparation.without_layers()
        self._event_log.write(LearningSessionOpened(peer=agreed.peer, images=agreed.images, weights_bytes=octets))
        self._session = _Session(conversation, machine, agreed, learning, passes, preparation, worker, kept)
        return self._session

    def _request(self) -> InferenceRequest:
        return InferenceRequest(
            images=len(self._used),
            batch=self._settings.batch,
            channels=self._images.shape[1],
            side=self._images.shape[-1],
        )

    def _machine(self, request: InferenceRequest) -> LearningDataOwner:
        own = self._settings.owner
        return self.MACHINE(
            own.keys.name,
            own.roster,
            request=request,
            policy=own.policy,
            patience=FOR_OWNER * own.patience,
            spent=own.spent,
            purpose="learning",
            smallest_cohort=self._settings.smallest_cohort,
            steps=self._settings.batches * self._settings.rounds,
            kept=self._kept.record,
            count=self._count,
            entropy=own.hooks.entropy,
        )

    def _passes(self, agreed: Agreed, learning: PublicLearning) -> LearningPasses:
        assert isinstance(agreed, LearningAgreed)
        return LearningPasses(learning, agreed.keeping)

    def _check(self, learning: PublicLearning, agreed: Agreed) -> None:
        """Raise ValueError for terms that differ from those of the experiment or of the previous session."""
        if self._terms not in (b"", agreed.digest):
            raise ValueError("other terms than those by which this data owner has learned so far")
        own, said = (self._settings.batches, self._settings.rounds), (learning.batches, learning.schedule.rounds)
        if own != said:
            raise ValueError(f"{said[1]} rounds of {said[0]} batches; here there are {own[1]} of {own[0]}")
        if not 0 <= int(self._labels.min()) <= int(self._labels.max()) < learning.classes:
            raise ValueError(
                f"a head of {learning.classes} classes, and the labels here reach from {int(self._labels.min())} to "
                f"{int(self._labels.max())}"
            )

    async def _take_up(self, session: _Session, last: SharesSum | None, survivors: tuple[str, ...]) -> None:
        """Open the last sum, if that is not done, which yields the common parameters."""
        if last is None or last.round <= self.based:
            return
        conversation, learning = session.conversation, session.learning
        conversation.hear(session.machine.ask_sum(last.round, survivors, conversation.now()))
        revealed = await conversation.expect(SumTold)
        if revealed.data is None:
            self._event_log.write(LearningRoundLost(round=revealed.number, detail=revealed.reason))
            return
        words = torch.frombuffer(revealed.data, dtype=torch.int64)
        total = last.words + words
        images = last.owners * learning.batches * learning.batch
        counted = Counted.of(total[-COUNTS:], classes=learning.classes, images=images)
        least, most = sum_of_weights(last.owners, adaptation_terms(session.agreed.terms).least_count)
        if not least <= counted.weight <= most:
            raise TaskError(
                f"the sums of round {last.round} do not fit each other: a weight of {counted.weight} over "
                f"{last.owners} data owners, which is from {least} to {most}"
            )
        self.common, self.based = mean_of(total[:-COUNTS], counted.weight, learning.sizes), last.round
        # The model owner reveals its share of the refused batches of all rounds with the last.
        shares = torch.tensor(self._refused) + last.words[REFUSED]
        self._refused, refused = int(shares), int(shares + words[REFUSED])
        known = (
            last.round == learning.schedule.rounds and 0 <= refused <= last.round * learning.batches * LARGEST_COHORT
        )
        self._on_round(
            RoundLearned(last.round, self.common, last.owners, counted, self._refused, refused if known else None)
        )
        self._event_log.write(
            AdaptersUpdated(
                round=last.round,
                owners=last.owners,
                images=counted.images,
                train_loss=counted.loss,
                train_accuracy=counted.accuracy,
                refused_batches=refused if known else None,
            )
        )

    async def _pass_images(self, session: _Session) -> None:
        """Pass the remaining images through the blocks, and keep shares of the outputs."""
        conversation, machine, preparation, kept = (
            session.conversation,
            session.machine,
            session.preparation,
            session.kept,
        )
        if kept is None:
            return
        agreed = machine.learning_agreed
        while machine.number < agreed.keeping:
            began, first = time.perf_counter(), kept.record.last[0]
            chosen = torch.from_numpy(self._used[first : first + agreed.images_of(machine.number + 1)])
            share = await session.worker(self._share, session.learning.public, chosen)
            await self._begun(session)
            ready = time.perf_counter()
            found, costs = await hold_pass(conversation, preparation, session.worker, CollectedCarried(share))
            assert isinstance(found, CollectedCarried)
            material = preparation.over(machine.number)
            await session.worker(kept.keep, machine.session, machine.number, found.outputs, found.outside)
            self._event_log.write(
                ImagesKept(
                    images=kept.record.last[0],
                    of=agreed.images,
                    preprocessing_wait_seconds=ready - began,
                    seconds=time.perf_counter() - ready,
                    sent=sum(cost.sent for cost in costs),
                    received=sum(cost.received for cost in costs),
                    openings=len(costs),
                    preprocessing_bytes=material,
                )
            )

    async def _begun(self, session: _Session) -> None:
        conversation, preparation = session.conversation, session.preparation
        await preparation.ready()
        conversation.hear(session.machine.ask(time.time(), conversation.now()))
        await preparation.audit()
        await conversation.expect(PassBegun)

    async def _round(self, session: _Session, round: int) -> torch.Tensor:
        conversation, machine, standing = session.conversation, session.machine, self._standing
        assert self.common is not None
        standing.begin(round, shares_of_known(self.common))
        conversation.hear(machine.begin_round(round, self.based, standing.done, conversation.now()))
        standing.resume(standing.latest((await conversation.expect(RoundAnswered)).done))
        batches = self._batches(round)
        while standing.done < self._settings.batches:
            await self._batch(session, round, batches[standing.done])
        weight = weight_of(self._count, adaptation_terms(session.agreed.terms).least_count)
        words = standing.learnt.words(weight, DATA)
        secret, said = machine.keep_round(round, conversation.now())
        conversation.hear(said)
        await conversation.sent()
        return refreshed(words, zeros(secret, words), DATA)

    def _batches(self, round: int) -> list[Order]:
        generator = np.random.default_rng([self._seed[0], round, self._seed[1]])
        work = FullBatches(self._settings.batch, self._settings.batches)
        return list(work.batches(len(self._images), generator))

    def _trained_indices(self) -> Order:
        """Indices of the images that batches are drawn from: all of them, if there are as many draws."""
        own, count = self._settings, len(self._images)
        if own.batch * own.batches * own.rounds >= count:
            return np.arange(count)
        return np.unique(np.concatenate([each for round in range(own.rounds) for each in self._batches(round + 1)]))

    def _brought(self, number: int, order: Order) -> Order:
        """Indices of the images in the pass of this number, whose batch has these."""
        return order

    def _share(self, public: PublicModel, chosen: torch.Tensor) -> torch.Tensor:
        return input_share(public, len(chosen), self._images[chosen])

    async def _batch(self, session: _Session, round: int, order: Order) -> None:
        conversation, preparation, machine, kept = (
            session.conversation,
            session.preparation,
            session.machine,
            session.kept,
        )
        chosen, began = torch.from_numpy(self._brought(machine.number + 1, order)), time.perf_counter()
        outside = torch.zeros((), dtype=torch.int64)
        if kept is None:
            share = await session.worker(self._share, session.learning.public, chosen)
        else:
            rows = np.searchsorted(self._used, chosen.numpy()).tolist()
            share, outside = await session.worker(kept.batch, rows)
            await session.worker(kept.use)
            conversation.hear(machine.choose(tuple(rows), conversation.now()))
        await self._begun(session)
        ready = time.perf_counter()
        number, learnt = machine.number, self._standing.learnt
        batch = Batch(
            number=number,
            share=share,
            outside=outside,
            labels=self._labels[chosen],
            rate=session.learning.rate(round),
        )
        begun = session.passes.begun(batch, learnt)
        found, costs = await hold_pass(conversation, preparation, session.worker, begun)
        material = preparation.over(number)
        self._standing.add(await session.worker(session.passes.ended, batch, learnt, found))
        spent = PassCosts(len(order), ready - began, time.perf_counter() - ready, tuple(costs), found is None)
        self._event_log.write(
            BatchEnded(
                round=round,
                number=self._standing.done,
                preprocessing_wait_seconds=spent.offline_seconds,
                seconds=spent.online_seconds,
                sent=sum(cost.sent for cost in costs),
                received=sum(cost.received for cost in costs),
                openings=len(costs),
                preprocessing_bytes=material,
            )
        )
        self._on_batch(spent)


class SharesTask(ClientTask):
    """A data owner's task in the sums: its shares of the adapters. The caller closes the session of `learner`.

    expected: the task required of the dealer; None: any."""

    def __init__(self, learner: PrivateLearner, *, expected: RoundsTask | None = None) -> None:
        self._learner = learner
        self._expected = expected

    async def contribute(self, work: RoundWork, proceed: Proceed) -> Contribution:
        task, last = read_rounds_task(work.configuration), read_sum(work.state)
        if self._expected is not None:
            task.check(self._expected)
        opened, survivors = work.opened
        survivors = survivors if last is not None and opened == last.round else ()
        if work.round > task.rounds:
            await self._learner.hear_last(last, survivors)
            share = torch.zeros(task.words, dtype=torch.int64)
        else:
            share = await self._learner.learn(work.round, last, survivors)
        return Contribution(contribution(work.configuration, share))
