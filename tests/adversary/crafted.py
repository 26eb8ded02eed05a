"""Models that a dishonest server hands out, so that the sum of many clients' gradients tells about single images.

An imprint (Fowl et al. 2022, "Robbing the Fed") is a linear map with a ReLU in front of a model. All its rows are the
same: they measure the brightness of an image, h. Row k lets pass what is brighter than c_k, for ascending c_k; all that
passes has the same effect on what follows. So the image x adds g_x x to the gradient of the weights of all rows with
c_k < h(x), and g_x to those of their biases. Two neighbouring rows differ by the images between c_k and c_(k+1) alone:
if that is one image, the quotient of the differences of weights and of biases is the image. Sums over clients do not
change this, nor does what the model does. The c_k are the quantiles of a normal distribution like that of images which
the server has, so that images fall into all bins alike.

Fishing (Wen et al. 2022, "Fishing for User Data in Large-Batch Federated Learning") leaves the model as it is but for
the classifier: rows of all classes but one become zero and their biases large. An image of another class has
probability zero for the one, and through rows of zeros nothing comes back: its gradient is zero in front
of the classifier. What is left of the sum of many is the gradient of the images of that class; if there is one, it is
as good as alone, for closed_form.image_of for instance.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Final

import torch
from torch import nn

from tacit.models.attacks.closed_form import classifier, taken

EFFECT: Final = 1e-2
"""What is added to every pixel where the brightness is one above a bin, divided by the number of bins."""
CERTAIN: Final = 1e3
"""Bias of the classes that are not fished for: beside it, the exponential of any other logit is zero in float32."""


class Imprinted(nn.Module):
    """A model behind an imprint: images [B, C, S, S] to what `model` makes of x + W2 relu(W1 x + b1)."""

    def __init__(self, model: nn.Module, pixels: int, bins: int) -> None:
        super().__init__()
        self.bins = nn.Linear(pixels, bins)
        self.back = nn.Linear(bins, pixels, bias=False)
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        added: torch.Tensor = self.back(self.bins(x.flatten(1)).relu())
        output: torch.Tensor = self.model(x + added.view_as(x))
        return output


def imprint(model: nn.Module, alike: torch.Tensor, *, bins: int) -> Imprinted:
    """A copy of a model behind an imprint of this many bins, for images like those, float32 [n, C, S, S], n >= 2.

    The copy computes nearly what the model does. ValueError for fewer than two images or bins, and images that are
    equally bright.
    """
    if len(alike) < 2 or bins < 2:
        raise ValueError(f"{len(alike)} images and {bins} bins; two are needed at least of both")
    brightness = alike.flatten(1).mean(dim=1).double()
    if brightness.std() == 0:
        raise ValueError("the images are equally bright, so that brightness does not tell them apart")
    quantiles = torch.arange(bins, dtype=torch.float64).add(0.5) / bins
    bounds = brightness.mean() + brightness.std() * torch.special.ndtri(quantiles)
    crafted = Imprinted(copy.deepcopy(model), alike[0].numel(), bins)
    with torch.no_grad():
        crafted.bins.weight.fill_(1 / alike[0].numel())
        crafted.bins.bias.copy_(-bounds)
        crafted.back.weight.fill_(EFFECT / bins)
    return crafted


def read_imprint(gradients: Mapping[str, torch.Tensor], shape: tuple[int, int, int], *, least: float) -> torch.Tensor:
    """What is in the bins, float64 [m, C, S, S] for shape (C, S, S), from a sum of gradients of an Imprinted by name.

    A bin that several images fell into gives a weighted mean of them. Bins whose difference of biases is below `least`
    of the largest are empty, up to rounding and noise. ValueError for a gradient that is missing, zero, not finite or
    not of such images.
    """
    by_weight, by_bias = taken(gradients, "bins.weight"), taken(gradients, "bins.bias")
    if by_weight.shape[1:].numel() != torch.Size(shape).numel():
        raise ValueError(f"bins.weight has {by_weight.shape[1]} columns, which are no images of shape {list(shape)}")
    # Nothing is beyond the last bin.
    weights = by_weight - torch.cat([by_weight[1:], torch.zeros_like(by_weight[:1])])
    biases = by_bias - torch.cat([by_bias[1:], torch.zeros_like(by_bias[:1])])
    filled = biases.abs() > least * biases.abs().max()
    return (weights[filled] / biases[filled].unsqueeze(1)).view(-1, *shape)


def fishing(model: nn.Module, label: int) -> nn.Module:
    """A copy of a model in whose gradients only images of this label are. ValueError for a model without a classifier
    with biases, and a label that it does not have."""
    crafted = copy.deepcopy(model)
    _, head = classifier(crafted)
    if head.bias is None or not 0 <= label < head.out_features:
        raise ValueError(f"the classifier has no bias, or no label {label} among its {head.out_features}")
    others = torch.arange(head.out_features) != label
    with torch.no_grad():
        head.weight[others] = 0
        head.bias[others] = CERTAIN
    return crafted
