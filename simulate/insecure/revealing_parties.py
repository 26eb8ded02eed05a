"""INSECURE: owners of a simulated adaptation that reveals outputs of blocks (revealed_outputs.py).

The experiment configures both for the revealed outputs, which the terms on the wire do not mention. Messages are those
of an adaptation; rounds of a pass differ.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from tacit.models.adapters.configuration import Reveal, Selection
from tacit.models.adapters.federated import Order
from tacit.parties.adaptation.data_owner import PrivateLearner
from tacit.parties.adaptation.learning_passes import LearningPasses
from tacit.parties.adaptation.model_owner import TeachingParty
from tacit.parties.adaptation.public import PublicLearning
from tacit.parties.inference.operations import DATA, MODEL
from tacit.protocol.adaptation.data_owner import LearningDataOwner
from tacit.protocol.adaptation.model_owner import LearningModelOwner
from tacit.protocol.inference.data_owner import InferenceRequest
from tacit.protocol.inference.results import Agreed
from tacit.protocol.inference.schedule import Round
from tacit.simulate.insecure.revealed_outputs import (
    EnrolledPasses,
    Keep,
    RevealedPasses,
    forget,
    revealed_blocks,
    revealed_rounds,
)


@dataclass(frozen=True)
class Revealing:
    reveal: Reveal
    selection: Selection = "data-owner"

    def rounds(self, agreed: Agreed, number: int, images: int) -> tuple[Round, ...]:
        sizes, enrols = agreed.terms.sizes, number == 1 and self.selection == "enrolment"
        revealed = revealed_blocks(self.reveal, sizes.blocks, session=agreed.session, number=number)
        return revealed_rounds(sizes, images, revealed, enrolled=agreed.images if enrols else 0)

    def passes(self, agreed: Agreed, learning: PublicLearning, rank: int, *, keep: Keep = forget) -> RevealedPasses:
        def revealed(number: int) -> tuple[bool, ...]:
            return revealed_blocks(self.reveal, agreed.terms.sizes.blocks, session=agreed.session, number=number)

        if self.selection == "enrolment":
            return EnrolledPasses(learning, 0, rank, revealed, keep, images=agreed.images)
        return RevealedPasses(learning, 0, rank, revealed, keep)


class RevealingDataOwner(LearningDataOwner):
    KEEPS: ClassVar[bool] = False
    revealing: Revealing

    def _rounds_of(self, images: int) -> tuple[Round, ...]:
        return self.revealing.rounds(self.agreed, self.number, images)


class RevealingModelOwner(LearningModelOwner):
    KEEPS: ClassVar[bool] = False
    revealing: Revealing

    def _rounds_of(self, images: int) -> tuple[Round, ...]:
        return self.revealing.rounds(self.agreed, self.number, images)


class RevealingLearner(PrivateLearner):
    """A data owner that receives block outputs. keep: as in RevealedPasses; otherwise a PrivateLearner."""

    MACHINE: ClassVar[type[LearningDataOwner]] = RevealingDataOwner

    def __init__(self, revealing: Revealing, *given: Any, keep: Keep = forget, **named: Any) -> None:
        self._revealing, self._keep = revealing, keep
        super().__init__(*given, **named)

    def _machine(self, request: InferenceRequest) -> LearningDataOwner:
        machine = super()._machine(request)
        assert isinstance(machine, RevealingDataOwner)
        machine.revealing = self._revealing
        return machine

    def _passes(self, agreed: Agreed, learning: PublicLearning) -> LearningPasses:
        return self._revealing.passes(agreed, learning, DATA, keep=self._keep)

    def _request(self) -> InferenceRequest:
        # Every pass brings its images.
        own = self._settings
        return replace(super()._request(), images=own.batch * own.batches * own.rounds)

    def _brought(self, number: int, order: Order) -> Order:
        if self._revealing.selection == "data-owner" or number > 1:
            return order
        return np.concatenate([each for round in range(self._settings.rounds) for each in self._batches(round + 1)])


class RevealingTeacher(TeachingParty):
    """A model owner that reveals outputs; otherwise a TeachingParty."""

    MACHINE: ClassVar[type[LearningModelOwner]] = RevealingModelOwner

    def __init__(self, revealing: Revealing, *given: Any) -> None:
        self._revealing = revealing
        super().__init__(*given)

    def _machine(self, peer: str) -> LearningModelOwner:
        machine = super()._machine(peer)
        assert isinstance(machine, RevealingModelOwner)
        machine.revealing = self._revealing
        return machine

    def _passes(self, agreed: Agreed) -> LearningPasses:
        return self._revealing.passes(agreed, self._teaching.learning, MODEL)


def learner(revealing: Revealing, *given: Any, keep: Keep = forget, **named: Any) -> PrivateLearner:
    """Make a data owner of a simulation: a RevealingLearner, or a PrivateLearner if nothing is revealed."""
    if revealing.reveal == "none":
        return PrivateLearner(*given, **named)
    return RevealingLearner(revealing, *given, keep=keep, **named)


def teacher(revealing: Revealing, *given: Any) -> TeachingParty:
    return TeachingParty(*given) if revealing.reveal == "none" else RevealingTeacher(revealing, *given)
