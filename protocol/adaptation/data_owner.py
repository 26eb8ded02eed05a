"""The data owner towards the model owner when it adapts the model: a session of private inference whose passes bring
images, or are training steps, in rounds (docs/spec/adaptation.md).

A pass reveals nothing, not even whether it was in range. Progress in a round survives the session: in the next one the
data owner states its completed batches, and both resume after the last batch that both completed.
"""

from __future__ import annotations

from typing import ClassVar, Final

from msgspec.structs import replace

from tacit.protocol.adaptation.kept import NOTHING, KeptRecord
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
    Purpose,
    RoundBegun,
    SumLost,
)
from tacit.protocol.adaptation.schedule import adaptation_rounds, sum_words
from tacit.protocol.adaptation.states import AdaptationTrigger, LearningAgreed, RoundAnswered, SumTold
from tacit.protocol.core.errors import Code, LocalProtocolError, RemoteProtocolError
from tacit.protocol.core.machine import IGNORE, Entropy, Heard, Output, Row, Step, Table
from tacit.protocol.core.messages import Kinds
from tacit.protocol.core.primitives import KEY_BYTES
from tacit.protocol.core.roster import Roster
from tacit.protocol.inference.data_owner import DATA_OWNER_TABLE, InferenceDataOwner, InferencePolicy, InferenceRequest
from tacit.protocol.inference.material import Arrivals
from tacit.protocol.inference.messages import InferenceTerms, Terms
from tacit.protocol.inference.quota import Spent
from tacit.protocol.inference.results import Agreed
from tacit.protocol.inference.schedule import Round, backbone_rounds, weight_bytes
from tacit.protocol.inference.session import InferenceSession
from tacit.protocol.inference.states import InferenceState, ending

WORD_BYTES: Final = 8


def adaptation_terms(terms: Terms) -> AdaptationTerms:
    """Return the terms of an adaptation session. Raises LocalProtocolError for other terms."""
    if not isinstance(terms, AdaptationTerms):
        raise LocalProtocolError("these terms are of no session that adapts a model")
    return terms


class LearningSession(InferenceSession):
    KEEPS: ClassVar[bool] = True
    """Whether shares of images are kept; otherwise every pass brings images, as in private inference."""

    @property
    def keeps(self) -> bool:
        return self.KEEPS and adaptation_terms(self.agreed.terms).purpose == "learning"

    @property
    def learning_agreed(self) -> LearningAgreed:
        agreed = self.agreed
        assert isinstance(agreed, LearningAgreed)
        return agreed

    @property
    def judged(self) -> bool:
        return not self.keeps

    def brings(self, number: int) -> bool:
        """Whether the pass of this number brings images whose shares are kept."""
        return self.keeps and number <= self.learning_agreed.keeping

    def _rounds_of(self, images: int) -> tuple[Round, ...]:
        terms = adaptation_terms(self.agreed.terms)
        return backbone_rounds(terms.sizes, images) if self.brings(self.number) else adaptation_rounds(terms, images)


class LearningDataOwner(
    LearningSession,
    InferenceDataOwner,
    outputs=InferenceSession.outputs | RoundAnswered | SumTold,
):
    """purpose: its purpose in the session; smallest_cohort: fewest survivors whose sum it lets be opened, not counting
    possible colluders; steps: steps it wants in the session; kept: its record of kept shares; count: its stated number
    of images, 0 where its policy weights all owners equally; entropy: source of the zeros that refresh shares."""

    kinds: ClassVar[Kinds] = ADAPTATION_MESSAGES
    terms_type: ClassVar[type[Terms]] = AdaptationTerms

    def __init__(
        self,
        name: str,
        roster: Roster,
        *,
        request: InferenceRequest,
        policy: InferencePolicy,
        patience: float,
        spent: Spent,
        purpose: Purpose,
        smallest_cohort: int,
        steps: int = 1,
        kept: KeptRecord | None = None,
        count: int = 0,
        entropy: Entropy,
    ) -> None:
        super().__init__(name, roster, request=request, policy=policy, patience=patience, spent=spent)
        self.table = LEARNING_DATA_OWNER_TABLE
        self._steps = steps
        self._kept = KeptRecord() if kept is None else kept
        self._chosen = False
        """Whether the images of the next step are chosen."""
        self._purpose = purpose
        self._smallest_cohort = smallest_cohort
        self._count = count
        self._entropy = entropy

    def choose(self, images: tuple[int, ...], now: float) -> list[Output]:
        """Choose the images of the next step, whose shares are kept."""
        return [] if self.over else self.trigger(AdaptationTrigger.CHOOSE, now, images)

    def begin_round(self, number: int, based: int, done: int, now: float) -> list[Output]:
        """Begin a round from the common parameters of the round `based`, with `done` batches completed."""
        return [] if self.over else self.trigger(AdaptationTrigger.BEGIN_ROUND, now, number, based, done)

    def keep_round(self, number: int, now: float) -> tuple[bytes, list[Output]]:
        """End the batches of the round; return the secret of the zeros that this side subtracts from its share."""
        secret = self._entropy(KEY_BYTES)
        return secret, [] if self.over else self.trigger(AdaptationTrigger.KEEP_ROUND, now, number, secret)

    def ask_sum(self, number: int, survivors: tuple[str, ...], now: float) -> list[Output]:
        """Ask for the sum of a round whose secure sum is over. survivors: empty if this side was not among them."""
        return [] if self.over else self.trigger(AdaptationTrigger.ASK_SUM, now, number, survivors)

    def on_terms(self, heard: Heard[InferenceTerms], now: float) -> Step[InferenceState]:
        step = super().on_terms(heard, now)
        agreement, agreed = step.outputs
        assert isinstance(agreed, Agreed)
        if not self.KEEPS or adaptation_terms(agreed.terms).purpose != "learning":
            return step
        kept = self._kept.of(agreed.digest)
        images, chain = kept.last if kept.last[0] <= agreed.images else (0, NOTHING)
        compare = CompareKept(images=images, chain=chain, uses=kept.uses, steps=self._steps)
        return Step(InferenceState.AWAIT_KEPT, (agreement, self._send(compare)), data=agreed)

    def on_kept_compared(self, heard: Heard[KeptCompared], now: float) -> Step[InferenceState]:
        agreed, message = self.at(Agreed), heard.message
        kept = self._kept.of(agreed.digest)
        kept.check(message.images, message.chain, message.uses)
        found = LearningAgreed(**vars(agreed), kept=message.images, steps=self._steps)

        def commit() -> None:
            self._agreed = found
            self._kept.resume(agreed.digest, (message.images, message.chain), kept.uses)

        if not found.keeping:
            return Step(InferenceState.IDLE, (found,), commit)
        layers = Arrivals("layer", enumerate(weight_bytes(agreed.terms.sizes)))
        return Step(InferenceState.AWAIT_WEIGHTS, (found,), commit, data=layers)

    def on_choose(self, images: tuple[int, ...], now: float) -> Step[InferenceState]:
        check_chosen(images, self.learning_agreed)

        def commit() -> None:
            self._chosen = True

        return Step(InferenceState.IDLE, (self._send(ChooseImages(images=images)),), commit)

    def on_ask(self, at: float, now: float) -> Step[InferenceState]:
        step = super().on_ask(at, now)
        if not self.keeps or step.state is not InferenceState.AWAIT_START:
            return step
        if self._chosen is self.brings(self.number + 1):
            raise LocalProtocolError("images are chosen for a step, and for no other pass")

        def commit() -> None:
            step.commit()
            self._chosen = False

        return replace(step, commit=commit)

    def on_begin_round(self, number: int, based: int, done: int, now: float) -> Step[InferenceState]:
        message = BeginRound(number=number, based=based, done=done, count=self._count)
        return Step(InferenceState.AWAIT_ROUND, (self._send(message),), data=done)

    def on_round_begun(self, heard: Heard[RoundBegun], now: float) -> Step[InferenceState]:
        if heard.message.done > self.at(int):
            raise RemoteProtocolError(
                Code.SESSION,
                f"it goes on behind batch {heard.message.done} of a round of which {self.at(int)} are done",
            )
        return Step(InferenceState.IDLE, (RoundAnswered(heard.message.done),))

    def on_keep_round(self, number: int, secret: bytes, now: float) -> Step[InferenceState]:
        return Step(InferenceState.IDLE, (self._send(KeepRound(number=number, secret=secret)),))

    def on_ask_sum(self, number: int, survivors: tuple[str, ...], now: float) -> Step[InferenceState]:
        terms = adaptation_terms(self.agreed.terms)
        due = Arrivals("the sum of round", [(number, WORD_BYTES * sum_words(terms.sizes, terms.learning))])
        message = AskSum(number=number, survivors=tuple(sorted(survivors)))
        return Step(InferenceState.AWAIT_SUM, (self._send(message),), data=due)

    def on_own_sum(self, heard: Heard[OwnSum], now: float) -> Step[InferenceState]:
        due = self.at(Arrivals)
        due.check(heard.message.number, heard.message.chunk, heard.payload)

        def commit() -> list[Output]:
            complete = due.take(heard.payload)
            return [] if complete is None else [SumTold(*complete)]

        return Step(InferenceState.IDLE if due.ends_with(heard.payload) else InferenceState.AWAIT_SUM, (), commit)

    def on_sum_lost(self, heard: Heard[SumLost], now: float) -> Step[InferenceState]:
        number = self.at(Arrivals).next
        if heard.message.number != number or not heard.message.detail:
            raise RemoteProtocolError(
                Code.SESSION, f"it gives up round {heard.message.number} where the sum of {number} is due, and a reason"
            )
        return Step(InferenceState.IDLE, (SumTold(heard.message.number, None, heard.message.detail),))

    def _count_of(self, number: int) -> int:
        # The model owner learns nothing from such a pass.
        return 0 if self.keeps else super()._count_of(number)

    def _check(self, terms: Terms) -> None:
        super()._check(terms)
        found = adaptation_terms(terms)
        if found.purpose != self._purpose:
            raise RemoteProtocolError(
                Code.POLICY, f"it offers {found.purpose}; here {self._purpose} is wanted: agree on a purpose"
            )
        if self._request.batch != found.learning.batch and self._purpose == "learning":
            raise RemoteProtocolError(
                Code.POLICY,
                f"it learns by batches of {found.learning.batch} images; here they have {self._request.batch}",
            )
        if bool(found.least_count) != bool(self._count) and self._purpose == "learning":
            said, here = ("by their images", "alike") if found.least_count else ("alike", "by their images")
            raise RemoteProtocolError(
                Code.POLICY, f"data owners count {said} with it; the policy here is that they count {here}"
            )
        if found.smallest_cohort < self._smallest_cohort:
            raise RemoteProtocolError(
                Code.POLICY,
                f"it opens sums of {found.smallest_cohort} data owners; the policy here wants {self._smallest_cohort} "
                "or more",
            )


def check_chosen(images: tuple[int, ...], agreed: LearningAgreed) -> None:
    """Raise LocalProtocolError unless these are the images of a step."""
    if len(images) != agreed.batch or not max(images) < agreed.images:
        raise LocalProtocolError(f"a step takes {agreed.batch} of {agreed.images} images")


_S = InferenceState
LEARNING_DATA_OWNER_TABLE: Final[Table[InferenceState]] = {
    **DATA_OWNER_TABLE,
    (_S.AWAIT_TERMS, InferenceTerms): Row(LearningDataOwner.on_terms, (_S.AWAIT_KEPT, _S.AWAIT_WEIGHTS)),
    (_S.AWAIT_KEPT, KeptCompared): Row(LearningDataOwner.on_kept_compared, (_S.AWAIT_WEIGHTS, _S.IDLE)),
    (_S.IDLE, AdaptationTrigger.CHOOSE): Row(LearningDataOwner.on_choose, (_S.IDLE,)),
    (_S.IDLE, AdaptationTrigger.BEGIN_ROUND): Row(LearningDataOwner.on_begin_round, (_S.AWAIT_ROUND,)),
    (_S.AWAIT_ROUND, RoundBegun): Row(LearningDataOwner.on_round_begun, (_S.IDLE,)),
    (_S.IDLE, AdaptationTrigger.KEEP_ROUND): Row(LearningDataOwner.on_keep_round, (_S.IDLE,)),
    (_S.IDLE, AdaptationTrigger.ASK_SUM): Row(LearningDataOwner.on_ask_sum, (_S.AWAIT_SUM,)),
    (_S.AWAIT_SUM, OwnSum): Row(LearningDataOwner.on_own_sum, (_S.AWAIT_SUM, _S.IDLE)),
    (_S.AWAIT_SUM, SumLost): Row(LearningDataOwner.on_sum_lost, (_S.IDLE,)),
    **ending(LearningDataOwner, _S.ABORTED, own=(), awaiting=(_S.AWAIT_KEPT, _S.AWAIT_ROUND, _S.AWAIT_SUM)),
    **{(_S.ABORTED, kind): IGNORE for kind in (KeptCompared, RoundBegun, OwnSum, SumLost)},
}
