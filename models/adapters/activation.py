"""What an adapter applies between its two matrices, with the derivative that the explicit backward pass needs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch.nn.functional import gelu

from tacit.models.friendly.polynomials import quadratic_gelu


@dataclass(frozen=True, kw_only=True)
class Activation:
    """A function of every element of a tensor."""

    value: Callable[[torch.Tensor], torch.Tensor]
    slope: Callable[[torch.Tensor], torch.Tensor]
    """Its derivative at the same argument."""


def _gelu_slope(x: torch.Tensor) -> torch.Tensor:
    """Of x P(x), with P the distribution of a standard normal variable: P(x) + x P'(x)."""
    below: torch.Tensor = torch.special.ndtr(x)
    return below + x * torch.exp(x.square() / -2) / math.sqrt(2 * math.pi)


GELU: Final = Activation(value=gelu, slope=_gelu_slope)

QUADRATIC_GELU: Final = Activation(value=quadratic_gelu, slope=lambda x: (x + 1) / 4)
"""0.125 x^2 + 0.25 x + 0.5 (Tastan and Nandakumar 2025, Eq. 3); on shares one square, and its derivative is linear."""
