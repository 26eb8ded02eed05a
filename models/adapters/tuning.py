"""Prepare a given model for fine-tuning, as set by model.tune: adapters, and which parameters require a gradient."""

from __future__ import annotations

import torch
from torch import nn

from tacit.models.adapters.configuration import ParallelConfiguration
from tacit.models.adapters.methods import Adapters
from tacit.models.adapters.parallel import GELU
from tacit.models.configuration import Architecture
from tacit.models.low_rank import add_low_rank
from tacit.models.networks import classifiers
from tacit.models.training import seeded


def tuned(model: nn.Module, configuration: Architecture, *, classes: int, seed: int) -> nn.Module:
    """Return the model with adapters, where only the trained part requires a gradient; `seed` decides random weights.
    ValueError for a model that cannot have them."""
    tune, rank = configuration.tune, configuration.rank
    if tune == "all":
        return model
    try:
        if tune == "parallel":
            # On the CPU also where a model is built on no device to see its sizes: the adapters draw from a generator.
            with torch.device("cpu"):
                adapters = Adapters(configuration=ParallelConfiguration(rank=rank), activation=GELU)
                return adapters.adapt(model, classes=classes, seed=seed)
        model.requires_grad_(False)
        if tune == "lora":
            with seeded(seed):
                add_low_rank(model, rank)
    except ValueError as error:
        raise ValueError(f'model.tune = "{tune}", model.name = "{configuration.name}": {error}') from None
    for classifier in classifiers(model, configuration.name):
        model.get_submodule(classifier).requires_grad_(True)
    return model
