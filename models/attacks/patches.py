"""How a vision transformer takes an image, and how an image comes out of its patches again.

timm's models have a convolution whose stride is its kernel, which is a linear map E of every patch, and add to each
token a row of a position embedding. In front of the patches there may be other tokens, for the class and registers;
position embeddings have rows for these too, or for the patches alone (`no_embed_class`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import nn

PROJECTION = "patch_embed.proj.weight"
POSITIONS = "pos_embed"


@dataclass(frozen=True, kw_only=True, eq=False)
class PatchEmbedding:
    """What a model does to an image of C channels and rows x columns patches of P x P pixels; D is its width."""

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
        """N, the number of patches."""
        return self.grid[0] * self.grid[1]

    @property
    def others(self) -> int:
        """Rows of the position embedding in front of those of the patches."""
        return len(self.positions) - self.patches

    @classmethod
    def of(cls, model: nn.Module) -> PatchEmbedding:
        """That of a model. ValueError where it has none whose position embedding is added, one row to every patch."""
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
        """[N, C P P] as one image [1, C, S, S]."""
        tiles = patches.reshape(*self.grid, *self.shape)  # [rows, columns, C, P, P]
        channels, height, width = self.shape
        image = tiles.permute(2, 0, 3, 1, 4).reshape(1, channels, self.grid[0] * height, self.grid[1] * width)
        return image.contiguous()


def taken(gradients: Mapping[str, torch.Tensor], name: str) -> torch.Tensor:
    """The gradient of this name in float64 on the CPU. ValueError where it is missing, zero, or not finite."""
    if name not in gradients:
        raise ValueError(f"the gradient of {name!r} is missing: it was not sent, or is not trained")
    gradient = gradients[name].detach().cpu().double()
    if not gradient.isfinite().all():
        raise ValueError(f"the gradient of {name!r} holds a value that is not finite")
    if not gradient.any():
        raise ValueError(f"the gradient of {name!r} is zero: it was held back, or is below the resolution")
    return gradient


def solved(left: torch.Tensor, right: torch.Tensor) -> tuple[torch.Tensor, float]:
    """The smallest X [n, k] of least squares |left X - right|, left [m, n], right [m, k], and left's condition number.

    float64, by singular values (LAPACK's gelsd): where left has not full rank, others would divide by rounding errors.
    """
    result = torch.linalg.lstsq(left, right, driver="gelsd")
    values = result.singular_values
    return result.solution, float(values[0] / values[-1])
