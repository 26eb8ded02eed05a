"""Rows, columns and settings of `tastan-reveal`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

from tacit.models.adapters.configuration import AdaptationConfiguration, Reveal
from tacit.models.configuration import DataConfiguration, ModelConfiguration, TrainingConfiguration
from tacit.parties.runs.adaptation import AdaptationExperiment
from tacit.parties.runs.experiment import FederationSection
from tacit.simulate.experiments.results import Quantity

CLEAR: Final = "in the clear"
REVEALS: Final[tuple[Reveal, ...]] = ("none", "sampled", "all")
ROWS: Final = (CLEAR, *REVEALS)

ACCURACY: Final = Quantity(name="balanced accuracy", decimals=3)
"""On the test images after the last round."""
DATA_OWNER_SENT: Final = Quantity(name="sent by a data owner", unit="MB")
"""For one batch, as the next three: the median. In the clear there are no parties, which send or wait."""
MODEL_OWNER_SENT: Final = Quantity(name="sent by the model owner", unit="MB")
ONLINE: Final = Quantity(name="online phase", unit="s")
WAITED: Final = Quantity(name="waiting for preprocessing", unit="s")
REFUSED: Final = Quantity(name="batches refused", decimals=0)
REVEALED: Final = Quantity(name="outputs revealed", decimals=0)
"""Of single images; this and what follows is of one data owner, and of rows with something to copy from."""
ORDERED: Final = Quantity(name="orders found", unit="%", decimals=1)
"""Share of the outputs that were given to their own image, but for the last block's."""
COPIES: Final = Quantity(name="copies", decimals=0)
ERROR: Final = Quantity(name="largest error", decimals=3)
"""Of a copy on pairs that were held out, relative to what the blocks add."""
AGREEMENT: Final = Quantity(name="agreement", decimals=3)
"""Of the victim with copies in the place of its blocks, with the victim: a share of the test images."""
WITHOUT: Final = Quantity(name="agreement without the blocks", decimals=3)
COPIED: Final = (REVEALED, ORDERED, COPIES, ERROR, AGREEMENT, WITHOUT)
COLUMNS: Final = (ACCURACY, DATA_OWNER_SENT, MODEL_OWNER_SENT, ONLINE, WAITED, REFUSED, *COPIED)


@dataclass(frozen=True, kw_only=True)
class RevealSettings:
    experiment: AdaptationExperiment
    """Without data, seed, known classes and what is revealed."""
    copy_epochs: int
    copy_learning_rate: float
    classes: tuple[int, ...] = ()


def experiment(
    *,
    model: ModelConfiguration,
    training: TrainingConfiguration,
    clients: int,
    rounds: int,
    epochs: int,
    adaptation: AdaptationConfiguration,
) -> AdaptationExperiment:
    return AdaptationExperiment(
        federation=FederationSection(clients=clients, rounds=rounds),
        model=model,
        data=DataConfiguration(partition="iid"),
        training=training,
        adaptation=msgspec.structs.replace(adaptation, backbone_epochs=epochs),
    )
