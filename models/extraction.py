"""Attacks by a data owner that receives block outputs in a secret order: recovering the order, and copying blocks.

A block adds to its tokens and discards nothing, so an image looks alike before and after it. Tastan and Nandakumar 2025
(section 4.2) reveal the images of a batch in an order drawn anew for each block, and call that protected because there
are n! orders. `matched_outputs` finds the right order without trying them; `matched_images` does the same between
pixels and the first block. Once its inputs and outputs are paired, a block is learned like any function.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Final

import torch
from scipy.optimize import linear_sum_assignment
from torch import nn
from torch.nn.functional import mse_loss, normalize

from tacit.models.training import EVALUATION_BATCH, seeded

BATCH: Final = 64
"""Pairs per training step of a copy."""
HELD_OUT: Final = 0.1
"""Fraction of the pairs, at least one, held out to evaluate a copy."""


@dataclass(frozen=True)
class CopiedBlock:
    block: nn.Module
    error: float
    """`relative_error` on held-out pairs."""


def matched_outputs(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return the order, int64 [n], for which one[order] are the images of `other`, row by row.

    Both are block outputs [n, T, D] for the same n images, each in its own order. The mean over the batch, which
    carries no information about a single image, is subtracted; the matching then maximises the sum of the cosines of
    matched rows. Raises ValueError for no images, for shapes that differ, and for values that are not finite.
    """
    if one.shape != other.shape or one.ndim != 3 or len(one) == 0:
        raise ValueError(
            f"outputs of shapes {list(one.shape)} and {list(other.shape)} cannot be matched; both must be [n, T, D], "
            "for one image at least"
        )
    if not (one.isfinite().all() and other.isfinite().all()):
        raise ValueError("outputs that are not finite cannot be matched")
    rows, columns = (normalize((part - part.mean(0)).flatten(1), dim=1) for part in (one.double(), other.double()))
    _, order = linear_sum_assignment((columns @ rows.T).cpu().numpy(), maximize=True)
    return torch.from_numpy(order).to(one.device)


def matched_images(patches: torch.Tensor, outputs: torch.Tensor) -> torch.Tensor:
    """Return the order, int64 [n], for which patches[order] are the images of `outputs`, row by row.

    patches: pixels of n images [n, N, P], a row for each patch, in the model's input order. outputs: of a block [n, T,
    D], T >= N, whose last N tokens are those of the patches. The comparison uses the products of all pairs of tokens of
    an image, less their mean. Raises ValueError as `matched_outputs` does.
    """
    if patches.ndim != 3 or outputs.ndim != 3 or outputs.shape[1] < patches.shape[1]:
        raise ValueError(
            f"patches of shape {list(patches.shape)} cannot be matched to outputs of shape {list(outputs.shape)}; they "
            "must be [n, N, P] and [n, T, D], with a token for each patch at least"
        )
    return matched_outputs(_products(patches), _products(outputs[:, outputs.shape[1] - patches.shape[1] :]))


def copied_block(
    inputs: torch.Tensor, outputs: torch.Tensor, like: nn.Module, *, epochs: int, learning_rate: float, seed: int
) -> CopiedBlock:
    """Train a copy of a block on its inputs and outputs, float32 [m, T, D] each, paired by their rows.

    like: maps [B, T, D] to [B, T, D]; training starts from a copy of it, weights and all, on its device. It represents
    prior knowledge of the block, for instance one of the same sizes with random weights, or several in a row. Training
    uses Adam, mean squared error and a cosine schedule; `seed` decides the held-out pairs, the order of the pairs, and
    the block's own random draws. Raises ValueError for fewer than two pairs and as `relative_error` does,
    FloatingPointError as soon as a loss is not finite.
    """
    _check(inputs, outputs, at_least=2)
    block = copy.deepcopy(like).requires_grad_(True).train()
    device = next(block.parameters()).device
    order = torch.Generator().manual_seed(seed)
    held, known = torch.randperm(len(inputs), generator=order).tensor_split([math.ceil(HELD_OUT * len(inputs))])
    optimizer = torch.optim.Adam(block.parameters(), lr=learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * math.ceil(len(known) / BATCH))
    with seeded(seed, device):
        for _ in range(epochs):
            for chosen in torch.split(known[torch.randperm(len(known), generator=order)], BATCH):
                loss = mse_loss(block(inputs[chosen].to(device)), outputs[chosen].to(device))
                if not math.isfinite(loss.item()):
                    raise FloatingPointError(f"the loss of a copy is {loss.item()}; take a smaller learning rate")
                optimizer.zero_grad(set_to_none=True)
                torch.autograd.backward(loss)
                optimizer.step()
                schedule.step()
    block.eval().requires_grad_(False)
    block.zero_grad(set_to_none=True)
    return CopiedBlock(block, relative_error(block, inputs[held], outputs[held]))


@torch.no_grad()
def relative_error(block: nn.Module, inputs: torch.Tensor, outputs: torch.Tensor) -> float:
    """Return |block(inputs) - outputs| / |outputs - inputs| over all values of pairs [m, T, D].

    The error is relative to the block's increment, because its output mostly equals its input: an identity block has
    the error 1, not a small one. Raises ValueError for no pairs, for shapes that differ, and for inputs equal to the
    outputs.
    """
    _check(inputs, outputs, at_least=1)
    device = next(block.parameters()).device
    parts = zip(torch.split(inputs, EVALUATION_BATCH), torch.split(outputs, EVALUATION_BATCH), strict=True)
    wrong = torch.cat([block(given.to(device)).to(told.device) - told for given, told in parts])
    added = torch.linalg.vector_norm(outputs - inputs)
    if added == 0:
        raise ValueError("the outputs of this block are its inputs; there is nothing to copy")
    return float(torch.linalg.vector_norm(wrong) / added)


def _products(tokens: torch.Tensor) -> torch.Tensor:
    """Return scalar products of all pairs of tokens of an image, less their mean: [n, N, D] to [n, N, N]."""
    centred = tokens - tokens.mean(1, keepdim=True)
    return centred @ centred.transpose(1, 2)


def _check(inputs: torch.Tensor, outputs: torch.Tensor, *, at_least: int) -> None:
    if inputs.shape != outputs.shape or inputs.ndim != 3 or len(inputs) < at_least:
        raise ValueError(
            f"inputs of shape {list(inputs.shape)} and outputs of shape {list(outputs.shape)} are no pairs of a block; "
            f"both must be [m, T, D], with m >= {at_least}"
        )
