"""Features of images out of the sums that adaptation on shares opens, for colluding data owners who know the others'
parts.

The head reads a feature x, the standardised class token of an image, and its update is linear in it. A batch has n
images with labels y_i, m_i copies of each, m together. From the common head a step of learning rate r takes

    r / m * sum over i of m_i g_i x_i^T   (weight),   r / m * sum over i of m_i g_i   (bias)

with g_i = softmax(W x_i + b) - e_(y_i). Who knows what all other owners add to the sum knows these. A batch that is
copies of one image gives x up to rounding. The rows of classes sum to zero, so that C classes make C - 1 equations for
each channel: as many images are read from one round. More are read from several rounds on the same images, because the
head is another one in each, and known; what they have in common is solved for together. That a feature has the mean 0
and the variance 1 is used, too.

Features beside their images are examples of what the model computes: `imitated` learns it from them.

All this an update of federated learning tells as well, as the tests show; nothing here is part of a protocol.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import nn
from torch.nn.functional import layer_norm, one_hot

from tacit.models.adapters.parallel import AdapterParameters
from tacit.models.attacks.closed_form import label_counts

_NOISE: Final = 0.5
"""Deviation of what the search begins with, beside the quotients of classes, so that images of a class differ."""
_RIDGE: Final = 0.1
"""Of the regression, relative to the kernel of an image with itself."""


@dataclass(frozen=True, kw_only=True, eq=False)
class HeadGradient:
    """A head before a round, and the gradient of the mean loss of the images that are sought. Float64."""

    weight: torch.Tensor = field(repr=False)
    """W of the head [C, D]."""
    bias: torch.Tensor = field(repr=False)
    """Offset b of the head [C]."""
    by_weight: torch.Tensor = field(repr=False)
    """Its derivative by W [C, D]."""
    by_bias: torch.Tensor = field(repr=False)
    """Its derivative by b [C]."""


def gradient_between(
    before: AdapterParameters, after: AdapterParameters, *, rate: float, owners: int, learned: int
) -> HeadGradient:
    """What a round tells of the images of those owners who have learned in it, of so many in the sum; the others have
    added the common parameters as they were, as after a batch out of range. rate: of the round."""
    factor = owners / (rate * learned)
    return HeadGradient(
        weight=before.head_weight,
        bias=before.head_bias,
        by_weight=(before.head_weight - after.head_weight) * factor,
        by_bias=(before.head_bias - after.head_bias) * factor,
    )


def feature_of_copies(rounds: Sequence[HeadGradient]) -> torch.Tensor:
    """x [D] of the one image of which all batches are copies: what fits all rounds best, by least squares. ValueError
    where no gradient of a bias is anything but zero."""
    total = sum(float(each.by_bias.square().sum()) for each in rounds)
    if not total > 0:
        raise ValueError("no round has a gradient of the bias other than zero: there is nothing to divide by")
    return torch.stack([each.by_bias @ each.by_weight for each in rounds]).sum(0) / total


def labels_of(first: HeadGradient, *, images: int) -> torch.Tensor:
    """Labels int64 [images] of a batch in rising order, by the counts of closed_form.py: exact where the head is zero.
    ValueError as of `label_counts`."""
    model = nn.Sequential(nn.Linear(first.weight.shape[1], len(first.bias)))
    model.load_state_dict({"0.weight": first.weight, "0.bias": first.bias})
    counts = label_counts(model, {"0.weight": first.by_weight, "0.bias": first.by_bias}, images=images)
    return torch.repeat_interleave(torch.arange(len(counts)), counts)


def features_of(
    rounds: Sequence[HeadGradient], labels: torch.Tensor, copies: torch.Tensor, *, steps: int, seed: int
) -> torch.Tensor:
    """x [n, D] of n images that were in the batches of all rounds, by L-BFGS.

    labels: int64 [n]; copies: how many there are of each in a batch, int64 [n]; steps: of L-BFGS at most; seed: of what
    the search begins with. Within a class the order is any. Where less than all follows from the rounds, it is what
    fits. ValueError for no rounds or images.
    """
    if not len(rounds) or not len(labels):
        raise ValueError(f"{len(rounds)} rounds and {len(labels)} images; one of each at least is needed")
    weights, biases, by_weight, by_bias = (
        torch.stack([getattr(each, name) for each in rounds]) for name in ("weight", "bias", "by_weight", "by_bias")
    )
    wanted = one_hot(labels, weights.shape[1]).double()
    shares = copies.double() / copies.sum()
    scale = by_weight.square().sum() + by_bias.square().sum()
    quotients = by_weight[0] / torch.where(by_bias[0] == 0, torch.inf, by_bias[0])[:, None]
    noise = torch.randn(len(labels), weights.shape[2], generator=torch.Generator().manual_seed(seed)).double()
    free = (standardised(quotients)[labels] + _NOISE * noise).requires_grad_(True)
    search = torch.optim.LBFGS(
        [free],
        max_iter=steps,
        history_size=50,
        tolerance_grad=1e-14,
        tolerance_change=1e-18,
        line_search_fn="strong_wolfe",
    )

    def cost() -> torch.Tensor:
        search.zero_grad()
        features = standardised(free)
        logits = features @ weights.mT + biases[:, None]
        by_logits = (logits.softmax(-1) - wanted) * shares[:, None]
        off = (by_logits.mT @ features - by_weight).square().sum() + (by_logits.sum(1) - by_bias).square().sum()
        found: torch.Tensor = off / scale
        torch.autograd.backward(found)
        return found

    search.step(cost)  # type: ignore[no-untyped-call]
    return standardised(free.detach())


def standardised(rows: torch.Tensor) -> torch.Tensor:
    """Rows [n, D] with the mean 0 and the variance 1; zeros where all values are the same."""
    return layer_norm(rows, rows.shape[-1:], eps=torch.finfo(rows.dtype).tiny)


def imitated(images: torch.Tensor, features: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """What follows for the features of other images [m, D], by ridge regression with a Gaussian kernel on pixels.

    images [n, ...] with features [n, D], others [m, ...]. The kernel is as wide as the median distance of two images;
    what is learned is how features differ from their mean. ValueError for no images.
    """
    if not len(images):
        raise ValueError("nothing can be learned from no images; one at least is needed")
    known, asked, mean = images.flatten(1).double(), others.flatten(1).double(), features.mean(0)
    distances = torch.cdist(known, known)
    apart = distances[distances > 0]
    width = float(apart.median()) if len(apart) else 1.0

    def kernel(one: torch.Tensor) -> torch.Tensor:
        near: torch.Tensor = (-0.5 * (torch.cdist(one, known) / width).square()).exp()
        return near

    ridge = _RIDGE * torch.eye(len(known), dtype=torch.float64)
    found: torch.Tensor = mean + kernel(asked) @ torch.linalg.solve(kernel(known) + ridge, features - mean)
    return found
