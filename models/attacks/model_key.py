"""Attacks on model encryption (models/model_encryption.py): on its key and under it.

Gradients of one image give X^T A, with A [N, D] those of the position embedding and X [N, L] the pixels; encrypted, E_a
X^T A. Least squares removes A and leaves X E_a^T, in the order of E_b.

A server that knows the first model W and has its ciphertext solves for the key (`KnownPlaintext`): it matches rows of
the position embedding by their values, and E_a = W-hat W^+ on the span of the D columns of W. With ciphertexts alone
(`gram`), an orthogonal E_a keeps the inner products of patches, whose spectrum identifies the image among others
(`most_like`); a Gaussian one keeps them roughly. Each client has the key, and decrypts (`with_key`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch.nn.functional import fold

from tacit.models.layout import Layout
from tacit.models.model_encryption import PATCH_EMBEDDING, POSITION_EMBEDDING, ModelKey

_EMBEDDINGS: Final = (PATCH_EMBEDDING, POSITION_EMBEDDING)

Tensors = Mapping[str, torch.Tensor]
"""Tensors of a model or of gradients, by name; both embeddings must be there."""


@dataclass(frozen=True, kw_only=True, eq=False)
class KnownPlaintext:
    """A key, recovered by a server from a model that it knows in the clear and encrypted."""

    order: torch.Tensor
    """Encrypted row i of the position embedding is plain row order[i]: int64 [rows]."""
    inverse: torch.Tensor = field(repr=False)
    """Inverts the map of patches, as far as possible: float64 [L, L]."""

    @classmethod
    def of(cls, plain: Tensors, encrypted: Tensors) -> KnownPlaintext:
        """Recover the key from both forms of the same model. ValueError for other shapes."""
        for name in _EMBEDDINGS:
            if plain[name].shape != encrypted[name].shape:
                raise ValueError(
                    f"{name!r} is {list(plain[name].shape)} in the clear and {list(encrypted[name].shape)} encrypted; "
                    "take both from the same model"
                )
        theirs, ours = (model[POSITION_EMBEDDING][0].double() for model in (encrypted, plain))
        # Every encrypted row is a plain one, bit for bit; an assignment is one to one even if two rows are equal.
        distances = torch.cdist(theirs, ours, compute_mode="donot_use_mm_for_euclid_dist")
        _, order = linear_sum_assignment(distances.cpu().numpy())
        known, seen = (model[PATCH_EMBEDDING].flatten(1).double().T for model in (plain, encrypted))
        return cls(order=torch.as_tensor(order), inverse=known @ torch.linalg.pinv(seen))

    def image(self, gradients: Tensors, image_size: int) -> torch.Tensor:
        """Return the image, normalised float32 [1, C, S, S], behind encrypted gradients. ValueError as `patches`."""
        found = patches(gradients, image_size) @ self.inverse.T
        prefix = len(self.order) - len(found)
        plain = torch.empty_like(found)
        plain[self.order[prefix:].to(found.device) - prefix] = found
        return _assembled(plain, gradients[PATCH_EMBEDDING].shape)


def patches(gradients: Tensors, image_size: int) -> torch.Tensor:
    """Return pixels of the patches, float64 [N, L], from the gradients of one image of this size; still encrypted.

    ValueError unless the patch size divides the image size, and there are positions for all patches and D >= N.
    """
    kernel, positions = gradients[PATCH_EMBEDDING], gradients[POSITION_EMBEDDING][0]
    side, rest = divmod(image_size, kernel.shape[-1])
    count = side * side
    if rest or not 0 < count <= min(positions.shape):
        raise ValueError(
            f"an image of {image_size} x {image_size} pixels cannot be solved for: its patches of {kernel.shape[-1]} "
            f"must fill it, and be at most as many as there are positions and features ({list(positions.shape)})"
        )
    features = positions[-count:].double().T
    solution: torch.Tensor = torch.linalg.lstsq(features, kernel.flatten(1).double()).solution
    return solution


def gram(gradients: Tensors, image_size: int) -> torch.Tensor:
    """Return inner products of the patches of one image, float64 [N, N], in an unknown order, from encrypted gradients.

    Valid only for an orthogonal E_a. ValueError as `patches`.
    """
    found = patches(gradients, image_size)
    return found @ found.T


def most_like(products: torch.Tensor, candidates: torch.Tensor) -> int:
    """Return the candidate among patches [n, N, L] whose inner products match these [N, N] best, in any order."""
    spectrum = torch.linalg.eigvalsh(products.double()).clamp_min(0).sqrt().flip(0)
    theirs = torch.linalg.svdvals(candidates.double())
    return int((theirs - spectrum[: theirs.shape[1]]).square().sum(dim=1).argmin())


def with_key(key: ModelKey, gradients: Tensors, image_size: int) -> torch.Tensor:
    """Return the image, normalised float32 [1, C, S, S], that an insider sees in encrypted gradients of one image."""
    named: Layout = key.layout
    encrypted = np.zeros(named.size, np.float32)
    for name in _EMBEDDINGS:
        named.split(encrypted)[name][...] = gradients[name].detach().cpu().numpy()
    plain = named.split(key.decrypt(encrypted))
    return _assembled(
        patches({name: torch.from_numpy(plain[name]) for name in _EMBEDDINGS}, image_size),
        gradients[PATCH_EMBEDDING].shape,
    )


def _assembled(pixels: torch.Tensor, kernel: torch.Size) -> torch.Tensor:
    """Assemble patches [N, C P P], in their order, into one image."""
    size = math.isqrt(len(pixels)) * kernel[-1]
    return fold(pixels.float().T[None], (size, size), kernel[2:], stride=kernel[2:])
