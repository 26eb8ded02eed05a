"""Columns and rows of `foundation`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tacit.parties.runs.adaptation import AdaptationExperiment
from tacit.simulate.experiments.measures import Row
from tacit.simulate.experiments.results import Quantity

SHARES: Final = Quantity(name="double-blind", unit="%", decimals=1)
"""Accuracy on test images after the last round, like the next two."""
CLEAR: Final = Quantity(name="in the clear", unit="%", decimals=1)
ALONE: Final = Quantity(name="data owners alone", unit="%", decimals=1)
REFUSED: Final = Quantity(name="batches refused", decimals=0)
BATCHES: Final = Quantity(name="batches", decimals=0)
IMAGES: Final = Quantity(name="images", decimals=0)
COLUMNS: Final = (SHARES, CLEAR, ALONE, BATCHES, REFUSED, IMAGES)


@dataclass(frozen=True, kw_only=True)
class FoundationRow(Row):
    experiment: AdaptationExperiment
    """Without seed, checkpoint and place of the images."""
    images: int
    """Training images of all data owners together."""
