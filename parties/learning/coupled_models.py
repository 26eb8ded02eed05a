"""FedCG at its parties: what a client trains beside its extractor, and how the server distils (models/fedcg.py).

The discriminator of a client lives in its memory, as its extractor does (local_part.py). The server has the vector of
every client, and thus a generator and a classifier of each, which it gives as much to say as they have samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy

import numpy as np
import torch

from tacit.models.configuration import ProtectionConfiguration, TrainingConfiguration
from tacit.models.fedcg import CoupledModel, discriminator
from tacit.models.fedcg_training import distil, train_client
from tacit.models.layout import Flat, Layout
from tacit.models.training import LocalStatistics


class Imitation:
    """The training of one client, whose generator learns to imitate its extractor. seed: of the discriminator."""

    def __init__(self, model: CoupledModel, *, seed: int, device: torch.device) -> None:
        self._model, self._device = model, device
        self._discriminator = discriminator(model, seed)

    def train(
        self, x: torch.Tensor, y: torch.Tensor, configuration: TrainingConfiguration, *, round: int, seed: int
    ) -> LocalStatistics:
        """Train the model in place; raises as `train_client` does."""
        return train_client(
            self._model, self._discriminator, x, y, configuration, round=round, seed=seed, device=self._device
        )


class Distiller:
    """The server's training. seed: None draws from the operating system's randomness."""

    def __init__(
        self,
        model: CoupledModel,
        protection: ProtectionConfiguration,
        training: TrainingConfiguration,
        *,
        private: frozenset[str],
        seed: int | None,
        device: torch.device,
    ) -> None:
        self._model = deepcopy(model)
        self._layout = Layout.of(model)
        self._steps, self._batch_size = protection.distillation_steps, training.batch_size
        self._private, self._device = private, device
        self._seeds = np.random.SeedSequence(seed)

    def distil(self, mean: Flat, clients: Sequence[tuple[Flat, int]]) -> Flat:
        """The shared part of a new model, and the private part of `mean`: float32 [size].

        mean: where to start; clients: their models, and how many samples stand behind each. ValueError, naming the
        tensor, for a model that is not finite.
        """
        samples = sum(count for _, count in clients)
        teachers = [(self._loaded(flat), count / samples) for flat, count in clients]
        student = self._loaded(mean)
        seed = int(self._seeds.spawn(1)[0].generate_state(1, np.uint64)[0] >> np.uint64(1))
        distil(student, teachers, steps=self._steps, batch_size=self._batch_size, seed=seed, device=self._device)
        distilled = self._layout.flatten(student)
        parts, kept = self._layout.split(distilled), self._layout.split(mean)
        for name in self._private:
            parts[name][...] = kept[name]
        return distilled

    def _loaded(self, flat: Flat) -> CoupledModel:
        model = deepcopy(self._model)
        self._layout.load_into(model, flat)
        return model
