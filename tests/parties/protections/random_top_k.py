"""Random top-k sparsification: a client sends a random half of its largest coordinates, others in every round."""

from typing import Annotated, ClassVar

import numpy as np
from msgspec import Meta

from tacit.models.configuration import TrainingConfiguration
from tacit.parties.protections.catalogue import register
from tacit.parties.protections.protection import Facts, MinContributors, Scheme, check_contributors
from tacit.parties.protections.sides import Basis, ClientSide, Protected, Trained
from tacit.protocol.sum.configuration import Proposal
from tacit.secagg.packing import WeightForm


@register
class RandomTopK(Scheme, frozen=True, kw_only=True, tag="random-top-k"):
    """Clients count alike; the sum carries how many contributed to each coordinate."""

    about: ClassVar[str] = "Every client sends a random half of the largest coordinates of its update."

    kept_back: Annotated[
        float, Meta(description="Share of the coordinates that a client does not send.", ge=0.5, lt=1.0)
    ] = 0.9
    min_contributors: MinContributors = 1

    def facts(self) -> Facts:
        return Facts(form=WeightForm.COORDINATE, min_contributors=self.min_contributors)

    def counts_samples(self, training: TrainingConfiguration) -> bool:
        return False

    def strengths(self) -> dict[str, float]:
        return {"kept_back": self.kept_back}

    def check(self, terms: Proposal, training: TrainingConfiguration) -> None:
        check_contributors(self.min_contributors, terms, lost_later=False)

    def client(self, basis: Basis) -> ClientSide:
        return _Client(basis, self.kept_back)


class _Client(ClientSide):
    def __init__(self, basis: Basis, kept_back: float) -> None:
        super().__init__(basis)
        self._count = max(1, round((1 - kept_back) * basis.layout.size))

    def protect(self, trained: Trained) -> Protected:
        generator = np.random.default_rng(None if self.basis.seed is None else trained.random)
        largest = np.argsort(-np.abs(trained.values), kind="stable")[: 2 * self._count]
        sent = np.zeros(len(trained.values), np.bool_)
        sent[generator.choice(largest, self._count, replace=False)] = True
        return Protected(trained.values, sent, sent.astype(np.float32))
