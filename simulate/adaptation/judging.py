"""Adapters in the clear, beside the model that they were learned for: what nobody but a simulation can do."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import cross_entropy

from tacit.models.adapters.federated import Features, balanced
from tacit.models.adapters.parallel import AdapterParameters, FinalNorm, block_outputs, logits
from tacit.models.friendly.transformer import FriendlyTransformer
from tacit.parties.adaptation.public import PublicLearning
from tacit.simulate.adaptation.setting import Labelled


@dataclass(frozen=True)
class AdaptersJudged:
    """On images that nobody has learned from."""

    accuracy: float
    balanced_accuracy: float
    loss: float


class Judge:
    """Of the common adapters of a run, on its test images."""

    def __init__(self, learning: PublicLearning, transformer: FriendlyTransformer, test: Labelled) -> None:
        ones = torch.ones(learning.public.sizes.width, dtype=torch.float64)
        # On shares tokens have lost their mean, and a head reads them without factor and offset of the last norm.
        self._norm = FinalNorm(weight=ones, bias=torch.zeros_like(ones), epsilon=learning.epsilon)
        outputs = block_outputs(transformer, test.images).double()
        self._test = Features(outputs=outputs - outputs.mean(-1, keepdim=True), labels=test.labels)

    @torch.no_grad()
    def logits(self, parameters: AdapterParameters) -> torch.Tensor:
        """Float64 [N, classes], of all images."""
        return logits(parameters, self._norm, self._test.outputs)

    def judged(self, parameters: AdapterParameters) -> AdaptersJudged:
        """How well these adapters do."""
        found = self.logits(parameters)
        answers = found.argmax(-1)
        return AdaptersJudged(
            accuracy=(answers == self._test.labels).double().mean().item(),
            balanced_accuracy=balanced(answers, self._test.labels),
            loss=cross_entropy(found, self._test.labels).item(),
        )
