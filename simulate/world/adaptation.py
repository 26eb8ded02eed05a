"""Double-blind adaptation in memory: private inference in memory, whose data owners follow plans of rounds.

Nothing is computed, and there is no secure sum among the data owners: a plan names the survivors. A data owner that
waits for a sum receives it once the model owner's verdict is known, or a refusal after OPENING_PATIENCE. New images are
brought before the plan begins; kept shares outlive their sessions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from tacit.protocol.adaptation.data_owner import LearningDataOwner, LearningSession
from tacit.protocol.adaptation.kept import KeptRecord
from tacit.protocol.adaptation.messages import ADAPTATION_MESSAGES, AdaptationTerms, LearningSizes, Purpose
from tacit.protocol.adaptation.model_owner import LearningModelOwner
from tacit.protocol.adaptation.schedule import sum_words
from tacit.protocol.adaptation.states import SumAsked
from tacit.protocol.adaptation.sums import OpeningPolicy, RoundSums
from tacit.protocol.core.codec import encode_structure
from tacit.protocol.core.machine import Output
from tacit.protocol.core.messages import Kinds
from tacit.protocol.core.primitives import digest
from tacit.protocol.inference.data_owner import InferenceRequest
from tacit.protocol.inference.messages import Terms
from tacit.protocol.inference.results import PassAsked
from tacit.protocol.inference.states import InferenceLabel, InferenceState
from tacit.simulate.world.inference import (
    MemoryInference,
    Owner,
    Side,
    content,
    data_owner_names,
    small_terms,
)

OPENING_PATIENCE: Final = 30.0
Call = tuple[str, tuple[Any, ...]]
"""A data owner's action between passes: the name of a method of its machine, and its arguments."""
PASS: Final[Call] = ("ask", (0.0,))
"""A pass; in a training session a step on the first images."""


def learning_terms(**changes: Any) -> AdaptationTerms:
    """Return terms of a very small model with a head of two classes and one adapter; changes: other fields, and
    training sizes."""
    sizes = {"adapters": 1, "rank": 1, "classes": 2, "batch": 1, "cut": 8, "gradient": 30}
    learning = LearningSizes(**{name: changes.pop(name, size) for name, size in sizes.items()})
    own: dict[str, Any] = {"purpose": "learning", "rounds": 2, "smallest_cohort": 2, "least_count": 0}
    own |= {name: changes.pop(name) for name in own if name in changes}
    terms = small_terms(**changes)
    return AdaptationTerms(**{name: getattr(terms, name) for name in Terms.__struct_fields__}, learning=learning, **own)


def round_plan(
    number: int, survivors: Sequence[str], *, based: int = 0, done: int = 0, batches: int = 1
) -> tuple[Call, ...]:
    return (
        ("begin_round", (number, based, done)),
        *(PASS for _ in range(batches)),
        ("keep_round", (number,)),
        ("ask_sum", (number, tuple(survivors))),
    )


@dataclass
class LearningOwner(Owner):
    world: MemoryAdaptation
    performed: int = 0
    """Number of calls of its plan that a data owner has made."""
    brought: int = 0

    @property
    def kept(self) -> KeptRecord:
        return self.world.kept_of(self.name, self.data_owner)

    def go_on(self) -> None:
        machine, world = self.machine, self.world
        acts = self.name not in world.idle
        if machine.state is InferenceState.IDLE and self.brought < machine.number:
            assert isinstance(machine, LearningSession)
            if machine.brings(machine.number):
                self.kept.add(machine.session, machine.number, machine.agreed.images_of(machine.number))
            self.brought = machine.number
        if isinstance(machine, LearningDataOwner) and machine.state is InferenceState.IDLE:
            if acts and not self.due:
                self._follow_plan(machine)
        elif isinstance(machine, LearningModelOwner) and machine.state is InferenceState.BEGINNING_ROUND:
            if acts:
                done = min(machine.data.done, world.behind.get(self.data_owner, machine.data.done))
                self.tell("owners", machine.begin_round(done, world.now))
        elif isinstance(machine, LearningModelOwner) and machine.state is InferenceState.SUMMING:
            if acts and world.sums.verdict(machine.data) is not None:
                self.provide(machine, machine.data, world.now)
        else:
            super().go_on()

    def _follow_plan(self, machine: LearningDataOwner) -> None:
        world, plan = self.world, self.world.plans[self.name]
        if machine.brings(machine.number + 1):
            if self.ordered:
                self._ask(machine)
        elif self.performed == len(plan):
            self.tell("owners", machine.finish(world.now))
        elif self.ordered:
            call, arguments = plan[self.performed]
            self.performed += 1
            if call == PASS[0]:
                self._ask(machine)
                return
            said = getattr(machine, call)(*arguments, world.now)
            self.tell("owners", said[1] if isinstance(said, tuple) else said)

    def _ask(self, machine: LearningDataOwner) -> None:
        world, said = self.world, list[Output]()
        if machine.keeps and not machine.brings(machine.number + 1):
            self.kept.use()
            said += machine.choose(tuple(range(machine.agreed.batch)), world.now)
        said += machine.ask(0.0, world.now)
        world.order(self)
        self.tell("owners", said)

    def provide(self, machine: LearningModelOwner, number: int, since: float) -> None:
        """Send the sum awaited since then, or the reason for its loss."""
        world = self.world
        data = world.sum_of(number) if world.sums.verdict(number) == "" else None
        reason = "" if data is not None else world.sums.give_up(number, since)
        self.tell("owners", machine.provide(number, data, world.now, reason))

    def wait(self, number: int, since: float) -> None:
        """Resolve a long wait for a sum."""
        machine = self.machine
        assert isinstance(machine, LearningModelOwner)
        if machine.state is InferenceState.SUMMING and machine.data == number:
            self.provide(machine, number, since)
            self.world.look_again()

    def _act(self, side: Side, output: Output) -> None:
        machine = self.machine
        if isinstance(output, PassAsked):
            assert isinstance(machine, LearningModelOwner)
            if machine.keeps and not machine.brings(machine.number):
                self.kept.use()
        if isinstance(output, SumAsked):
            asked = self.world.now
            self.world.at(asked + OPENING_PATIENCE, lambda: self.wait(output.number, asked))
            self.world.look_again()
        super()._act(side, output)


class MemoryAdaptation(MemoryInference):
    """plans: the data owners' actions, by name; purposes: of those that do not come to train; opening: the model
    owner's policy; counts: stated numbers of images, if any; request: of each data owner; brought: whether the one
    image of each has passed the blocks before. behind: completed batches at the model owner, if not the data owner's
    number."""

    KINDS: ClassVar[Kinds] = ADAPTATION_MESSAGES
    DATA_OWNER_MACHINE = LearningDataOwner
    MODEL_OWNER_MACHINE = LearningModelOwner
    SHELL = LearningOwner

    def __init__(
        self,
        plans: Mapping[str, Sequence[Call]],
        *,
        terms: AdaptationTerms | None = None,
        purposes: Mapping[str, Purpose] | None = None,
        opening: OpeningPolicy | None = None,
        smallest_cohort: int = 2,
        counts: Mapping[str, int] | None = None,
        request: InferenceRequest | None = None,
        brought: bool = False,
        **given: Any,
    ) -> None:
        self.plans = {name: tuple(plan) for name, plan in plans.items()}
        self.purposes, self.smallest_cohort, self.counts = purposes or {}, smallest_cohort, counts or {}
        self.learning = terms or learning_terms()
        policy = opening or OpeningPolicy(rounds=2, owners=3, smallest_cohort=2, colluders=0)
        self.behind: dict[str, int] = {}
        self.kept: dict[tuple[str, str], KeptRecord] = {}
        """Keyed by owner and data owner."""
        inference_requests = dict.fromkeys(plans, request or InferenceRequest(images=1, batch=1, channels=1, side=4))
        super().__init__(inference_requests, terms=self.learning, **given)
        self.brought = digest(InferenceLabel.INFERENCE_TERMS, encode_structure(self.learning)) if brought else b""
        self.sums = self.make(f"{self.host}/sums", RoundSums, policy)

    def data_owner_settings(self, name: str) -> dict[str, Any]:
        return super().data_owner_settings(name) | {
            "purpose": self.purposes.get(name, "learning"), "smallest_cohort": self.smallest_cohort, "steps": 3,
            "kept": self.kept_of(name, name), "count": self.counts.get(name, 0), "entropy": self.streams.of(name),
        }  # fmt: skip

    def model_owner_settings(self, data_owner: str) -> dict[str, Any]:
        kept = self.kept_of(self.host, data_owner)
        return super().model_owner_settings(data_owner) | {"sums": self.sums, "kept": kept}

    def kept_of(self, owner: str, data_owner: str) -> KeptRecord:
        if (owner, data_owner) not in self.kept:
            known = (self.brought, (1, digest(InferenceLabel.WEIGHTS))) if self.brought else ()
            self.kept[owner, data_owner] = self.make(f"{owner}/kept/{data_owner}", KeptRecord, *known)
        return self.kept[owner, data_owner]

    def look_again(self) -> None:
        """Let all waiting owners check whether the verdict is known now."""
        for served in [*self.served.values()]:
            served.go_on()

    def sum_of(self, number: int) -> bytes:
        """Return a placeholder for the model owner's sum of a round over these survivors."""
        size = 8 * sum_words(self.learning.sizes, self.learning.learning)
        return content(size, "sum", number, self.sums.survivors)


def whole_round(count: int = 2, **given: Any) -> MemoryAdaptation:
    names = data_owner_names(count)
    return MemoryAdaptation(dict.fromkeys(names, round_plan(1, names)), **given)
