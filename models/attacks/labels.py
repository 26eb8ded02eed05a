"""Labels of the images of a gradient, from the gradient of the classifier.

With cross-entropy the derivative of an image's loss by the logits is p - e_y, its probabilities less one at its label.
It is the gradient of the classifier's bias, and times the features that of its weight. Of one image the label is where
it is negative (Zhao et al. 2020, "iDLG"). Its entries sum to zero, so the label's is also the largest in magnitude:
without a bias the row of the weight tells, of three classes at least.

Of n images with counts c_j the bias has the gradient (sum over j of c_j P_j - c) / n, P_j the mean probabilities of
those of class j. Ma et al. 2023, "Instance-wise Batch Label Restoration via Gradients in Federated Learning", take for
the features of class j the quotient of row j of the weight's gradient and entry j of the bias's, in which its images
weigh most as long as the model does not recognise them; P_j is what the classifier makes of it. The equations are
linear in c, and sum c = n is one more. What comes out is not integers, and is rounded so that the sum is kept.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from tacit.models.attacks.patches import taken


def classifier(model: nn.Module) -> tuple[str, nn.Linear]:
    """Name and module of the last linear map of a model. ValueError if it has none."""
    found = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    if not found:
        raise ValueError("the model has no linear map, and so no classifier whose gradient tells labels")
    return found[-1]


def label_of(model: nn.Module, gradients: Mapping[str, torch.Tensor]) -> int:
    """The label of the one image of which these are the gradients, 0 ... classes - 1.

    ValueError for a model without classifier, a gradient of it that is missing, zero or not finite, and two classes
    without a bias, which are alike.
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
    """How many of the images have each label: int64 [classes], estimated, for gradients of their mean loss.

    ValueError for a model without classifier, no images, and a gradient of it that is missing, zero or not finite.
    """
    if images < 1:
        raise ValueError(f"{images} images; a gradient is of one at least")
    name, head = classifier(model)
    by_weight, by_bias = taken(gradients, f"{name}.weight"), taken(gradients, f"{name}.bias")
    # A class whose entry is nothing tells nothing of its features; the common ones do as well.
    quotients = by_weight / torch.where(by_bias == 0, torch.inf, by_bias).unsqueeze(1)
    offset = 0 if head.bias is None else head.bias.detach().double()
    probabilities = (quotients @ head.weight.detach().double().T + offset).softmax(dim=1)
    classes = len(by_bias)
    left = torch.cat([probabilities.T - torch.eye(classes, dtype=torch.float64), torch.ones(1, classes)])
    right = torch.cat([images * by_bias, torch.tensor([float(images)])])
    counts = torch.linalg.lstsq(left, right.unsqueeze(1), driver="gelsd").solution.squeeze(1)
    return whole(counts, images)


def whole(counts: torch.Tensor, total: int) -> torch.Tensor:
    """Integers of this sum, int64, in proportion to counts [classes] that are positive: by largest remainders."""
    positive = counts.clamp_min(0)
    scaled = positive * total / positive.sum()
    integers = scaled.floor()
    missing = total - int(integers.sum())
    integers[(scaled - integers).topk(missing).indices] += 1
    return integers.long()
