"""The model owner of double-blind adaptation: data owners train beside its model, and it learns nothing of the result.

As in private inference it serves several data owners at a time, each in its own session. Images pass the blocks once,
and both owners keep shares of the outputs (kept.py); every other pass is a training step on shares. The model owner
keeps its share of each data owner's round. It adds the shares of the survivors, and reveals the sum once, when all
survivors have sent the same list of survivors (protocol/adaptation/sums.py).

The sum of a round is persisted before anybody receives it, with the number of sums revealed before: so a restarted
model owner reveals no other sum of that round, and no more sums than its policy permits. Each data owner that trains or
receives a sum is persisted before it is answered, so that restarts admit no more of them than the policy permits. Noise
is drawn once per round, and persisted with the sum. Shares of a round that is not summed yet are in memory alone; a
crash loses that round and no more.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

import msgspec
import torch
from msgspec import Meta

from tacit.models.file_system import FILES, replace_file
from tacit.parties.adaptation.events import BatchEnded, ImagesKept, RoundSaved, SumRevealed
from tacit.parties.adaptation.kept import KeptShares
from tacit.parties.adaptation.learning_passes import Batch, LearningPasses
from tacit.parties.adaptation.noise import NoisePolicy, SumNoise
from tacit.parties.adaptation.public import PublicLearning, learning_terms
from tacit.parties.adaptation.rounds import nothing, refreshed
from tacit.parties.adaptation.stages import CollectedCarried
from tacit.parties.adaptation.standing import Standing, zeros
from tacit.parties.inference.conversation import Conversation, Worker
from tacit.parties.inference.events import TermsAgreed
from tacit.parties.inference.model_owner import ModelOwnerParty, ModelOwnerSettings, mask_layers
from tacit.parties.inference.operations import MODEL
from tacit.parties.inference.passes import Preparation, hold_pass
from tacit.parties.inference.private_model import PrivateModel
from tacit.parties.inference.stages import input_share
from tacit.parties.session.event_log import EventLog
from tacit.protocol.adaptation.messages import ADAPTATION_MESSAGES, AdaptationTerms
from tacit.protocol.adaptation.model_owner import LearningModelOwner
from tacit.protocol.adaptation.schedule import REFUSED
from tacit.protocol.adaptation.states import LearningAgreed, RoundAsked, RoundKept, SumAsked
from tacit.protocol.adaptation.sums import LARGEST_SUM, OpeningPolicy, RoundSums, sum_of_weights, weight_of
from tacit.protocol.core.messages import Kinds
from tacit.protocol.inference.model_owner import InferenceModelOwner
from tacit.protocol.inference.results import Agreed, PassAsked, PassBegun

_Number = Annotated[int, Meta(ge=0, le=2**31)]


class _OpeningsState(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    opened: _Number = 0
    current: _Number = 0
    survivors: tuple[str, ...] = ()
    owners: frozenset[str] = frozenset()
    counts: dict[str, _Number] = {}
    spent: Annotated[float, Meta(ge=0.0)] = 0.0
    """Privacy cost of the revealed sums by their noise; infinite if one had none."""
    refused: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] = 0
    """Sum of its shares of the number of refused batches, over all revealed rounds."""
    words: bytes = b""


class Openings:
    """Sums that the model owner may reveal.

    path: the file, 0600; None: memory alone; noise: for every sum; last: the last round, with which the share of the
    refused batches is revealed. ValueError for an invalid file, or a noise budget too small for the training."""

    def __init__(
        self, policy: OpeningPolicy, path: Path | None = None, *, noise: SumNoise | None = None, last: int = 0
    ) -> None:
        self._path, self._noise, self._last = path, noise, last
        kept = _OpeningsState()
        if path is not None:
            try:
                kept = msgspec.msgpack.decode(FILES.read(path), type=_OpeningsState)
            except FileNotFoundError:
                pass
            except msgspec.MsgspecError as error:
                raise ValueError(
                    f"{path} does not say which sums were told ({error}): restore it; without it more rounds than the "
                    "policy allows would be opened"
                ) from None
        if (
            noise is not None
            and (most := noise.rounds(policy.rounds, opened=kept.opened, spent=kept.spent)) < policy.rounds
        ):
            policy = replace(policy, rounds=most, because="as its budget of noise has room for")
        self.sums = RoundSums(
            policy,
            opened=kept.opened,
            current=kept.current,
            survivors=kept.survivors,
            owners=set(kept.owners),
            counts=dict(kept.counts),
        )
        """Decides when a sum may be revealed."""
        self._kept = kept
        """Content of the file."""
        self._shares: dict[tuple[str, int], tuple[torch.Tensor, int]] = {}
        """By data owner and round, with its weight: the last round that it ended, and any final one."""

    def keep(self, owner: str, number: int, words: torch.Tensor, weight: int = 1) -> None:
        """Keep the model owner's share of a data owner's round, int64 [n], times its weight.

        It replaces an earlier round that no sum waits for, so that ending many rounds takes no additional memory. Only
        the round that the data owner ended last, or a final one, is kept."""
        if number in (final := self.sums.current, self.sums.kept.get(owner)):
            for name, round in [*self._shares]:
                if name == owner and round != final:
                    del self._shares[name, round]
            self._shares[owner, number] = words, weight

    def verdict(self, number: int) -> str | None:
        """As `RoundSums.verdict`; None also while a share of the final round is missing: RoundSums knows of it from the
        session, which may still be computing it."""
        verdict = self.sums.verdict(number)
        missing = [name for name in self.sums.survivors if self._shares.get((name, number)) is None]
        return None if verdict == "" and missing and number != self._kept.current else verdict

    @property
    def spent(self) -> float:
        return self._kept.spent

    def save(self) -> None:
        """Persist which data owners train or request a sum, before answering them. OSError if that fails."""
        self._write(self._kept)

    def opened(self, number: int) -> bytes:
        """Return the sum of a round that may be revealed, 8 bytes a word, after persisting it with all its recipients,
        this one included. OSError if it cannot be persisted."""
        sums, kept = self.sums, self._kept
        if number == kept.current:
            self.save()
        else:
            shares, weights = zip(*(self._shares[name, number] for name in sums.survivors), strict=True)
            total = torch.stack(shares).sum(0)
            if self._noise is not None:
                total += self._noise.words(sum(weights), len(weights))
            refused = int(total[REFUSED] + kept.refused)
            total[REFUSED] = refused if number == self._last else 0
            summed = _OpeningsState(
                opened=sums.opened,
                current=number,
                survivors=sums.survivors,
                spent=kept.spent + (math.inf if self._noise is None else self._noise.cost),
                refused=refused,
                words=total.numpy().astype("<i8").tobytes(),
            )
            self._write(summed)
            self._shares = {key: share for key, share in self._shares.items() if key[1] > number}
        return self._kept.words

    def _write(self, kept: _OpeningsState) -> None:
        """Replace the file's content by this state, with all current owners, if that differs."""
        kept = msgspec.structs.replace(kept, owners=frozenset(self.sums.owners), counts=dict(self.sums.counts))
        if kept != self._kept:
            if self._path is not None:
                replace_file(self._path, msgspec.msgpack.encode(kept))
            self._kept = kept


@dataclass(frozen=True, kw_only=True)
class TeachingSettings(ModelOwnerSettings):
    learning: PublicLearning
    opening: OpeningPolicy
    openings: Path | None = None
    """File of the revealed sums; None: in memory, until the process ends."""
    kept: Path | None = None
    """Folder of kept shares; None: in memory, until the process ends."""
    least_count: int = 0
    """Data owners are weighted by their stated numbers of images, from this one to twice as many; 0: equal weights."""
    noise: NoisePolicy | None = None


class SumNews:
    """Wakes sessions that wait for a verdict: a share was kept, survivors were reported, or a round was lost."""


class TeachingParty(ModelOwnerParty):
    """Serve until cancelled. ValueError as for ModelOwnerParty, Openings and SumNoise."""

    KINDS: ClassVar[Kinds] = ADAPTATION_MESSAGES
    MACHINE: ClassVar[type[LearningModelOwner]] = LearningModelOwner
    model: PrivateModel

    def __init__(self, settings: TeachingSettings, model: PrivateModel, event_log: EventLog) -> None:
        self._teaching = settings
        _, heaviest = sum_of_weights(settings.opening.owners, settings.least_count)
        if heaviest > LARGEST_SUM:
            raise ValueError(
                f"{settings.opening.owners} data owners can have a weight of {heaviest} together, and {LARGEST_SUM} "
                "can be added: let fewer learn, or let all count alike"
            )
        opening, learning, noise = settings.opening, settings.learning, settings.noise
        added = None if noise is None else SumNoise(noise, learning, owners=opening.owners)
        self._openings = Openings(opening, settings.openings, noise=added, last=learning.schedule.rounds)
        self._standings: defaultdict[str, Standing] = defaultdict(Standing)
        self._kept: dict[str, KeptShares] = {}
        self._waiting: set[Conversation] = set()
        """Conversations that wait for a verdict."""
        super().__init__(settings, model, event_log)

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
            audited=own.audited,
        )

    def _arguments(self, peer: str) -> dict[str, Any]:
        return {"sums": self._openings.sums, "kept": self._kept_of(peer).record}

    def _kept_of(self, peer: str) -> KeptShares:
        if peer not in self._kept:
            own = self._teaching
            path = None if own.kept is None else own.kept / f"{peer}.shares"
            self._kept[peer] = KeptShares(path, bound=own.roster.hash)
        return self._kept[peer]

    def _passes(self, agreed: Agreed) -> LearningPasses:
        assert isinstance(agreed, LearningAgreed)
        return LearningPasses(self._teaching.learning, agreed.keeping)

    async def _session(self, conversation: Conversation, machine: InferenceModelOwner, model: PrivateModel) -> None:
        assert isinstance(machine, LearningModelOwner)
        agreed: Agreed = await conversation.expect(LearningAgreed if machine.KEEPS else Agreed)
        own, learning, peer, now = self._teaching, self._teaching.learning, machine.peer, conversation.now
        session = agreed.session.hex()[:16]
        self.event_log.write(TermsAgreed(peer=peer, images=agreed.images, batch=agreed.batch, session=session))
        standing, worker, kept = self._standings[peer], Worker(), self._kept_of(peer) if machine.keeps else None
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
            if kept is not None:
                kept.resumed(learning.sizes.kept, agreed.session, machine.learning_agreed.kept)
            if kept is None or machine.learning_agreed.keeping:
                await mask_layers(conversation, machine, preparation, worker, model, own.device)
            else:
                await preparation.without_layers()
            # A share is kept before any later message is answered.
            while (asked := await conversation.next(RoundKept, SumAsked, RoundAsked, PassAsked)) is not None:
                if isinstance(asked, RoundKept):
                    weight = weight_of(self._openings.sums.counts[peer], own.least_count)
                    words = standing.learnt.words(weight, MODEL)
                    share = refreshed(words, zeros(asked.secret, words), MODEL)
                    self._openings.keep(peer, asked.number, share, weight)
                    self._notify_waiting()
                    self.event_log.write(RoundSaved(peer=peer, round=asked.number, weight=weight))
                elif isinstance(asked, SumAsked):
                    reason = await self._verdict(conversation, asked.number)
                    data = None if reason else self._openings.opened(asked.number)
                    conversation.hear(machine.provide(asked.number, data, now(), reason))
                    revealed = data is not None
                    self.event_log.write(SumRevealed(peer=peer, round=asked.number, revealed=revealed, detail=reason))
                elif isinstance(asked, RoundAsked):
                    self._openings.save()
                    standing.begin(asked.number, nothing(learning.sizes))
                    standing.resume(standing.latest(asked.done))
                    conversation.hear(machine.begin_round(standing.done, now()))
                elif kept is not None and machine.brings(machine.number):
                    await self._keep(conversation, machine, preparation, worker, kept)
                else:
                    await self._batch(conversation, machine, preparation, worker, standing, passes, kept)
        finally:
            await preparation.close()
            worker.close()

    async def _begun(self, conversation: Conversation, machine: LearningModelOwner, preparation: Preparation) -> None:
        await preparation.ready()
        await preparation.audit()
        conversation.hear(machine.begin(self.model.commitment, time.time(), conversation.now()))
        await conversation.expect(PassBegun)

    async def _keep(
        self,
        conversation: Conversation,
        machine: LearningModelOwner,
        preparation: Preparation,
        worker: Worker,
        kept: KeptShares,
    ) -> None:
        # While this pass ends here, the data owner may already request the next.
        number, agreed = machine.number, machine.learning_agreed
        await self._begun(conversation, machine, preparation)
        begun = CollectedCarried(input_share(self._teaching.learning.public, agreed.images_of(number), None))
        found, _ = await hold_pass(conversation, preparation, worker, begun)
        assert isinstance(found, CollectedCarried)
        material = preparation.over(number)
        await worker(kept.keep, machine.session, number, found.outputs, found.outside)
        self.event_log.write(
            ImagesKept(peer=machine.peer, images=kept.record.last[0], of=agreed.images, preprocessing_bytes=material)
        )

    async def _batch(
        self,
        conversation: Conversation,
        machine: LearningModelOwner,
        preparation: Preparation,
        worker: Worker,
        standing: Standing,
        passes: LearningPasses,
        kept: KeptShares | None,
    ) -> None:
        # See _keep.
        learning, number, learnt = self._teaching.learning, machine.number, standing.learnt
        outside = torch.zeros((), dtype=torch.int64)
        if kept is None:
            share = input_share(learning.public, machine.agreed.images_of(number), None)
        else:
            share, outside = await worker(kept.batch, machine.chosen)
            await worker(kept.use)
        await self._begun(conversation, machine, preparation)
        batch = Batch(number=number, share=share, outside=outside, labels=None, rate=learning.rate(standing.number))
        found, _ = await hold_pass(conversation, preparation, worker, passes.begun(batch, learnt))
        material = preparation.over(number)
        standing.add(passes.ended(batch, learnt, found))
        self.event_log.write(
            BatchEnded(
                peer=machine.peer,
                round=standing.number,
                number=standing.done,
                preprocessing_bytes=material,
            )
        )

    async def _verdict(self, conversation: Conversation, number: int) -> str:
        """Wait for the verdict on a round's sum: empty, or the reason of a refusal. A data owner that is silent for too
        long costs the round. InferenceError if the session ends before."""
        self._notify_waiting()
        openings, began = self._openings, conversation.now()
        self._waiting.add(conversation)
        try:
            async with asyncio.timeout(self._teaching.patience):
                while (verdict := openings.verdict(number)) is None:
                    await conversation.expect(SumNews)
        except TimeoutError:
            if (verdict := openings.verdict(number)) is None:
                verdict = openings.sums.give_up(number, began)
                self._notify_waiting()
        finally:
            self._waiting.remove(conversation)
        return verdict

    def _notify_waiting(self) -> None:
        for conversation in self._waiting:
            conversation.put(SumNews())
