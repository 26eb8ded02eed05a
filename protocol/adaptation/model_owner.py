"""The model owner towards one data owner that adapts its model: a session of private inference whose passes bring
images, or are training steps, in rounds (data_owner.py). sums.py decides when to open a round's sum.
"""

from __future__ import annotations

from typing import ClassVar, Final

from msgspec.structs import replace

from tacit.protocol.adaptation.data_owner import WORD_BYTES, LearningSession, adaptation_terms, check_chosen
from tacit.protocol.adaptation.kept import KeptRecord
from tacit.protocol.adaptation.messages import (
    ADAPTATION_MESSAGES,
    AdaptationTerms,
    AskSum,
    BeginRound,
    ChooseImages,
    CompareKept,
    KeepRound,
    KeptCompared,
    OwnSum,
    RoundBegun,
    SumLost,
)
from tacit.protocol.adaptation.schedule import sum_words
from tacit.protocol.adaptation.states import AdaptationTrigger, LearningAgreed, RoundAsked, RoundKept, SumAsked
from tacit.protocol.adaptation.sums import RoundSums
from tacit.protocol.core.codec import Frame
from tacit.protocol.core.errors import DETAIL_LIMIT, Code, LocalProtocolError, RemoteProtocolError
from tacit.protocol.core.machine import IGNORE, Entropy, Heard, Output, Row, Step, Table, Trigger
from tacit.protocol.core.messages import Kinds
from tacit.protocol.core.roster import Roster
from tacit.protocol.inference.material import chunks
from tacit.protocol.inference.messages import AgreeTerms, StartPass
from tacit.protocol.inference.model_owner import MODEL_OWNER_TABLE, InferenceModelOwner
from tacit.protocol.inference.quota import Quota, Spent
from tacit.protocol.inference.results import Agreed
from tacit.protocol.inference.session import InferenceSession
from tacit.protocol.inference.states import InferenceState, ending


class LearningModelOwner(
    LearningSession,
    InferenceModelOwner,
    outputs=InferenceSession.outputs | RoundAsked | RoundKept | SumAsked,
):
    """sums: decisions across all sessions; kept: record of the kept shares of the data owner's images."""

    kinds: ClassVar[Kinds] = ADAPTATION_MESSAGES

    def __init__(
        self,
        peer: str,
        roster: Roster,
        *,
        terms: AdaptationTerms,
        entropy: Entropy,
        patience: float,
        quota: Quota,
        spent: Spent,
        sums: RoundSums,
        kept: KeptRecord | None = None,
    ) -> None:
        super().__init__(peer, roster, terms=terms, entropy=entropy, patience=patience, quota=quota, spent=spent)
        self.table = LEARNING_MODEL_OWNER_TABLE
        self._sums = sums
        self._kept = KeptRecord() if kept is None else kept
        self._round = 0
        self._chosen: tuple[int, ...] = ()
        self.chosen: tuple[int, ...] = ()
        """Images of the current or latest step."""

    def begin_round(self, done: int, now: float) -> list[Output]:
        """Answer a request for a round: resume after so many batches, which both completed."""
        return [] if self.over else self.trigger(AdaptationTrigger.BEGIN_ROUND, now, done)

    def provide(self, number: int, data: Frame | None, now: float, reason: str = "") -> list[Output]:
        """Answer a request for a sum: 8 bytes a word, or None and the reason."""
        return [] if self.over else self.trigger(Trigger.PROVIDE, now, number, data, reason)

    def on_agreement(self, heard: Heard[AgreeTerms], now: float) -> Step[InferenceState]:
        learning, message = adaptation_terms(self._terms), heard.message
        batch = learning.learning.batch
        if learning.purpose == "learning" and message.batch != batch:
            raise RemoteProtocolError(
                Code.POLICY, f"it wants to learn {message.batch} images at a time; batches have {batch}"
            )
        step = super().on_agreement(heard, now)
        if not self.KEEPS or learning.purpose != "learning":
            return step
        (agreed,) = step.outputs
        return Step(InferenceState.AWAIT_KEPT, data=agreed)

    def on_compare_kept(self, heard: Heard[CompareKept], now: float) -> Step[InferenceState]:
        agreed, message = self.at(Agreed), heard.message
        if message.images > agreed.images:
            raise RemoteProtocolError(
                Code.SESSION, f"it keeps shares of {message.images} images, and has {agreed.images}"
            )
        if message.steps > self._sums.policy.steps:
            detail = f"it wants to take {message.steps} steps, and the policy allows {self._sums.policy.steps}"
            raise RemoteProtocolError(Code.POLICY, detail)
        kept = self._kept.of(agreed.digest)
        images, chain = kept.compare(message.images, message.chain, message.uses)
        found = LearningAgreed(**vars(agreed), kept=images, steps=message.steps)
        compared = self._send(KeptCompared(images=images, chain=chain, uses=kept.uses))

        def commit() -> None:
            self._agreed = found
            self._kept.resume(agreed.digest, (images, chain), message.uses)

        if not found.keeping:
            return Step(InferenceState.IDLE, (compared, found), commit)
        return Step(InferenceState.MASKING, (compared, found), commit, data=0)

    def on_choose_images(self, heard: Heard[ChooseImages], now: float) -> Step[InferenceState]:
        images = heard.message.images
        if not self.keeps or self.brings(self.number + 1) or not self._round:
            raise RemoteProtocolError(Code.UNEXPECTED, "it chooses images where no step of learning is due")
        try:
            check_chosen(images, self.learning_agreed)
        except LocalProtocolError as error:
            raise RemoteProtocolError(Code.SESSION, f"it chooses {images}: {error}") from None

        def commit() -> None:
            self._chosen = images

        return Step(InferenceState.IDLE, (), commit)

    def on_start_pass(self, heard: Heard[StartPass], now: float) -> Step[InferenceState]:
        if adaptation_terms(self._terms).purpose != "learning" or self.brings(self.number + 1):
            return super().on_start_pass(heard, now)
        if not self._round:
            raise RemoteProtocolError(Code.UNEXPECTED, "it asks for a batch before it has begun a round")
        if self.keeps and not self._chosen:
            raise RemoteProtocolError(Code.UNEXPECTED, "it asks for a step before it has chosen images")
        step = super().on_start_pass(heard, now)

        def commit() -> None:
            step.commit()
            self.chosen, self._chosen = self._chosen, ()

        return replace(step, commit=commit)

    def on_begin_round(self, heard: Heard[BeginRound], now: float) -> Step[InferenceState]:
        message = heard.message
        self._check_learning()
        counted = bool(adaptation_terms(self._terms).least_count)
        if bool(message.count) != counted:
            raise RemoteProtocolError(
                Code.SESSION,
                f"it says that it has {message.count} images, where data owners count "
                + ("by how many they have" if counted else "alike, and say 0"),
            )
        self._sums.check_begin(self.peer, message.number, message.based, message.count)

        def commit() -> None:
            self._round = message.number
            self._sums.begin(self.peer, message.number, message.count)

        return Step(InferenceState.BEGINNING_ROUND, (RoundAsked(message.number, message.done),), commit, data=message)

    def on_round_begun(self, done: int, now: float) -> Step[InferenceState]:
        asked = self.at(BeginRound)
        if not 0 <= done <= asked.done:
            raise LocalProtocolError(f"round {asked.number} cannot go on behind {done} of {asked.done} batches")
        return Step(InferenceState.IDLE, (self._send(RoundBegun(done=done)),))

    def on_keep_round(self, heard: Heard[KeepRound], now: float) -> Step[InferenceState]:
        message = heard.message
        if message.number != self._round:
            raise RemoteProtocolError(
                Code.SESSION, f"it ends round {message.number} where it has begun {self._round or 'none'}"
            )

        def commit() -> None:
            self._round = 0
            self._sums.keep(self.peer, message.number)

        return Step(InferenceState.IDLE, (RoundKept(message.number, message.secret),), commit)

    def on_ask_sum(self, heard: Heard[AskSum], now: float) -> Step[InferenceState]:
        number, survivors = heard.message.number, heard.message.survivors
        self._check_learning()
        self._sums.check_ask(self.peer, survivors)
        if (reason := self._sums.none_for(self.peer, number, survivors)) is not None:
            return self._sum_lost(number, reason)

        def commit() -> list[Output]:
            self._sums.say(self.peer, number, survivors, now)
            return [SumAsked(number)]

        return Step(InferenceState.SUMMING, (), commit, data=number)

    def on_sum(self, number: int, data: Frame | None, reason: str, now: float) -> Step[InferenceState]:
        if number != self.at(int):
            raise LocalProtocolError(f"the sum of round {number} where that of {self.at(int)} was asked for")
        if data is None:
            return self._sum_lost(number, reason)
        terms = adaptation_terms(self._terms)
        size, expected = memoryview(data).nbytes, WORD_BYTES * sum_words(terms.sizes, terms.learning)
        verdict = self._sums.verdict(number)
        if size != expected or verdict != "":
            raise LocalProtocolError(
                f"{size} bytes as the sum of round {number}; {expected} are due, and against it speaks: {verdict!r}"
            )
        sends = tuple(self._send(OwnSum(number=number, chunk=chunk), piece) for chunk, piece in chunks(data))
        return Step(InferenceState.IDLE, sends)

    def _sum_lost(self, number: int, reason: str) -> Step[InferenceState]:
        if not reason:
            raise LocalProtocolError(f"there is no sum of round {number}, for no reason")
        return Step(InferenceState.IDLE, (self._send(SumLost(number=number, detail=reason[:DETAIL_LIMIT])),))

    def _check_learning(self) -> None:
        if adaptation_terms(self._terms).purpose != "learning":
            raise RemoteProtocolError(Code.UNEXPECTED, "it asks for a round of learning in a session of predictions")

    def _count_of(self, number: int) -> int:
        # An image is charged when it passes the blocks.
        return 0 if self.keeps and not self.brings(number) else super()._count_of(number)


_S = InferenceState
LEARNING_MODEL_OWNER_TABLE: Final[Table[InferenceState]] = {
    **{cell: row for cell, row in MODEL_OWNER_TABLE.items() if cell != (_S.IDLE, Trigger.EXPIRE)},
    (_S.AWAIT_AGREEMENT, AgreeTerms): Row(LearningModelOwner.on_agreement, (_S.AWAIT_KEPT, _S.MASKING)),
    (_S.AWAIT_KEPT, CompareKept): Row(LearningModelOwner.on_compare_kept, (_S.MASKING, _S.IDLE)),
    (_S.IDLE, ChooseImages): Row(LearningModelOwner.on_choose_images, (_S.IDLE,)),
    (_S.IDLE, BeginRound): Row(LearningModelOwner.on_begin_round, (_S.BEGINNING_ROUND,)),
    (_S.BEGINNING_ROUND, AdaptationTrigger.BEGIN_ROUND): Row(LearningModelOwner.on_round_begun, (_S.IDLE,)),
    (_S.IDLE, KeepRound): Row(LearningModelOwner.on_keep_round, (_S.IDLE,)),
    (_S.IDLE, AskSum): Row(LearningModelOwner.on_ask_sum, (_S.SUMMING, _S.IDLE)),
    (_S.SUMMING, Trigger.PROVIDE): Row(LearningModelOwner.on_sum, (_S.IDLE,)),
    **ending(LearningModelOwner, _S.ABORTED, own=(_S.BEGINNING_ROUND, _S.SUMMING), awaiting=(_S.AWAIT_KEPT,)),
    **{(_S.ABORTED, kind): IGNORE for kind in (CompareKept, ChooseImages, BeginRound, KeepRound, AskSum)},
}
