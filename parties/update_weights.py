"""The weights of a client's update: what each protection multiplies it by before it is summed.

Without protection one weight serves all coordinates. `fixed-position` has a weight for every tensor, zero for the
position embedding (Lu et al. 2022). Binary weights are a zero or a one for every coordinate, and clients then count
alike (Sawada et al. 2024, Eq. 11 and 12).
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt

from tacit.models.binary_weights import binary_weights, zero_probabilities
from tacit.models.configuration import ProtectionConfiguration
from tacit.models.layout import Flat, Layout
from tacit.secagg.keystream import SEED_BYTES, Usage, keystream

POSITION_EMBEDDING = "pos_embed"
"""The name of that tensor in timm's vision transformers."""

Weights = int | npt.NDArray[np.integer[Any]] | npt.NDArray[np.bool_]


class UpdateWeights:
    """The weights of one client. seed: as for its training; locked binary weights last as long as this object.

    Raises ValueError as `check_protection` does.
    """

    def __init__(self, layout: Layout, protection: ProtectionConfiguration, *, seed: int | None) -> None:
        self._layout = layout
        self._protection = protection
        self._seed = seed
        self._probabilities = check_protection(layout, protection)
        self._locked = self._draw(0) if protection.scheme == "locked-binary-weights" else None

    def of(self, round: int, samples: int) -> tuple[Weights, Flat]:
        """The weights of a round in the form of the scheme, and what they multiply the update by: () or [D]."""
        if self._protection.binary:
            drawn = self._draw(round) if self._locked is None else self._locked
            return drawn, drawn.astype(np.float32)
        if self._protection.scheme == "fixed-position":
            weights = np.array([0 if entry.name == POSITION_EMBEDDING else samples for entry in self._layout.entries])
            return weights, np.repeat(weights, self._layout.tensor_sizes).astype(np.float32)
        return samples, np.asarray(samples, np.float32)

    def _draw(self, round: int) -> npt.NDArray[np.bool_]:
        if self._seed is None:
            seed = os.urandom(SEED_BYTES)
        else:
            seed = round_seeds(self._seed, round)[2].generate_state(SEED_BYTES // 4, np.uint32).tobytes()
        random = keystream(seed, Usage.BINARY_WEIGHTS, 2 * self._layout.size)
        return binary_weights(
            self._layout, self._probabilities, np.frombuffer(random, "<u2").astype(np.uint16, copy=False)
        )


def check_protection(layout: Layout, protection: ProtectionConfiguration) -> tuple[float, ...]:
    """The probability of a zero in every tensor. Raises ValueError for a protection that does not fit the model."""
    if protection.scheme == "fixed-position" and POSITION_EMBEDDING not in {entry.name for entry in layout.entries}:
        raise ValueError(
            'protection.scheme = "fixed-position": this model has no position embedding called '
            f'"{POSITION_EMBEDDING}" that could be fixed'
        )
    return zero_probabilities(layout, protection.zero_probability, protection.layers)


def round_seeds(seed: int | None, round: int) -> list[np.random.SeedSequence]:
    """Independent seeds of a round: of training, rounding, and weights; None draws them from the operating system."""
    return np.random.SeedSequence(None if seed is None else [seed, round]).spawn(3)
