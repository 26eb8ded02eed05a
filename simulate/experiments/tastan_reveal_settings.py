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
"""For one batch, like the next three: the median. Runs in the clear have no parties that send or wait."""
MODEL_OWNER_SENT: Final = Quantity(name="sent by the model owner", unit="MB")
ONLINE: Final = Quantity(name="online phase", unit="s")
WAITED: Final = Quantity(name="waiting for preprocessing", unit="s")
REFUSED: Final = Quantity(name="batches refused", decimals=0)
REVEALED: Final = Quantity(name="outputs revealed", decimals=0)
"""Outputs of single images; this and the next ones concern one data owner, and rows with outputs to copy from."""
ORDERED: Final = Quantity(name="orders found", unit="%", decimals=1)
"""Fraction of the outputs that were matched to their own image, without the last block's."""
COPIES: Final = Quantity(name="copies", decimals=0)
ERROR: Final = Quantity(name="largest error", decimals=3)
"""Error of a copy on held-out pairs, relative to the blocks' increment."""
AGREEMENT: Final = Quantity(name="agreement", decimals=3)
"""Agreement of the victim with copies in place of its blocks with the victim: a fraction of the test images."""
WITHOUT: Final = Quantity(name="agreement without the blocks", decimals=3)
COPIED: Final = (REVEALED, ORDERED, COPIES, ERROR, AGREEMENT, WITHOUT)
COLUMNS: Final = (ACCURACY, DATA_OWNER_SENT, MODEL_OWNER_SENT, ONLINE, WAITED, REFUSED, *COPIED)


@dataclass(frozen=True, kw_only=True)
class RevealSettings:
    experiment: AdaptationExperiment
    """Without data, seed, known classes and reveal."""
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
