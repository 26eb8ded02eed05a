"""Adaptation in the clear, and the evaluation of adapters: code that needs model, adapters and images in one place.

Features are the inputs of a step on shares. Images, batches and initial parameters of `InTheClear` are those of the
parties' run with the same seed, so that both differ by the rounding of shares alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from tacit.models.adapters.federated import Features, FullBatches, Order, balanced, federated
from tacit.models.adapters.parallel import AdapterParameters, FinalNorm, logits, read_outputs
from tacit.models.friendly.transformer import FriendlyTransformer
from tacit.parties.adaptation.public import PublicLearning
from tacit.parties.runs.adaptation import AdaptationExperiment
from tacit.simulate.adaptation.results import AdaptersMetrics
from tacit.simulate.adaptation.setting import AdaptationSetting, Labelled


def features(learning: PublicLearning, transformer: FriendlyTransformer, own: Labelled) -> Features:
    blocks, tokens, _ = learning.sizes.kept
    halvings = learning.scales.halvings
    outputs = read_outputs(transformer, own.images, blocks=blocks, tokens=tokens, halvings=halvings)
    return Features(outputs=outputs, labels=own.labels)


def head_norm(learning: PublicLearning) -> FinalNorm:
    return FinalNorm.plain(learning.public.sizes.width, learning.epsilon)


def drawn_batches(experiment: AdaptationExperiment, images: int, *, seed: int, owner: int) -> list[Order]:
    """Return indices of the images of every batch, in all rounds without repetition, of a data owner with `images`
    images; owner: its number, from 0."""
    work = FullBatches(experiment.adaptation.batch, experiment.adaptation.batches)
    return [
        batch
        for number in range(1, experiment.federation.rounds + 1)
        for batch in work.batches(images, np.random.default_rng([seed, number, owner]))
    ]


class Judge:
    def __init__(self, learning: PublicLearning, transformer: FriendlyTransformer, test: Labelled) -> None:
        self._norm = head_norm(learning)
        self._test = features(learning, transformer, test)

    @torch.no_grad()
    def logits(self, parameters: AdapterParameters) -> torch.Tensor:
        """Return logits of all images, float64 [N, classes]."""
        return logits(parameters, self._norm, self._test.outputs)

    def judged(self, parameters: AdapterParameters) -> AdaptersMetrics:
        found = self.logits(parameters)
        answers = found.argmax(-1)
        return AdaptersMetrics(
            accuracy=(answers == self._test.labels).double().mean().item(),
            balanced_accuracy=balanced(answers, self._test.labels),
            loss=cross_entropy(found, self._test.labels).item(),
        )


class InTheClear:
    def __init__(self, learning: PublicLearning, found: AdaptationSetting, *, seed: int) -> None:
        self._learning, self._seed = learning, seed
        self._norm = head_norm(learning)
        self.owners = [
            features(learning, found.served.transformer, own) for own in map(found.of_owner, range(len(found.owners)))
        ]

    def rounds(
        self, owners: Sequence[Features] | None = None, *, weights: Sequence[int] = ()
    ) -> Iterator[AdapterParameters]:
        """Yield the common parameters after every round of these data owners, or of all."""
        learning = self._learning
        work, chosen = FullBatches(learning.batch, learning.batches), self.owners if owners is None else owners
        first, norm, schedule = learning.initial(), self._norm, learning.schedule
        return federated(first, norm, chosen, schedule, work, seed=self._seed, weights=weights)

    def alone(self) -> Iterator[AdapterParameters]:
        """Yield each data owner's final parameters after as many steps on its own images alone."""
        for own in self.owners:
            *_, last = self.rounds([own])
            yield last
