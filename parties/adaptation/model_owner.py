"""The model owner of double-blind adaptation as a party: data owners learn beside its model, and it sees nothing of
what they learn.

As in private inference it serves several data owners at a time, each in a session of its own. A pass is a step of
learning, on shares; what a round has taught is kept as this owner's share, and the shares of the survivors are added
and told once, when all of them have said the same of who survived (protocol/adaptation/sums.py).
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from tacit.parties.adaptation.federation import nothing, refreshed
from tacit.parties.adaptation.learning_passes import Batch, LearningPasses
from tacit.parties.adaptation.noise import NoisePolicy, SumNoise
from tacit.parties.adaptation.openings import Openings
from tacit.parties.adaptation.public import PublicLearning, learning_terms
from tacit.parties.adaptation.standing import Standing, zeros
from tacit.parties.inference.conversation import FOR_OWNER, Conversation, Worker
from tacit.parties.inference.model_owner import ModelOwnerParty, ModelOwnerSettings, mask_layers
from tacit.parties.inference.operations import MODEL
from tacit.parties.inference.passes import Preparation, hold_pass
from tacit.parties.inference.private_model import PrivateModel
from tacit.parties.inference.stages import input_share
from tacit.parties.session.diary import Diary
from tacit.protocol.adaptation.messages import ADAPTATION_MESSAGES, AdaptationTerms
from tacit.protocol.adaptation.model_owner import LearningModelOwner
from tacit.protocol.adaptation.sums import LARGEST_SUM, OpeningPolicy, sum_of_weights, weight_of
from tacit.protocol.adaptation.tables import RoundAsked, RoundKept, SumAsked
from tacit.protocol.core.messages import Kinds
from tacit.protocol.inference.model_owner import InferenceModelOwner
from tacit.protocol.inference.results import Agreed, PassAsked, PassBegun


@dataclass(frozen=True, kw_only=True)
class TeachingSettings(ModelOwnerSettings):
    """Everything a model owner needs beside its model, where others learn beside it."""

    learning: PublicLearning
    opening: OpeningPolicy
    openings: Path | None = None
    """The file that says which sums were told; None: in memory, until it ends."""
    least_count: int = 0
    """Data owners count by the images that they state, from so many on up to twice as many; 0: all count alike."""
    noise: NoisePolicy | None = None
    """On every sum that it tells; None: none."""


class SumNews:
    """To sessions that wait for a verdict: a share is kept, somebody has said who survived, or a round is lost."""


class TeachingParty(ModelOwnerParty):
    """Serves until it is cancelled. ValueError as of ModelOwnerParty, of Openings and of SumNoise."""

    KINDS: ClassVar[Kinds] = ADAPTATION_MESSAGES
    MACHINE: ClassVar[type[LearningModelOwner]] = LearningModelOwner

    def __init__(self, settings: TeachingSettings, model: PrivateModel, diary: Diary) -> None:
        self._teaching = settings
        _, heaviest = sum_of_weights(settings.opening.owners, settings.least_count)
        if heaviest > LARGEST_SUM:
            raise ValueError(
                f"{settings.opening.owners} data owners can have a weight of {heaviest} together, and {LARGEST_SUM} "
                "can be added: let fewer learn, or let all count alike"
            )
        opening, learning, noise = settings.opening, settings.learning, settings.noise
        added = None if noise is None else SumNoise(noise, learning, owners=opening.owners)
        self._openings = Openings(opening, settings.openings, noise=added)
        self._standings: defaultdict[str, Standing] = defaultdict(Standing)
        self._waiting: set[Conversation] = set()
        """Those in which a verdict is waited for."""
        super().__init__(settings, model, diary)

    def _terms(self) -> AdaptationTerms:
        own = self._teaching
        return learning_terms(
            self.model,
            own.learning,
            purpose="learning",
            results=own.results,
            most_images=own.most_images,
            rounds=own.opening.rounds,
            smallest_cohort=own.opening.smallest_cohort,
            least_count=own.least_count,
        )

    def _machine(self, peer: str) -> LearningModelOwner:
        own = self._teaching
        return self.MACHINE(
            peer,
            own.roster,
            terms=self._terms(),
            entropy=own.surroundings.entropy,
            patience=FOR_OWNER * own.patience,
            quota=own.quota,
            spent=self._ledger.of(peer),
            sums=self._openings.sums,
        )

    def _passes(self, agreed: Agreed) -> LearningPasses:
        """How it goes through the batches of a session."""
        return LearningPasses(self._teaching.learning)

    async def _session(self, conversation: Conversation, machine: InferenceModelOwner, model: PrivateModel) -> None:
        assert isinstance(machine, LearningModelOwner)
        agreed = await conversation.expect(Agreed)
        own, learning, peer, now = self._teaching, self._teaching.learning, machine.peer, conversation.now
        self.diary.write("agreed", peer=peer, images=agreed.images, session=agreed.session.hex()[:16])
        standing, worker = self._standings[peer], Worker()
        passes = self._passes(agreed)
        preparation = Preparation(
            conversation,
            learning.public.sizes,
            passes.course,
            rank=MODEL,
            ahead=own.ahead,
            device=own.device,
        )
        try:
            await mask_layers(conversation, machine, preparation, worker, model, own.device)
            # A share is kept before anything that was said after it is answered.
            while (asked := await conversation.next(RoundKept, SumAsked, RoundAsked, PassAsked)) is not None:
                if isinstance(asked, RoundKept):
                    weight = weight_of(self._openings.sums.counts[peer], own.least_count)
                    words = standing.learnt.words(weight, MODEL)
                    share = refreshed(words, zeros(asked.secret, words), MODEL)
                    self._openings.keep(peer, asked.number, share, weight)
                    self._tell_news()
                    self.diary.write("kept", peer=peer, round=asked.number, weight=weight)
                elif isinstance(asked, SumAsked):
                    reason = await self._verdict(conversation, asked.number)
                    data = None if reason else self._openings.opened(asked.number)
                    conversation.hear(machine.provide(asked.number, data, now(), reason))
                    self.diary.write("sum", peer=peer, round=asked.number, told=data is not None, detail=reason)
                elif isinstance(asked, RoundAsked):
                    self._openings.save()
                    standing.begin(asked.number, nothing(learning.sizes))
                    standing.resume(standing.latest(asked.done))
                    conversation.hear(machine.begin_round(standing.done, now()))
                else:
                    await self._batch(conversation, machine, preparation, worker, standing, passes)
        finally:
            await preparation.close()
            worker.close()

    async def _batch(
        self,
        conversation: Conversation,
        machine: LearningModelOwner,
        preparation: Preparation,
        worker: Worker,
        standing: Standing,
        passes: LearningPasses,
    ) -> None:
        # While this one comes to its end here, the data owner may already ask for the next.
        learning, number = self._teaching.learning, machine.number
        await preparation.ready()
        conversation.hear(machine.begin(self.model.commitment, time.time(), conversation.now()))
        await conversation.expect(PassBegun)
        share, learnt = input_share(learning.public, machine.agreed.images_of(number), None), standing.learnt
        batch = Batch(number=number, share=share, labels=None, rate=learning.rate(standing.number))
        found, _ = await hold_pass(conversation, preparation, worker, passes.begun(batch, learnt))
        material = preparation.over(number)
        standing.add(learnt if found is None else passes.ended(batch, learnt, found))
        self.diary.write(
            "batch",
            peer=machine.peer,
            round=standing.number,
            number=standing.done,
            refused=found is None,
            material=material,
        )

    async def _verdict(self, conversation: Conversation, number: int) -> str:
        """Wait until it is known whether the sum of a round may be told: empty, or why not. Whoever is silent for too
        long costs the round. InferenceError when the session ends before."""
        self._tell_news()
        openings, began = self._openings, conversation.now()
        self._waiting.add(conversation)
        try:
            async with asyncio.timeout(self._teaching.patience):
                while (verdict := openings.verdict(number)) is None:
                    await conversation.expect(SumNews)
        except TimeoutError:
            if (verdict := openings.verdict(number)) is None:
                verdict = openings.sums.give_up(number, began)
                self._tell_news()
        finally:
            self._waiting.remove(conversation)
        return verdict

    def _tell_news(self) -> None:
        for conversation in self._waiting:
            conversation.put(SumNews())
