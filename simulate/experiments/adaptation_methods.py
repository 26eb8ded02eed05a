"""Methods of adaptation, as rows of a table: beside the blocks of the frozen backbone, or throughout its weights.

Methods beside the blocks train by the explicit step in models/adapters/gradients.py; methods throughout the weights
train by autograd, for comparison. Loads torch on demand.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np

from tacit.models.adapters.configuration import AdapterConfiguration, ParallelConfiguration

if TYPE_CHECKING:
    import torch
    from torch import nn

    from tacit.models.adapters.federated import LabelledOutputs, RoundWork, Schedule
    from tacit.models.adapters.methods import Adaptation
    from tacit.models.friendly.transformer import FriendlyTransformer
    from tacit.simulate.experiments.adaptation_images import LabelledImages


@dataclass(frozen=True, kw_only=True, eq=False)
class Setting:
    backbone: FriendlyTransformer
    classes: int
    device: torch.device
    clients: Sequence[LabelledImages]
    test: LabelledImages
    clients_outputs: Sequence[LabelledOutputs]
    test_outputs: LabelledOutputs


class Method(Protocol):
    def learn(self, setting: Setting, schedule: Schedule, work: RoundWork, *, seed: int) -> float:
        """Adapt to the clients' images; return the balanced accuracy on the test images. FloatingPointError if training
        diverges, ActivationError for images out of the backbone's calibrated range."""


@dataclass(frozen=True, kw_only=True)
class BesideBlocks:
    """Adapters and a head, or the head alone, on the outputs of the blocks."""

    configuration: AdapterConfiguration = field(default_factory=ParallelConfiguration)
    sampled: bool = False
    """Whether blocks are sampled in training (models/adapters/parallel.py)."""

    def learn(self, setting: Setting, schedule: Schedule, work: RoundWork, *, seed: int) -> float:
        from tacit.models.adapters.federated import balanced_accuracy, federated
        from tacit.models.adapters.parallel import ALL_BLOCKS, StochasticBlocks, each, final_norm, initial

        backbone = setting.backbone
        tokens, width = backbone.size
        sizes = {"blocks": len(backbone.blocks), "tokens": tokens, "width": width, "classes": setting.classes}
        start = each(lambda one: one.to(setting.device), initial(self.configuration, **sizes, seed=seed))
        norm = final_norm(backbone)
        clients: Sequence[LabelledOutputs] = setting.clients_outputs
        sampling = StochasticBlocks() if self.sampled else ALL_BLOCKS
        *_, last = federated(start, norm, clients, schedule, work, seed=seed, sampling=sampling)
        return balanced_accuracy(last, norm, setting.test_outputs)


@dataclass(frozen=True)
class Throughout:
    """All weights of the backbone, and a new head. Its polynomials are scaled to each batch, in training and tests,
    because changing weights change the intervals."""

    def adaptation(self) -> Adaptation:
        from tacit.models.adapters.methods import FullFineTuning

        return FullFineTuning()

    def learn(self, setting: Setting, schedule: Schedule, work: RoundWork, *, seed: int) -> float:
        model = self.adaptation().adapt(setting.backbone, classes=setting.classes, seed=seed).to(setting.device)
        federated_model(model.train(), setting.clients, schedule, work, seed=seed)
        return model_accuracy(model, setting.test)


@dataclass(frozen=True)
class LowRankThroughout(Throughout):
    """LoRA of the queries, keys and values of all blocks, and a new head."""

    def adaptation(self) -> Adaptation:
        from tacit.models.adapters.methods import LowRankAdaptation

        return LowRankAdaptation()


def federated_model(
    model: nn.Module, clients: Sequence[LabelledImages], schedule: Schedule, work: RoundWork, *, seed: int
) -> None:
    """Train the parameters that require gradients, in place, on the model's device; clients draw their batches as in
    models/adapters/federated.py. FloatingPointError as soon as the loss of a batch is not finite."""
    import torch
    from torch.nn.functional import cross_entropy

    from tacit.models.adapters.methods import trained

    parameters = list(trained(model).values())
    common = [parameter.detach().clone() for parameter in parameters]
    for number in range(1, schedule.rounds + 1):
        sums = [torch.zeros_like(value) for value in common]
        for index, client in enumerate(clients):
            _put(parameters, common)
            generator = np.random.default_rng([seed, number, index])
            for order in work.batches(len(client.labels), generator):
                batch = client.part(order)
                device = parameters[0].device
                loss = cross_entropy(model(batch.tensors().to(device)), batch.labels.to(device))
                if not math.isfinite(loss.item()):
                    raise FloatingPointError(
                        f"round {number}, client {index}: the loss of a batch is {loss.item()}; training diverged, "
                        "take a smaller learning rate"
                    )
                slopes = torch.autograd.grad(loss, parameters)
                with torch.no_grad():
                    for parameter, slope in zip(parameters, slopes, strict=True):
                        parameter.sub_(schedule.rate(number) * slope)
            for total, parameter in zip(sums, parameters, strict=True):
                total += parameter.detach()
        common = [total / len(clients) for total in sums]
    _put(parameters, common)


def model_accuracy(model: nn.Module, images: LabelledImages) -> float:
    """Return the balanced accuracy, 0 to 1, in the current mode of the model."""
    import torch

    from tacit.models.adapters.federated import balanced

    device = next(model.parameters()).device
    with torch.no_grad():
        answers = [model(batch.tensors().to(device)).argmax(-1).cpu() for batch in images.batches()]
    return balanced(torch.cat(answers), images.labels)


def _put(parameters: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    import torch

    with torch.no_grad():
        for parameter, value in zip(parameters, values, strict=True):
            parameter.copy_(value)
