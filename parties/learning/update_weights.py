"""The weights of a client's update: what each protection multiplies it by before it is summed.

Without protection one weight serves all coordinates. `fixed-position` has a weight for every tensor, zero for the
position embedding (Lu et al. 2022); so have `fedrsm`, `fedsplit` and `fedcg`, zero for what a client keeps back. Binary
weights are a zero or a one for every coordinate, and clients then count alike (Sawada et al. 2024, Eq. 11 and 12); so
they do with `dp-gaussian`, since no noise hides the number of a client's samples.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tacit.models.binary_weights import binary_weights, zero_probabilities
from tacit.models.configuration import ProtectionConfiguration
from tacit.models.coordinated_weights import coordinated_weights, coordination_words
from tacit.models.layout import Flat, Layout
from tacit.models.model_encryption import POSITION_EMBEDDING, random_bytes
from tacit.protocol.core.primitives import Label
from tacit.protocol.group_key.agreement import GroupKey
from tacit.protocol.sum.configuration import fewest_survivors
from tacit.secagg.keystream import SEED_BYTES, Usage, keystream

Weights = int | npt.NDArray[np.integer[Any]] | npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Group:
    """The members of a round with their key, and which of them this client is."""

    key: GroupKey
    name: str


class UpdateWeights:
    """The weights of one client. seed: as for its training; locked binary weights last as long as this object.

    dropout: the fraction of a cohort that may be lost after the weights were drawn. Raises ValueError as
    `check_protection` does.
    """

    def __init__(
        self, layout: Layout, protection: ProtectionConfiguration, *, seed: int | None, dropout: float = 0.0
    ) -> None:
        self._layout = layout
        self._protection = protection
        self._seed = seed
        self._dropout = dropout
        self._probabilities = check_protection(layout, protection)
        self._locked = self._draw(0) if protection.locked else None

    def of(
        self, round: int, samples: int, group: Group | None = None, *, kept: frozenset[str] = frozenset()
    ) -> tuple[Weights, Flat]:
        """The weights of a round in the form of the scheme, and what they multiply the update by: () or [D].

        group: with whom the weights are coordinated, if they are; kept: tensors that the client keeps back.
        """
        if self._protection.binary:
            drawn = self._locked
            if self._protection.masks == "coordinated":
                drawn = self._coordinate(round, group)
            elif drawn is None:
                drawn = self._draw(round)
            return drawn, drawn.astype(np.float32)
        if self._protection.by_tensor:
            if self._protection.fixed_position:
                kept |= {POSITION_EMBEDDING}
            weights = np.array([0 if entry.name in kept else samples for entry in self._layout.entries])
            return weights, np.repeat(weights, self._layout.tensor_sizes).astype(np.float32)
        weight = 1 if self._protection.noisy else samples
        return weight, np.asarray(weight, np.float32)

    def _draw(self, round: int) -> npt.NDArray[np.bool_]:
        if self._seed is None:
            seed = os.urandom(SEED_BYTES)
        else:
            seed = round_seeds(self._seed, round)[2].generate_state(SEED_BYTES // 4, np.uint32).tobytes()
        return binary_weights(self._layout, self._probabilities, _words(seed, self._layout.size))

    def _coordinate(self, round: int, group: Group | None) -> npt.NDArray[np.bool_]:
        if group is None:
            raise ValueError("coordinated weights need a group key")
        members = len(group.key.members)
        tolerated = members - fewest_survivors(members, self._dropout)
        seed = group.key.derive(Label.COORDINATED_WEIGHTS, round.to_bytes(4, "little"))
        return coordinated_weights(
            self._layout,
            self._probabilities,
            members=members,
            place=group.key.members.index(group.name),
            fewest=self._protection.min_contributors + tolerated,
            random=_words(seed, coordination_words(self._layout, members)),
        )


def check_protection(layout: Layout, protection: ProtectionConfiguration) -> tuple[float, ...]:
    """The probability of a zero in every tensor. Raises ValueError for a protection that does not fit the model."""
    if protection.encrypted:
        random_bytes(layout)
    if protection.fixed_position and POSITION_EMBEDDING not in {entry.name for entry in layout.entries}:
        raise ValueError(
            f'protection.scheme = "{protection.scheme}": this model has no position embedding called '
            f'"{POSITION_EMBEDDING}" that could be fixed'
        )
    return zero_probabilities(layout, protection.zero_probability, protection.layers)


def round_seeds(seed: int | None, round: int) -> list[np.random.SeedSequence]:
    """Independent seeds of a round: of training, rounding, and weights; None draws them from the operating system."""
    return np.random.SeedSequence(None if seed is None else [seed, round]).spawn(3)


def _words(seed: bytes, count: int) -> npt.NDArray[np.uint16]:
    random = keystream(seed, Usage.BINARY_WEIGHTS, 2 * count)
    return np.frombuffer(random, "<u2").astype(np.uint16, copy=False)
