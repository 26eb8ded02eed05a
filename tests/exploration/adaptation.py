"""A data owner that learns beside a model, and the model owner, over the network of inference.py.

The data owner goes through a plan of rounds. What the model owner decides over its sessions goes with it, from one to
the next that a replayed greeting begins. A sum stands for its round, its survivors, and the model owner's session in
which it is told. Several owners and their survivors are in tests/protocol/adaptation/test_sums.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Final

from tacit.protocol.adaptation.data_owner import LearningDataOwner
from tacit.protocol.adaptation.kept import KeptRecord
from tacit.protocol.adaptation.messages import ADAPTATION_MESSAGES, AdaptationTerms, LearningSizes
from tacit.protocol.adaptation.model_owner import LearningModelOwner
from tacit.protocol.adaptation.schedule import adaptation_rounds, sum_words
from tacit.protocol.adaptation.states import RoundAnswered, RoundKept, SumTold
from tacit.protocol.adaptation.sums import OpeningPolicy, RoundSums
from tacit.protocol.core.codec import encode_structure
from tacit.protocol.core.machine import Output
from tacit.protocol.core.messages import Kinds
from tacit.protocol.core.primitives import digest
from tacit.protocol.inference.data_owner import InferenceDataOwner, InferencePolicy, InferenceRequest
from tacit.protocol.inference.model_owner import InferenceModelOwner
from tacit.protocol.inference.quota import Quota, Spent
from tacit.protocol.inference.schedule import LOGITS, Round
from tacit.protocol.inference.states import InferenceLabel, InferenceState
from tests.exploration.inference import (
    DATA_OWNER,
    PATIENCE,
    SIZES,
    InferenceWorld,
    InferenceWorldState,
    Owner,
    content,
)
from tests.exploration.machines import duplicate
from tests.exploration.symbols import SymbolicEntropy

LEARNING: Final = LearningSizes(adapters=0, rank=1, classes=2, batch=1, cut=8, gradient=30)
TERMS: Final = AdaptationTerms(
    sizes=SIZES,
    results=LOGITS,
    weights=bytes(32),
    most_images=8,
    most_batch=1,
    audited=0,
    arithmetic=b"",
    purpose="learning",
    learning=LEARNING,
    rounds=2,
    smallest_cohort=2,
)
POLICY: Final = OpeningPolicy(rounds=2, owners=1, smallest_cohort=1, colluders=0)
Call = tuple[str, tuple[Any, ...]]
PLAN: Final[tuple[Call, ...]] = (
    ("begin_round", (1, 0, 1)),
    ("keep_round", (1,)),
    ("ask_sum", (1, (DATA_OWNER,))),
    ("begin_round", (2, 1, 0)),
    ("keep_round", (2,)),
    ("ask_sum", (2, (DATA_OWNER, "gone"))),
)
"""A round whose sum is told, and one that another owner does not come out of."""
BATCH: Final[tuple[Call, ...]] = (
    ("begin_round", (1, 0, 0)),
    ("choose", ((0,),)),
    ("ask", (0.0,)),
    ("keep_round", (1,)),
)
"""A round with a batch."""


def kept() -> KeptRecord:
    """What either owner keeps: the one image has passed the blocks in an earlier session."""
    terms_digest = digest(InferenceLabel.INFERENCE_TERMS, encode_structure(TERMS))
    return KeptRecord(terms_digest, (1, content(32, "chain")))


@duplicate.register
def _(value: RoundSums) -> Any:
    return RoundSums(**{name: duplicate(part) for name, part in vars(value).items()})


@duplicate.register
def _(value: KeptRecord) -> Any:
    return KeptRecord(**vars(value))


def sum_of(machine_session: bytes, number: int) -> bytes:
    return content(8 * sum_words(SIZES, LEARNING), "sum", machine_session, number)


class AdaptationWorld(InferenceWorld):
    """plan: what the data owner does; sessions: that the model owner may begin."""

    KINDS: ClassVar[Kinds] = ADAPTATION_MESSAGES
    ROUNDS: ClassVar[tuple[Round, ...]] = adaptation_rounds(TERMS, 1)
    PATIENT = (InferenceState.AWAIT_HELLO, InferenceState.READY, InferenceState.IDLE)

    def __init__(self, plan: tuple[Call, ...] = PLAN, *, sessions: int = 1) -> None:
        self._plan = plan
        passes = [call for call, _ in plan].count("ask")
        super().__init__(passes=passes, sessions=sessions)

    def faults(self, state: InferenceWorldState) -> Iterator[str]:
        yield from super().faults(state)
        data, model = (self.machines[number] for number in state[:2])
        assert isinstance(model, LearningModelOwner)
        if data.state is InferenceState.CLOSED and data.performed != len(self._plan):  # type: ignore[union-attr]
            yield "the data owner has come to the regular end before its last round"
        if model._sums.opened > 1 or model._sums.current > 1:
            yield "a sum was opened that nobody is in"

    def _act(self, machine: Owner, *, out_of_range: bool = False) -> Any:
        state = machine.state
        if isinstance(machine, LearningDataOwner) and state is InferenceState.IDLE:
            done: int = machine.performed  # type: ignore[attr-defined]
            return (lambda: self._perform(machine)) if done < len(self._plan) else (lambda: machine.finish(0.0))
        if isinstance(machine, LearningModelOwner) and state is InferenceState.BEGINNING_ROUND:
            return lambda: machine.begin_round(0, 0.0)
        if isinstance(machine, LearningModelOwner) and state is InferenceState.SUMMING:
            return lambda: self._provide(machine)
        return super()._act(machine, out_of_range=out_of_range)

    def _perform(self, machine: LearningDataOwner) -> list[Output]:
        """The next call of the plan, which `performed` counts."""
        call, arguments = self._plan[machine.performed]  # type: ignore[attr-defined]
        machine.performed += 1  # type: ignore[attr-defined]
        said = getattr(machine, call)(*arguments, 0.0)
        outputs: list[Output] = said[1] if isinstance(said, tuple) else said
        return outputs

    @staticmethod
    def _provide(machine: LearningModelOwner) -> list[Output]:
        """Whoever waits is told at once what there is: nobody else speaks here."""
        number, sums = machine.data, machine._sums
        if sums.verdict(number) == "":
            return machine.provide(number, sum_of(machine.session, number), 0.0)
        return machine.provide(number, None, 0.0, sums.give_up(number, 0.0))

    def _broken(self, machine: Owner, outputs: list[Output] | tuple[()], judged: int | None) -> Iterator[str]:
        yield from super()._broken(machine, outputs, judged)
        performed = getattr(machine, "performed", 0)
        asked = [arguments[0] for call, arguments in self._plan[:performed] if call == "ask_sum"]
        for output in outputs:
            if isinstance(output, SumTold):
                if output.number not in asked[-1:]:
                    yield f"{machine.own} takes something else for the sum of round {asked[-1:]}"
                if output.data is not None and output.data != sum_of(machine.session, output.number):
                    yield f"{machine.own} takes something else for the sum of round {output.number}"
                if (output.data is None) != (output.number == 2):
                    yield f"{machine.own} is told that round {output.number} has another end"
            elif isinstance(output, RoundAnswered) and output.done:
                yield f"{machine.own} goes on behind batches that the other does not have"
            elif isinstance(output, RoundKept) and not output.secret.startswith(b"zeros secret"):
                yield f"{machine.own} takes something else for the secret of zeros"

    def _data_owner(self) -> InferenceDataOwner:
        machine = LearningDataOwner(
            DATA_OWNER,
            self._roster,
            request=InferenceRequest(images=1, batch=1, channels=1, side=1),
            policy=InferencePolicy(),
            patience=PATIENCE,
            spent=Spent(),
            purpose="learning",
            smallest_cohort=2,
            steps=max(self._passes, 1),
            kept=kept(),
            entropy=SymbolicEntropy("zeros"),
        )
        machine.performed = 0  # type: ignore[attr-defined]
        return machine

    def _model_owner(
        self, entropy: SymbolicEntropy, sums: RoundSums | None = None, record: KeptRecord | None = None
    ) -> InferenceModelOwner:
        return LearningModelOwner(
            DATA_OWNER,
            self._roster,
            terms=TERMS,
            entropy=entropy,
            patience=PATIENCE,
            quota=Quota(),
            spent=Spent(),
            sums=sums or RoundSums(POLICY),
            kept=record or kept(),
        )

    def _another(self, machine: InferenceModelOwner) -> InferenceModelOwner:
        assert isinstance(machine, LearningModelOwner)
        own: Any = machine
        return self._model_owner(own._entropy, own._sums, own._kept)
