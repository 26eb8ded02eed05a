"""The model owner of double-blind adaptation: data owners learn beside its model, and it sees nothing of the result.

As in private inference it serves several data owners at a time, each in a session of its own. Images pass the blocks
once, and both owners keep shares of what the blocks leave (kept.py); every other pass is a step of learning, on shares.
The model owner keeps its share of each data owner's round; the shares of the survivors are added,
and the sum is revealed once, when all of them have sent the same list of survivors (protocol/adaptation/sums.py).

The sum of a round is on the disk before anybody receives it, with the number of sums revealed before: so a restarted
model owner reveals no other sum of that round, and no more sums than its policy has. Each data owner that learns or
receives a sum is on the disk before it is answered, so that restarts admit no more of them than the policy has. Noise
is drawn once for a round, and persisted with the sum. Shares of a round that is not summed yet are in memory alone;
with them the round is lost, no more.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar

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
from tacit.parties.inference.conversation import FOR_OWNER, Conversation, Worker
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


class _Kept(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    opened: _Number = 0
    current: _Number = 0
    survivors: tuple[str, ...] = ()
    owners: frozenset[str] = frozenset()
    counts: dict[str, _Number] = {}
    spent: Annotated[float, Meta(ge=0.0)] = 0.0
    """What the sums told cost, by the account of their noise: infinite if one had none."""
    refused: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] = 0
    """The sum of its shares of how many batches were refused, over all rounds told."""
    words: bytes = b""


class Openings:
    """path: of the file, 0600; None: in memory alone; noise: on every sum; last: the last round of the learning, with
    which its share of the refused batches is revealed. ValueError for a file that is none, and for
    a budget of noise that has no room for what is to be learned."""

    def __init__(
        self, policy: OpeningPolicy, path: Path | None = None, *, noise: SumNoise | None = None, last: int = 0
    ) -> None:
        self._path, self._noise, self._last = path, noise, last
        kept = _Kept()
        if path is not None:
            try:
                kept = msgspec.msgpack.decode(FILES.read(path), type=_Kept)
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
        """When a sum may be told."""
        self._kept = kept
        """What the file has."""
        self._shares: dict[tuple[str, int], tuple[torch.Tensor, int]] = {}
        """By data owner and round, with its weight: of the last round that it has ended, and of one that is final."""

    def keep(self, owner: str, number: int, words: torch.Tensor, weight: int = 1) -> None:
        """The model owner's share of what this one has learned in a round, int64 [n], times its weight. In the place of
        an earlier one that no sum waits for: whoever ends round after round takes no more memory than others. Nothing
        is kept for a round that it has not ended last, unless it is final."""
        if number in (final := self.sums.current, self.sums.kept.get(owner)):
            for name, round in [*self._shares]:
                if name == owner and round != final:
                    del self._shares[name, round]
            self._shares[owner, number] = words, weight

    def verdict(self, number: int) -> str | None:
        """As RoundSums has it; None also as long as a share of the final round is not kept: RoundSums knows of it from
        its session, which may still be at work on it."""
        verdict = self.sums.verdict(number)
        missing = [name for name in self.sums.survivors if self._shares.get((name, number)) is None]
        return None if verdict == "" and missing and number != self._kept.current else verdict

    @property
    def spent(self) -> float:
        return self._kept.spent

    def save(self) -> None:
        """Have on the disk who learns, or asks for a sum, before one of them is answered. OSError if it cannot be."""
        self._write(self._kept)

    def opened(self, number: int) -> bytes:
        """The sum of a round whose verdict is that it may be told, on the disk with all who are told it, this asker
        too: 8 bytes a word. OSError if it cannot be kept."""
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
            summed = _Kept(
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

    def _write(self, kept: _Kept) -> None:
        """This, with all owners that there are now, in the place of what the file has, if that differs."""
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
    """The file that says which sums were told; None: in memory, until it ends."""
    kept: Path | None = None
    """The folder of kept shares; None: in memory, until it ends."""
    least_count: int = 0
    """Data owners count by the images that they state, from so many on up to twice as many; 0: all count alike."""
    noise: NoisePolicy | None = None


class SumNews:
    """To sessions that wait for a verdict: a share is kept, somebody has said who survived, or a round is lost."""


class TeachingParty(ModelOwnerParty):
    """Serves until it is cancelled. ValueError as of ModelOwnerParty, of Openings and of SumNoise."""

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
        """Those in which a verdict is waited for."""
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

    def _machine(self, peer: str) -> LearningModelOwner:
        own = self._teaching
        return self.MACHINE(
            peer,
            own.roster,
            terms=self._terms(),
            entropy=own.hooks.entropy,
            patience=FOR_OWNER * own.patience,
            quota=own.quota,
            spent=self._ledger.of(peer),
            sums=self._openings.sums,
            kept=self._kept_of(peer).record,
        )

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
            # A share is kept before anything that was said after it is answered.
            while (asked := await conversation.next(RoundKept, SumAsked, RoundAsked, PassAsked)) is not None:
                if isinstance(asked, RoundKept):
                    weight = weight_of(self._openings.sums.counts[peer], own.least_count)
                    words = standing.learnt.words(weight, MODEL)
                    share = refreshed(words, zeros(asked.secret, words), MODEL)
                    self._openings.keep(peer, asked.number, share, weight)
                    self._tell_news()
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
        # While this one comes to its end here, the data owner may already ask for the next.
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
