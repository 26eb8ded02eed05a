"""A tripwire: signs, visible to a client, that a model was crafted to read its images out of a sum.

Known attacks leave patterns in the weights that random ones do not have and trained ones seldom (docs/audits.md). This
is no protection: a server that knows these patterns avoids them. A finding shows that a known attack was tried; no
finding shows nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import nn

Pattern = Literal["scaled copies", "bins", "identity", "silent rows"]

COPIES: Final = 5
"""Number of rows along one line that form a pattern. DINOv2 ViT-S/14's first `qkv` has four: cosines of 0.9999."""
ALIKE: Final = 0.999
"""Cosine from which on two rows are copies. Random rows of 16 or more values stay below it."""
IDENTITY: Final = 0.05
"""Distance from a multiple of the identity, relative to the map's norm, below which a map counts as one."""
INPUTS: Final = 16
"""Maps with fewer inputs are searched for silent rows only: there, honest rows point the same way too."""
SILENT: Final = 0.5
"""Fraction of zero rows from which on they are a pattern."""
_ROWS: Final = 1024


@dataclass(frozen=True, kw_only=True)
class SuspiciousTensor:
    """A pattern in one tensor of a model."""

    name: str
    """Name in the model's state."""
    pattern: Pattern
    figure: float
    """Copies, bins and silent rows: fraction of the rows; identity: relative distance from it."""

    def __str__(self) -> str:
        return f"{self.name}: {self.pattern} ({self.figure:.2g})"


def suspicious(model: nn.Module) -> list[SuspiciousTensor]:
    """Return suspicious linear maps and convolutions of a model, in the order of its modules."""
    return [found for name, module in model.named_modules() for found in _of_module(name, module)]


@torch.no_grad()
def _of_module(name: str, module: nn.Module) -> Iterator[SuspiciousTensor]:
    if not isinstance(module, nn.Linear | nn.Conv2d):
        return
    weight = module.weight.detach().float()
    rows = weight.flatten(1)
    tensor = f"{name}.weight"
    silent = ~rows.any(dim=1)
    # Heads and adapters start as all-zero maps, and training leaves some dead rows.
    if SILENT <= silent.double().mean() < 1:
        yield SuspiciousTensor(name=tensor, pattern="silent rows", figure=float(silent.double().mean()))
    # Rows that see different channels are no bins, and trained filters of single channels are alike.
    if rows.shape[1] >= INPUTS and getattr(module, "groups", 1) == 1:
        line = _longest_line(rows)
        if len(line) >= COPIES:
            part = len(line) / len(rows)
            yield SuspiciousTensor(name=tensor, pattern="scaled copies", figure=part)
            if module.bias is not None and _monotone(rows[line], module.bias.detach().float()[line]):
                yield SuspiciousTensor(name=f"{name}.bias", pattern="bins", figure=part)
    for square in _squares(weight):
        distance = _from_identity(square)
        if distance < IDENTITY:
            yield SuspiciousTensor(name=tensor, pattern="identity", figure=distance)
    if name.endswith(("attn.proj", "mlp.fc2")) and silent.all():
        yield SuspiciousTensor(name=tensor, pattern="identity", figure=0.0)


def _longest_line(rows: torch.Tensor) -> torch.Tensor:
    """Return the ascending indices of the largest set of rows that are multiples of one row. Zero rows do not count."""
    norms = rows.norm(dim=1, keepdim=True)
    units = rows / norms.clamp_min(torch.finfo(torch.float32).tiny)
    counts = torch.cat([((part @ units.T).abs() > ALIKE).sum(dim=1) for part in torch.split(units, _ROWS)])
    along: torch.Tensor = (units @ units[counts.argmax()]).abs() > ALIKE
    return along.nonzero().squeeze(1)


def _monotone(rows: torch.Tensor, biases: torch.Tensor) -> bool:
    """Whether the rows' activation thresholds are monotone."""
    lengths = rows @ (rows[0] / rows[0].norm())
    steps = (biases / lengths).diff()
    return bool((steps > 0).all() or (steps < 0).all())


def _squares(weight: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the square maps in a weight: itself, parts such as queries, keys and values, or the middle of a kernel if
    the rest of it is zero."""
    if weight.ndim == 4:
        middle = weight[:, :, weight.shape[2] // 2, weight.shape[3] // 2]
        if middle.norm() < (1 - IDENTITY) * weight.norm():
            return
        weight = middle
    outputs, inputs = weight.shape
    if inputs >= INPUTS and outputs % inputs == 0:
        yield from torch.split(weight, inputs)


def _from_identity(square: torch.Tensor) -> float:
    """Return the norm of a map without its part along the identity, relative to its own; 1 for none."""
    if not square.any():
        return 1.0
    left = square.clone()
    left.diagonal().sub_(square.trace() / len(square))
    return float(left.norm() / square.norm())
