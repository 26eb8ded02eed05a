"""How much the update of a client may weigh: as many images as the largest client has, unless the experiment says."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Final

import msgspec
import numpy as np

from tacit.models.datasets.samples import Indices, Source
from tacit.models.partition import divide
from tacit.parties.runs.experiment import Experiment

STEP: Final = 100
"""A computed weight is a multiple of this, so that the ring hardly ever depends on the draw of a split."""


def shares(experiment: Experiment, source: Source, seed: int) -> list[Indices]:
    """The training images of every client: its part, without what the server shows to all. ValueError of `divide`."""
    labels = source.train.labels
    parts = divide(
        labels, experiment.data, clients=experiment.federation.clients, seed=seed, centres=source.train.centres
    )
    shown = experiment.protection.shown(labels, len(source.class_names))
    return [np.setdiff1d(part, shown) for part in parts]


def largest_weight(experiment: Experiment, parts: Sequence[Indices]) -> int:
    """The weight that these shares need: images of the largest one, without those held out from training."""
    if not experiment.protection.counts_samples(experiment.training):
        return 1
    held_out = Fraction(str(experiment.training.held_out))
    return max(len(part) - math.floor(held_out * len(part)) for part in parts)


def weighed(experiment: Experiment, parts: Sequence[Indices]) -> Experiment:
    """The experiment with a max_weight that is enough. ValueError if it sets one that is not."""
    needed, given = largest_weight(experiment, parts), experiment.aggregation.max_weight
    if given and given < needed:
        raise ValueError(
            f"aggregation.max_weight = {given}: the largest client has {needed:,} samples to train on; leave the key "
            f"out, and it is computed, or set it to {needed} or more"
        )
    computed = -(-needed // STEP) * STEP
    aggregation = msgspec.structs.replace(experiment.aggregation, max_weight=given or computed)
    return msgspec.structs.replace(experiment, aggregation=aggregation)
