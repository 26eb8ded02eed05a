"""The image of a gradient of any vision transformer that adds a trained position embedding, by linear equations.

The tokens of the patches x_1 ... x_N, rows of X, are E x_i + bias + p_i. Whatever the model does with them, let row i
of A be the derivative of the loss by token i. The position embedding is added, so A is its gradient, and by the chain
rule

    dL/dE = sum over i of A_i x_i^T = A^T X.

Both gradients are sent, so X solves D x N equations. They have one solution where A has rank N, so N <= D,
and the gradient is of one image: of several, the gradients tell the sum of the A of all and not each. Norms, residuals
and the head do not matter, which they do to APRIL (april.py).

Both sides may be multiplied by the same number. So what one step of plain SGD did to a model, one step of FedAvg on one
batch, is as good as its gradient but for the precision of w' - w; what an adaptive optimizer did is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import nn

from tacit.models.attacks.patches import POSITIONS, PROJECTION, PatchEmbedding, solved, taken


@dataclass(frozen=True, eq=False)
class ReadImage:
    """An image that a closed form gave; the printed form does not show it."""

    image: torch.Tensor = field(repr=False)
    """float64 [1, C, S, S], normalised as the model was fed."""
    condition: float
    """By how much an error of the gradients is multiplied at worst: condition number of the equations."""


def image_of(model: nn.Module, gradients: Mapping[str, torch.Tensor]) -> ReadImage:
    """The image of which these are the gradients, by the names of the model's parameters, or a multiple of them.

    Of several images, or with other noise, it is what fits best. ValueError for a model without patches and added
    positions, more patches than the width, and a gradient of either that is missing, zero or not finite.
    """
    embedding = PatchEmbedding.of(model)
    width = len(embedding.weight)
    if embedding.patches > width:
        raise ValueError(
            f"underdetermined: {embedding.patches} patches, and equations for {width} of them, the model's width"
        )
    by_token = taken(gradients, POSITIONS)[0, embedding.others :]
    by_weight = taken(gradients, PROJECTION).flatten(1)
    if not by_token.any():
        raise ValueError(f"the gradient of {POSITIONS!r} is zero in all rows of patches")
    patches, condition = solved(by_token.T, by_weight)
    return ReadImage(embedding.image(patches), condition)
