"""Gaussian noise on every update, after clipping (models/gaussian_noise.py), and its cost against a privacy budget.

The cost of updates is the sum of their inverse squared multipliers (see parties/runs/privacy.py), from which delta
follows for every epsilon. Clients count alike, and send nothing about their training: no noise would hide the number of
their samples.
"""

from __future__ import annotations

import math
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Final

import numpy as np
from msgspec import Meta

from tacit.models.configuration import TrainingConfiguration
from tacit.models.gaussian_noise import noise_bytes, noisy, shortened
from tacit.parties.protections.protection import Noise, Scheme
from tacit.parties.protections.sides import Basis, ClientSide, Protected, Trained, weighted
from tacit.protocol.sum.configuration import Proposal

if TYPE_CHECKING:
    from tacit.models.training import LocalStatistics


METRICS_PART: Final = 0.3
"""Share of a custom training step's metrics, together, in the norm of an update."""
LARGEST_NOISY_METRIC: Final = 10.0
"""Clipping bound on a metric's magnitude, since the noise grows with it."""


def cost_of(noise: Noise | None) -> float:
    """Privacy cost of one update; infinite if unbounded."""
    return 4.0 / noise.multiplier**2 if noise is not None and noise.norm else math.inf


def affordable(spent: float, *, epsilon: float, delta: float) -> bool:
    """Whether updates of this total cost are (epsilon, delta)-differentially private."""
    if not spent:
        return True
    deviation = 1.0 / math.sqrt(spent)
    near, far = 0.5 / deviation - epsilon * deviation, -0.5 / deviation - epsilon * deviation
    return _below(near) - math.exp(epsilon) * _below(far) <= delta


def cost_within(epsilon: float, delta: float) -> float:
    """Largest total cost of updates that are (epsilon, delta)-differentially private."""
    least, most = 0.0, 1.0 if epsilon else 0.0
    while most and affordable(most, epsilon=epsilon, delta=delta):
        least, most = most, 2 * most
    while least < (between := (least + most) / 2) < most:
        least, most = (between, most) if affordable(between, epsilon=epsilon, delta=delta) else (least, between)
    return least


def _below(bound: float) -> float:
    return 0.5 * math.erfc(-bound / math.sqrt(2.0))


class GaussianNoise(Scheme, frozen=True, kw_only=True, tag="dp-gaussian"):
    """Clients clip the norm of their updates and add noise."""

    about: ClassVar[str] = "Gaussian noise is added to every update."

    dp_clip: Annotated[
        float,
        Meta(
            description="Clipping bound on the Euclidean norm of an update; 0: unbounded, which guarantees nothing.",
            ge=0.0,
            le=1e6,
        ),
    ] = 0.85
    dp_noise: Annotated[
        float,
        Meta(
            description="Standard deviation of the noise of a coordinate, as a multiple of dp_clip; with "
            "dp_clip = 0 the standard deviation itself. The default suits a small model trained by few "
            "clients, and is no protection to rely on: check epsilon, and raise it with the number of clients.",
            gt=0.0,
            le=1e6,
        ),
    ] = 0.01
    dp_delta: Annotated[float, Meta(description="The delta for which the summary states epsilon.", gt=0.0, lt=1.0)] = (
        1e-5
    )

    def counts_samples(self, training: TrainingConfiguration) -> bool:
        return False

    def strengths(self) -> dict[str, float]:
        # Relative to the largest norm; without one, noise of any size guarantees nothing.
        return {"dp_noise": self.dp_noise if self.dp_clip else 0.0}

    def check(self, terms: Proposal, training: TrainingConfiguration) -> None:
        if training.held_out:
            raise ValueError(
                f'training.held_out = {training.held_out}: with protection.scheme = "dp-gaussian" no number leaves a '
                "client without noise, and how many images a model gets right would; set it to 0"
            )

    def noise(self) -> Noise:
        return Noise(multiplier=self.dp_noise, norm=self.dp_clip, delta=self.dp_delta)

    def client(self, basis: Basis) -> ClientSide:
        return _Client(basis, self.noise())


class _Client(ClientSide):
    def __init__(self, basis: Basis, noise: Noise) -> None:
        super().__init__(basis)
        self._noise = noise

    def protect(self, trained: Trained) -> Protected:
        # Metrics are clipped and made noisy too: the update gives way to them a little.
        noise, size = self._noise, len(trained.values)
        part = METRICS_PART if len(trained.own) else 0.0
        scale = (part * noise.norm if noise.norm else 1.0) / math.sqrt(max(1, len(trained.own))) / LARGEST_NOISY_METRIC
        own = (np.clip(trained.own, -LARGEST_NOISY_METRIC, LARGEST_NOISY_METRIC) * scale).astype(np.float32)
        update = shortened(trained.values, noise.norm * math.sqrt(1.0 - part**2))
        together = np.concatenate([update, own])
        count = noise_bytes(len(together))
        seeded = self.basis.seed is not None
        random = np.random.default_rng(trained.random).bytes(count) if seeded else os.urandom(count)
        values = noisy(shortened(together, noise.norm), noise.deviation, random)
        return replace(weighted(replace(trained, values=values[:size]), 1), own=values[size:] / scale)

    def reported(self, statistics: LocalStatistics) -> LocalStatistics:
        # The privacy accounting covers the update's noise; metrics without noise would reveal more.
        from tacit.models.training import NOTHING

        return NOTHING
