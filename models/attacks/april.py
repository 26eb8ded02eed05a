"""APRIL (Lu et al. 2022, "APRIL: Finding the Achilles' Heel on Privacy for Vision Transformers").

Its closed form is for an encoder whose first attention takes the embedded tokens z themselves, without a norm before or
a residual around it. Then the derivative A of the loss by z, which is the gradient of the position embedding, passes
through queries, keys and values alone, and with W the matrix of all three W^T dL/dW = A^T z. So least squares give z,
and the pseudo-inverse of the patch embedding gives pixels. Everything is in float64: A is too ill-conditioned for
gradients in float32.

Otherwise the paper matches gradients g' of candidate images: it minimises |g' - g|^2 + alpha (1 - cosine of the
gradients of the position embedding). It does not give alpha: here it is a parameter, the first term is divided by
|g|^2, and the optimizer is L-BFGS.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cosine_similarity, cross_entropy

from tacit.models.attacks.closed_form import POSITIONS, PatchEmbedding, ReadImage, solved, taken

QKV = "blocks.0.attn.qkv.weight"


def image_of(model: nn.Module, gradients: Mapping[str, torch.Tensor]) -> ReadImage:
    """Return the image with these gradients, by parameter name, if the model is of architecture (A).

    For another architecture the result is meaningless. ValueError for a model without patches, positions for all its
    tokens, and queries, keys and values in one matrix; for more tokens than the width; and for a gradient that is
    missing, zero or not finite.
    """
    embedding = PatchEmbedding.of(model)
    parameters = dict(model.named_parameters())
    if QKV not in parameters:
        raise ValueError(f"the model has no parameter {QKV!r}, where queries, keys and values are one matrix")
    tokens, width = embedding.positions.shape
    if embedding.others != cast(Any, model).num_prefix_tokens:
        raise ValueError("pos_embed has rows for the patches alone; APRIL needs the derivatives by all tokens")
    if tokens > width:
        raise ValueError(f"underdetermined: {tokens} tokens, and equations for {width} of them, the model's width")
    products = parameters[QKV].detach().double().T @ taken(gradients, QKV)
    embedded, condition = solved(taken(gradients, POSITIONS)[0].T, products)
    projected = (embedded - embedding.positions)[embedding.others :] - embedding.bias
    return ReadImage(embedding.image(projected @ torch.linalg.pinv(embedding.weight).T), condition)


def matched_images(
    model: nn.Module,
    gradients: Mapping[str, torch.Tensor],
    labels: torch.Tensor,
    *,
    alpha: float,
    iterations: int,
    seed: int,
) -> torch.Tensor:
    """Search images [n, C, S, S] in the model's dtype whose gradients match, for labels int64 [n].

    The model is used in evaluation mode; the gradients are those of its mean cross-entropy. Missing or zero gradients
    are not compared. The search starts from normal noise by the seed. ValueError as closed_form.image_of for positions.
    """
    embedding = PatchEmbedding.of(model)
    taken(gradients, POSITIONS)
    model = copy.deepcopy(model).eval()
    compared = {name: p for name, p in model.named_parameters() if name in gradients and gradients[name].any()}
    targets = [gradients[name].to(parameter) for name, parameter in compared.items()]
    positions = list(compared).index(POSITIONS)
    scale = torch.stack([target.square().sum() for target in targets]).sum()
    (rows, columns), (channels, height, width) = embedding.grid, embedding.shape
    start = torch.randn(
        (len(labels), channels, rows * height, columns * width), generator=torch.Generator().manual_seed(seed)
    )
    images = start.to(targets[0]).requires_grad_()
    optimizer = torch.optim.LBFGS(
        [images], max_iter=iterations, history_size=50, line_search_fn="strong_wolfe", tolerance_grad=0
    )

    def distance() -> torch.Tensor:
        loss = cross_entropy(model(images), labels)
        found = torch.autograd.grad(loss, list(compared.values()), create_graph=True)
        squares = torch.stack([(mine - target).square().sum() for mine, target in zip(found, targets, strict=True)])
        cosine = cosine_similarity(found[positions].flatten(), targets[positions].flatten(), dim=0)
        total = squares.sum() / scale + alpha * (1 - cosine)
        (images.grad,) = torch.autograd.grad(total, images)
        return total.detach()

    # The fast attentions of PyTorch cannot be differentiated twice.
    with sdpa_kernel(SDPBackend.MATH):
        optimizer.step(distance)  # type: ignore[no-untyped-call]
    return images.detach()
