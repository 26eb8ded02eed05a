"""Predictions with trained adapters: the model owner's model on shares, and a data owner's adapters beside it.

The session is one of private inference in which the data owner brings adapters and head, and receives their results for
its images. The model owner sees neither.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from tacit.models.adapters.parallel import AdapterParameters
from tacit.parties.adaptation.public import PublicLearning, learning_of, learning_terms
from tacit.parties.adaptation.rounds import nothing, shares_of_known
from tacit.parties.adaptation.stages import PredictingCarried, prediction_stages
from tacit.parties.adaptation.step import ParameterShares
from tacit.parties.inference.data_owner import SessionKind
from tacit.parties.inference.model_owner import ModelOwnerParty, ModelOwnerSettings
from tacit.parties.inference.passes import PassPlan
from tacit.parties.inference.private_model import PrivateModel
from tacit.parties.session.event_log import EventLog
from tacit.protocol.adaptation.data_owner import LearningDataOwner, adaptation_terms
from tacit.protocol.adaptation.messages import ADAPTATION_MESSAGES, AdaptationTerms
from tacit.protocol.adaptation.model_owner import LearningModelOwner
from tacit.protocol.adaptation.sums import OpeningPolicy, RoundSums
from tacit.protocol.core.messages import Kinds
from tacit.protocol.inference.data_owner import InferenceDataOwner
from tacit.protocol.inference.messages import Terms


def prediction_plan(terms: Terms, parameters: ParameterShares) -> PassPlan:
    """Plan of a data owner with all parameters. ValueError as for Planned, and for adapters of another training."""
    learning = learning_of(adaptation_terms(terms))
    if [part.shape for part in _tensors(parameters)] != [part.shape for part in _tensors(nothing(learning.sizes))]:
        raise ValueError(f"it computes beside adapters of {learning.learning}; what was learned here has other sizes")
    return _plan(learning, terms, parameters)


def _plan(learning: PublicLearning, terms: Terms, own: ParameterShares) -> PassPlan:
    def begun(share: torch.Tensor) -> PredictingCarried:
        return PredictingCarried(share, parameters=own)

    stages = prediction_stages(learning.public, learning.sizes, learning.scales, terms.results)
    return PassPlan(learning.public, lambda number: stages, learning.classes, begun)


class PredictionSession(SessionKind):
    MACHINE: ClassVar[type[InferenceDataOwner]] = LearningDataOwner
    ARGUMENTS: ClassVar[Mapping[str, Any]] = {"purpose": "prediction", "smallest_cohort": 2, "entropy": os.urandom}

    def __init__(self, parameters: AdapterParameters) -> None:
        shares = shares_of_known(parameters)
        super().__init__(lambda terms: prediction_plan(terms, shares))


@dataclass(frozen=True, kw_only=True)
class PredictionSettings(ModelOwnerSettings):
    """Settings of a model owner whose data owners predict with trained adapters."""

    learning: PublicLearning = field(repr=False)


class PredictingParty(ModelOwnerParty):
    """Serve until cancelled. ValueError as for ModelOwnerParty."""

    KINDS: ClassVar[Kinds] = ADAPTATION_MESSAGES
    MACHINE: ClassVar[type[LearningModelOwner]] = LearningModelOwner
    model: PrivateModel

    def __init__(self, settings: PredictionSettings, model: PrivateModel, event_log: EventLog) -> None:
        self._predicting = settings
        super().__init__(settings, model, event_log)

    def _terms(self) -> AdaptationTerms:
        own = self._predicting
        return learning_terms(
            self.model,
            own.learning,
            purpose="prediction",
            results=own.results,
            most_images=own.most_images,
            rounds=own.learning.schedule.rounds,
            smallest_cohort=2,
            audited=own.audited,
        )

    def _planned(self, terms: Terms, model: PrivateModel) -> PassPlan:
        return _plan(self._predicting.learning, terms, nothing(self._predicting.learning.sizes))

    def _arguments(self, peer: str) -> dict[str, Any]:
        # Such a session opens no sums.
        return {"sums": RoundSums(OpeningPolicy(rounds=0, owners=0, smallest_cohort=2, colluders=0))}


def _tensors(parameters: ParameterShares) -> list[torch.Tensor]:
    return [tensor for part in (*parameters.adapters, parameters.head) for tensor in vars(part).values()]
