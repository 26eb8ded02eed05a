"""What a data owner does with outputs of blocks that are told in a secret order: it finds the order, and copies blocks.

A block adds something to its tokens and throws nothing away, so an image looks alike before and after it. Tastan and
Nandakumar 2025 (section 4.2) give the images of a batch in an order that is drawn anew for each block, and call that
protected because there are n! orders; `matched_outputs` finds the right one without trying them, `matched_images` does
the same between pixels and the first block. With its inputs and outputs paired, a block is learnt like any function.
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
"""Pairs of one step of training a copy."""
HELD_OUT: Final = 0.1
"""The part of the pairs, one at least, that a copy is judged by and not trained on."""


@dataclass(frozen=True)
class CopiedBlock:
    block: nn.Module
    error: float
    """Its `relative_error` on pairs that were held out."""


def matched_outputs(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """The order, int64 [n], for which one[order] are the images of `other`, row by row.

    Both are outputs of blocks [n, T, D] for the same n images, each in an order of its own. The mean over the batch,
    which says nothing about an image, is taken off; then the sum of the cosines of all matched rows is the largest that
    there is. Raises ValueError for no images, for shapes that differ, and for values that are not finite.
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
    """The order, int64 [n], for which patches[order] are the images of `outputs`, row by row.

    patches: pixels of n images [n, N, P], a row for each patch, in the order in which the model takes them.
    outputs: of a block [n, T, D], T >= N, whose last N tokens are those of the patches. What is compared are the
    products of all pairs of tokens of an image, of which their mean was taken off. Raises ValueError as
    `matched_outputs` does.
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
    """Train a copy of a block on what goes into it and what comes out, float32 [m, T, D] each, paired by their rows.

    like: maps [B, T, D] to [B, T, D]; training begins with a copy of it, weights and all, and takes place where it is.
    It stands for what is known of the block, for instance one of the same sizes with random weights, or several in a
    row. By Adam, with mean squares as the loss and a rate that falls like a cosine; `seed` decides what is held out,
    the order of the pairs, and what the block itself draws. Raises ValueError for fewer than two pairs and as
    `relative_error` does, FloatingPointError as soon as a loss is not finite.
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
    """|block(inputs) - outputs| / |outputs - inputs| over all values of pairs [m, T, D].

    What a block adds is the measure, because its output is its input for the most part: a block that does nothing has
    the error 1, not a small one. Raises ValueError for no pairs, for shapes that differ, and where inputs and outputs
    are the same.
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
    """Scalar products of all pairs of tokens of an image, less their mean: [n, N, D] to [n, N, N]."""
    centred = tokens - tokens.mean(1, keepdim=True)
    return centred @ centred.transpose(1, 2)


def _check(inputs: torch.Tensor, outputs: torch.Tensor, *, at_least: int) -> None:
    if inputs.shape != outputs.shape or inputs.ndim != 3 or len(inputs) < at_least:
        raise ValueError(
            f"inputs of shape {list(inputs.shape)} and outputs of shape {list(outputs.shape)} are no pairs of a block; "
            f"both must be [m, T, D], with m >= {at_least}"
        )
