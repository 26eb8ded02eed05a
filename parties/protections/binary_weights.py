"""Random binary weights (Sawada et al. 2024, Eq. 11 and 12): a client contributes to some coordinates only.

Three protections differ in the draw of the weights: each client alone, anew in every round; each client alone, once; or
all under a common key, so that no coordinate has few contributors (models/binary_weights.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Final

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta

from tacit.models.binary_weights import binary_weights, coordinated_weights, coordination_words, zero_probabilities
from tacit.models.configuration import TrainingConfiguration
from tacit.models.layout import Layout
from tacit.parties.protections.protection import (
    Disclosure,
    Facts,
    MinContributors,
    RekeyEvery,
    Scheme,
    check_contributors,
)
from tacit.parties.protections.sides import Basis, ClientSide, Group, Protected, Trained, Work, round_seeds
from tacit.protocol.core.primitives import Label
from tacit.protocol.sum.configuration import Proposal
from tacit.secagg.keystream import SEED_BYTES, Usage, keystream
from tacit.secagg.packing import WeightForm

if TYPE_CHECKING:
    from torch import nn

Probability = Annotated[float, Meta(ge=0.0, lt=1.0)]
Drawn = npt.NDArray[np.bool_]


class WeightsLabel:
    COORDINATED_WEIGHTS: Final = Label(b"tacit/1 coordinated binary weights")


class _BinaryWeights(Scheme, frozen=True, kw_only=True):
    works_encrypted: ClassVar[bool] = True

    zero_probability: Annotated[Probability, Meta(description="Probability that a client zeroes a coordinate.")] = 0.5
    layers: Annotated[
        dict[str, Probability],
        Meta(
            description="Other probabilities for the tensors whose names match these patterns, as in "
            '{"patch_embed.*" = 0.8, "pos_embed" = 0.9}; the last match counts.'
        ),
    ] = msgspec.field(default_factory=dict)
    min_contributors: MinContributors = 1

    def facts(self) -> Facts:
        return Facts(form=WeightForm.COORDINATE, min_contributors=self.min_contributors)

    def counts_samples(self, training: TrainingConfiguration) -> bool:
        return False

    def strengths(self) -> dict[str, float]:
        return {"zero_probability": min([self.zero_probability, *self.layers.values()])}

    def probabilities(self, layout: Layout) -> tuple[float, ...]:
        """Probabilities of a zero, for every tensor. ValueError for a pattern that matches none."""
        return zero_probabilities(layout, self.zero_probability, self.layers)

    def fits(self, model: nn.Module, work: Work) -> None:
        self.probabilities(work.layout(model))


class _IndependentWeights(_BinaryWeights, frozen=True, kw_only=True):
    """Weights that each client draws alone: the server does not move a coordinate with too few contributors, which
    protects them from recipients of the model."""

    def check(self, terms: Proposal, training: TrainingConfiguration) -> None:
        check_contributors(self.min_contributors, terms, lost_later=False)

    def disclosures(self, clients: int) -> tuple[Disclosure, ...]:
        # Of n clients exactly one keeps a coordinate with probability n (1 - R) R^(n - 1).
        zero = self.zero_probability
        alone = clients * (1 - zero) * zero ** (clients - 1)
        often = f"about {alone:.0%} of all coordinates in a sum over {clients} clients"
        if self.layers:
            often += ", in layers with other probabilities another share"
        server = Disclosure(
            "server",
            "how many clients contributed to each coordinate, and, where one alone did, the value of that client's "
            "update, without its name",
            often,
            alone,
        )
        if self.min_contributors > 1:
            return (server,)
        model = "the update of one client at each coordinate to which it alone contributed, by the step of the model"
        return (server, Disclosure("client", model, "protection.min_contributors = 1: the same coordinates", alone))

    def draw(self, basis: Basis, random: np.random.SeedSequence) -> Drawn:
        """Weights [D] from this seed if the client is seeded, else from the operating system's randomness."""
        seed = os.urandom(SEED_BYTES)
        if basis.seed is not None:
            seed = random.generate_state(SEED_BYTES // 4, np.uint32).tobytes()
        return binary_weights(basis.layout, self.probabilities(basis.layout), _words(seed, basis.layout.size))


class BinaryWeights(_IndependentWeights, frozen=True, kw_only=True, tag="binary-weights"):
    about: ClassVar[str] = "Every client zeroes random coordinates, others in every round."

    def client(self, basis: Basis) -> ClientSide:
        return _Client(basis, lambda trained: self.draw(basis, trained.random))


class LockedBinaryWeights(_IndependentWeights, frozen=True, kw_only=True, tag="locked-binary-weights"):
    """The same weights in every round, as long as the client's session lasts."""

    about: ClassVar[str] = "Every client zeroes random coordinates, always the same ones."

    def client(self, basis: Basis) -> ClientSide:
        drawn = self.draw(basis, round_seeds(basis.seed, 0)[2])
        return _Client(basis, lambda trained: drawn)


class CoordinatedBinaryWeights(_BinaryWeights, frozen=True, kw_only=True, tag="coordinated-binary-weights"):
    about: ClassVar[str] = (
        "Clients zero random coordinates that they draw under a common key, so that no coordinate has fewer "
        "contributors than min_contributors and the tolerated dropouts (aggregation.dropout) together, but for those "
        "that have none."
    )

    agreed_weights: ClassVar[bool] = True
    # Of two contributors each learns the other's value from the sum.
    min_contributors: MinContributors = 3
    rekey_every: RekeyEvery = 0

    def facts(self) -> Facts:
        return replace(super().facts(), group_key=True, rekey_every=self.rekey_every)

    def check(self, terms: Proposal, training: TrainingConfiguration) -> None:
        check_contributors(self.min_contributors, terms, lost_later=True)

    def client(self, basis: Basis) -> ClientSide:
        def drawn(trained: Trained) -> Drawn:
            if trained.group is None:
                raise ValueError("coordinated weights need a group key")
            survivors = basis.configuration.fewest_survivors(len(trained.group.key.members))
            return self.agreed(basis.layout, trained.round, trained.group, survivors=survivors)

        return _Client(basis, drawn)

    def agreed(self, layout: Layout, round: int, group: Group, *, survivors: int) -> Drawn:
        """The weights [D] of one member; survivors: of the smallest sum that any member helps to open."""
        members = len(group.key.members)
        seed = group.key.derive(WeightsLabel.COORDINATED_WEIGHTS, round.to_bytes(4, "little"))
        return coordinated_weights(
            layout,
            self.probabilities(layout),
            members=members,
            place=group.key.members.index(group.name),
            fewest=self.min_contributors + members - survivors,
            random=_words(seed, coordination_words(layout, members)),
        )


class _Client(ClientSide):
    def __init__(self, basis: Basis, weights: Callable[[Trained], Drawn]) -> None:
        super().__init__(basis)
        self._weights = weights

    def protect(self, trained: Trained) -> Protected:
        drawn = self._weights(trained)
        return Protected(trained.values, drawn, drawn.astype(np.float32))


def _words(seed: bytes, count: int) -> npt.NDArray[np.uint16]:
    random = keystream(seed, Usage.BINARY_WEIGHTS, 2 * count)
    return np.frombuffer(random, "<u2").astype(np.uint16, copy=False)
