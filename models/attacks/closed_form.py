"""Images and labels of a gradient in closed form: by linear equations in its patch embedding and its classifier.

Images. A vision transformer adds a trained position embedding to the tokens E x_i + bias + p_i of the patches. Let row
i of A be the derivative of the loss by token i: A is the gradient of the position embedding, and by the chain rule

    dL/dE = sum over i of A_i x_i^T = A^T X.

Both are sent, so X solves D x N equations, with one solution where A has rank N <= D and the gradient is of one image.
Both sides may be multiplied by the same number: one step of plain SGD is as good as its gradient but for the precision
of w' - w; the step of an adaptive optimizer is not.

Labels. With cross-entropy the gradient of the classifier's bias is p - e_y: the label's entry is negative (Zhao et al.
2020, "iDLG"), and the largest in magnitude, which identifies it also without a bias from three classes on. For n images
with counts c_j the bias has the gradient (sum over j of c_j P_j - c) / n, P_j the mean probabilities of class j. Ma et
al. 2023, "Instance-wise Batch Label Restoration via Gradients in Federated Learning", estimate the features of class j
as the quotient of row j of the weight's gradient and entry j of the bias's; the classifier maps them to P_j. The
equations are linear in c, with sum c = n as one more; the result is rounded so that the sum is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn.functional import fold

PROJECTION = "patch_embed.proj.weight"
POSITIONS = "pos_embed"


@dataclass(frozen=True, kw_only=True, eq=False)
class PatchEmbedding:
    """A model's embedding of an image of C channels and rows x columns patches of P x P pixels; D is its width."""

    weight: torch.Tensor = field(repr=False)
    """E, float64 [D, C P P]."""
    bias: torch.Tensor = field(repr=False)
    """float64 [D]."""
    positions: torch.Tensor = field(repr=False)
    """float64 [tokens, D]."""
    grid: tuple[int, int]
    """Patches in a column and in a row."""
    shape: tuple[int, int, int]
    """C, P, P of a patch."""

    @property
    def patches(self) -> int:
        return self.grid[0] * self.grid[1]

    @property
    def others(self) -> int:
        return len(self.positions) - self.patches

    @classmethod
    def of(cls, model: nn.Module) -> PatchEmbedding:
        """Return a model's embedding. ValueError unless its position embedding is added, one row to every patch."""
        parameters = dict(model.named_parameters())
        named = [name for name in (PROJECTION, POSITIONS) if name not in parameters]
        if named:
            raise ValueError(f"the model has no parameter {named[0]!r}: no patches to which positions are added")
        embedding, projection = model.get_submodule("patch_embed"), model.get_submodule("patch_embed.proj")
        if not isinstance(projection, nn.Conv2d) or projection.stride != projection.kernel_size:
            raise ValueError("patch_embed.proj: patches that overlap, or no convolution, are not a linear map of each")
        if not isinstance(getattr(embedding, "norm", nn.Identity()), nn.Identity):
            raise ValueError("patch_embed.norm: patches that are normalised before positions are added are not linear")
        weight, positions = (parameters[name].detach().double() for name in (PROJECTION, POSITIONS))
        bias = torch.zeros(len(weight)) if projection.bias is None else projection.bias.detach()
        rows, columns = embedding.grid_size  # type: ignore[misc]
        _, channels, height, width = weight.shape
        found = cls(
            weight=weight.flatten(1),
            bias=bias.double(),
            positions=positions[0],
            grid=(int(rows), int(columns)),
            shape=(channels, height, width),
        )
        if found.others < 0:
            raise ValueError(f"pos_embed has {len(found.positions)} rows, fewer than {found.patches} patches")
        return found

    def image(self, patches: torch.Tensor) -> torch.Tensor:
        """Assemble [N, C P P] into one image [1, C, S, S]."""
        (rows, columns), (_, height, width) = self.grid, self.shape
        return fold(patches.T[None], (rows * height, columns * width), (height, width), stride=(height, width))


def taken(gradients: Mapping[str, torch.Tensor], name: str) -> torch.Tensor:
    """Return the gradient of this name in float64 on the CPU. ValueError where it is missing, zero, or not finite."""
    if name not in gradients:
        raise ValueError(f"the gradient of {name!r} is missing: it was not sent, or is not trained")
    gradient = gradients[name].detach().cpu().double()
    if not gradient.isfinite().all():
        raise ValueError(f"the gradient of {name!r} holds a value that is not finite")
    if not gradient.any():
        raise ValueError(f"the gradient of {name!r} is zero: it was held back, or is below the resolution")
    return gradient


def solved(left: torch.Tensor, right: torch.Tensor) -> tuple[torch.Tensor, float]:
    """Return the smallest X [n, k] of least squares |left X - right|, left [m, n], right [m, k]; and left's condition.

    float64, by singular values (LAPACK's gelsd): for a rank-deficient left, other drivers divide by rounding errors.
    """
    result = torch.linalg.lstsq(left, right, driver="gelsd")
    values = result.singular_values
    return result.solution, float(values[0] / values[-1])


@dataclass(frozen=True, eq=False)
class ReadImage:
    """An image from a closed form; the representation does not show it."""

    image: torch.Tensor = field(repr=False)
    """float64 [1, C, S, S], normalised like the model's input."""
    condition: float
    """Condition number of the equations: the largest amplification of an error of the gradients."""


def image_of(model: nn.Module, gradients: Mapping[str, torch.Tensor]) -> ReadImage:
    """Return the image with these gradients, by parameter name, or with a multiple of them.

    For several images, or with other noise, it is the best fit. ValueError for a model without patches and added
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


def classifier(model: nn.Module) -> tuple[str, nn.Linear]:
    """Return name and module of the last linear map of a model. ValueError if it has none."""
    found = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    if not found:
        raise ValueError("the model has no linear map, and so no classifier whose gradient tells labels")
    return found[-1]


def label_of(model: nn.Module, gradients: Mapping[str, torch.Tensor]) -> int:
    """Return the label of the one image with these gradients, 0 ... classes - 1.

    ValueError for a model without classifier, a gradient of it that is missing, zero or not finite, and two classes
    without a bias, which are indistinguishable.
    """
    name, head = classifier(model)
    if f"{name}.bias" in gradients:
        return int(taken(gradients, f"{name}.bias").argmin())
    if head.out_features < 3:
        raise ValueError(
            f"the gradient of {name}.bias is missing; of {head.out_features} classes the weight's is alike"
        )
    return int(taken(gradients, f"{name}.weight").norm(dim=1).argmax())


def label_counts(model: nn.Module, gradients: Mapping[str, torch.Tensor], *, images: int) -> torch.Tensor:
    """Estimate the number of images with each label: int64 [classes], from gradients of their mean loss.

    ValueError for a model without classifier, no images, and a gradient of it that is missing, zero or not finite.
    """
    if images < 1:
        raise ValueError(f"{images} images; a gradient is of one at least")
    name, head = classifier(model)
    by_weight, by_bias = taken(gradients, f"{name}.weight"), taken(gradients, f"{name}.bias")
    # A class with a zero entry gives no features; the common ones serve instead.
    quotients = by_weight / torch.where(by_bias == 0, torch.inf, by_bias).unsqueeze(1)
    offset = 0 if head.bias is None else head.bias.detach().double()
    probabilities = (quotients @ head.weight.detach().double().T + offset).softmax(dim=1)
    classes = len(by_bias)
    left = torch.cat([probabilities.T - torch.eye(classes, dtype=torch.float64), torch.ones(1, classes)])
    right = torch.cat([images * by_bias, torch.tensor([float(images)])])
    counts = torch.linalg.lstsq(left, right.unsqueeze(1), driver="gelsd").solution.squeeze(1)
    return whole(counts, images)


def whole(counts: torch.Tensor, total: int) -> torch.Tensor:
    """Return integers of this sum, int64, in proportion to positive counts [classes]: by largest remainders."""
    positive = counts.clamp_min(0)
    scaled = positive * total / positive.sum()
    integers = scaled.floor()
    missing = total - int(integers.sum())
    integers[(scaled - integers).topk(missing).indices] += 1
    return integers.long()
