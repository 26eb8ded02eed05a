"""An attack on random binary weights (models/binary_weights.py), by an attacker who sees zeros.

A client's gradients of one image: those of the patch embedding [D, L] are A^T X, with A [N, D] those of the position
embedding and X [N, L] the pixels; entries of both are zeroed. Sawada et al. 2024 let their attacker take zeros at face
value. `alternating` solves for X and for the missing entries of A in turn. Rounds on the same image add equations with
X in common; with a constant model `pooled` fills the gaps of one round from the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch

SWEEPS: Final = 12
_RIDGE: Final = 1e-9
"""Added to the diagonal of normal equations, relative to its mean, where these are underdetermined."""
_BLOCK: Final = 32
"""Systems solved at once: their matrices take N x N x 8 bytes each."""


@dataclass(frozen=True, kw_only=True)
class MaskedGradients:
    """One client's gradients in one round: zero where masked."""

    kernel: torch.Tensor
    """Gradient of the patch embedding, [D, L]: a kernel [D, C, P, P], flattened."""
    positions: torch.Tensor
    """Gradient of the position embedding at the patches, [N, D]."""


def pooled(rounds: Sequence[MaskedGradients]) -> MaskedGradients:
    """Return every entry's mean over the rounds that sent it, for gradients that hardly differ between rounds."""

    def mean(tensors: list[torch.Tensor]) -> torch.Tensor:
        stacked = torch.stack(tensors)
        return stacked.sum(dim=0) / (stacked != 0).sum(dim=0).clamp(min=1)

    return MaskedGradients(
        kernel=mean([one.kernel for one in rounds]), positions=mean([one.positions for one in rounds])
    )


def alternating(
    rounds: Sequence[MaskedGradients], *, sweeps: int = SWEEPS, progress: Callable[[int, float], None] | None = None
) -> torch.Tensor:
    """Return the pixels of the patches, float64 [N, L], by alternating least squares over the rounds.

    progress: receives the sweep, from 0, and the residual of the sent kernel gradients, relative to their norm.
    ValueError for a round of other shapes.
    """
    shapes = {(one.kernel.shape, one.positions.shape) for one in rounds}
    if len(shapes) != 1:
        raise ValueError(f"expected rounds of one model, with one shape: got {sorted(map(str, shapes))}")
    kernels = [one.kernel.double() for one in rounds]
    sent = [(kernel != 0).double() for kernel in kernels]
    features = [one.positions.double() for one in rounds]
    unknown = [(one == 0) for one in features]
    length = torch.stack([kernel.square().sum() for kernel in kernels]).sum().sqrt()
    for sweep in range(sweeps):
        # The equations of all rounds, as if their features were one long list.
        pixels = _solved(torch.cat(features, dim=1), torch.cat(kernels), torch.cat(sent))
        features = [
            _completed(known, pixels, kernel, there, missing)
            for known, kernel, there, missing in zip(features, kernels, sent, unknown, strict=True)
        ]
        if progress is not None:
            rest = [
                there * (kernel - feature.T @ pixels)
                for there, kernel, feature in zip(sent, kernels, features, strict=True)
            ]
            progress(sweep, (torch.stack([one.square().sum() for one in rest]).sum().sqrt() / length).item())
    return pixels


def _solved(basis: torch.Tensor, values: torch.Tensor, sent: torch.Tensor) -> torch.Tensor:
    """Solve for coefficients [N, columns] of basis [N, equations] by the sent values [equations, columns]."""
    columns: list[torch.Tensor] = []
    for start in range(0, values.shape[1], _BLOCK):
        there = sent[:, start : start + _BLOCK].T
        normal = (basis * there[:, None]) @ basis.T
        right = (there * values[:, start : start + _BLOCK].T) @ basis.T
        columns.append(_regular(normal, right))
    return torch.cat(columns).T


def _completed(
    features: torch.Tensor, pixels: torch.Tensor, kernel: torch.Tensor, sent: torch.Tensor, unknown: torch.Tensor
) -> torch.Tensor:
    """Return features [N, D] with their unknown entries solved for, by the pixels [N, L]."""
    known = features.masked_fill(unknown, 0.0)
    rest = sent * (kernel - known.T @ pixels)
    result = known.clone()
    for start in range(0, kernel.shape[0], _BLOCK):
        block = slice(start, start + _BLOCK)
        sought = unknown[:, block].T
        normal = (pixels * sent[block, None]) @ pixels.T
        # Known entries get equations of their own, of solution zero.
        normal = normal * (sought[:, :, None] & sought[:, None, :]) + torch.diag_embed((~sought).double())
        result[:, block] += _regular(normal, sought * (rest[block] @ pixels.T)).T
    return result


def _regular(normal: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return solutions [systems, N] of normal equations [systems, N, N] with right sides [systems, N]."""
    ridge = _RIDGE * normal.diagonal(dim1=1, dim2=2).mean(dim=1) + torch.finfo(torch.float64).tiny
    size = normal.shape[-1]
    regular = normal + ridge[:, None, None] * torch.eye(size, dtype=normal.dtype, device=normal.device)
    solution: torch.Tensor = torch.linalg.solve(regular, right[..., None])
    return solution[..., 0]
