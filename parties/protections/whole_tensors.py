"""What protections that keep back whole tensors share: a weight for every tensor, zero for those that stay."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated

import numpy as np
from msgspec import Meta

from tacit.models.configuration import TrainingConfiguration
from tacit.models.layout import Layout
from tacit.parties.protections.protection import Facts, Scheme
from tacit.parties.protections.sides import Protected, Trained
from tacit.protocol.sum.configuration import Terms
from tacit.secagg.packing import WeightForm


class WholeTensors(Scheme, frozen=True, kw_only=True):
    """A client keeps back whole tensors."""

    skip_masked_layers: Annotated[
        bool,
        Meta(
            description="Leave what is kept back out of the message instead of sending zeros: with aggregation.mode = "
            '"none" only, where the server sees the zeros as well; under secure aggregation it would tell what the '
            "masks hide."
        ),
    ] = False

    def facts(self) -> Facts:
        return Facts(form=WeightForm.TENSOR, skip_zeros=self.skip_masked_layers)

    def check(self, terms: Terms, training: TrainingConfiguration) -> None:
        if self.skip_masked_layers and terms.secure:
            raise ValueError(
                f'protection.skip_masked_layers = true: with aggregation.mode = "{terms.mode}" the masks hide which '
                "layers a client keeps back, and a message without them would tell; set it to false, or "
                'aggregation.mode to "none", where the server sees every update anyway'
            )


def without(trained: Trained, layout: Layout, kept: Collection[str]) -> Protected:
    """The update without the tensors of these names."""
    weights = np.array([0 if entry.name in kept else trained.samples for entry in layout.entries])
    return Protected(
        trained.values,
        weights,
        np.repeat(weights, layout.tensor_sizes).astype(np.float32),
        kept=sum(entry.size for entry in layout.entries if entry.name in kept),
    )
