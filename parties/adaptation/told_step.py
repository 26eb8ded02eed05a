"""What a data owner does in the clear with the outputs of blocks that it was told: a step of gradient descent, the
paper's local learning.

The rows of all outputs are brought into the order of the last one by the relative permutations; then adapters, head and
their derivatives are those of models/adapters. The mean over a batch does not depend on its order, so the step is that
of the batch as it was, of the outputs that were told.
"""

from __future__ import annotations

from tacit.models.adapters.activation import QUADRATIC_GELU, Activation
from tacit.models.adapters.gradients import Descent, descent, stepped
from tacit.models.adapters.parallel import AdapterParameters, FinalNorm
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
