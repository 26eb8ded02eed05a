"""What a data owner does in the clear with the outputs of blocks that it was told: a step of gradient descent, the
paper's local learning, and predictions.

The rows of all outputs are brought into the order of the last one by the relative permutations; then adapters, head and
their derivatives are those of models/adapters. The mean over a batch does not depend on its order, so the step is that
of the batch as it was, of the outputs that were told.
"""

from __future__ import annotations

import torch

from tacit.models.adapters.activation import QUADRATIC_GELU, Activation
from tacit.models.adapters.gradients import Descent, descent, stepped
from tacit.models.adapters.parallel import AdapterParameters, FinalNorm, logits
from tacit.parties.adaptation.shuffled import checked_order
from tacit.parties.adaptation.told_stages import ToldBatch


def told_step(
    parameters: AdapterParameters,
    norm: FinalNorm,
    batch: ToldBatch,
    *,
    rate: float,
    activation: Activation = QUADRATIC_GELU,
) -> tuple[AdapterParameters, Descent]:
    """The parameters, float64, after a step with this learning rate, and what the batch said of them before.

    norm: in front of the head. ValueError for labels that the head does not know, and outputs that do not fit.
    """
    found = descent(parameters, norm, batch.aligned, batch.labels, activation=activation)
    return stepped(parameters, found.gradient, rate), found


def told_logits(
    parameters: AdapterParameters, norm: FinalNorm, batch: ToldBatch, *, activation: Activation = QUADRATIC_GELU
) -> torch.Tensor:
    """Float64 [B, C] in the order of the images, whose numbers, 0 to B - 1, were given in the place of labels.

    RemoteProtocolError (MALFORMED) where the labels that were told are not these; ValueError as of `told_step`."""
    images = checked_order(batch.labels, len(batch.labels))
    return logits(parameters, norm, batch.aligned, activation=activation)[images.argsort()]
