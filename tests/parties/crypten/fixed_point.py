"""Fixed-point numbers in the clear, with the errors that numbers on shares have, drawn at random.

They have the operators that a friendly model uses and follow what CrypTen does with each: a constant is cut to 16
fractional bits, a product or quotient is truncated, to the next number below or above, the more often the closer it is
(provider.py). A model that computes with them is as far from the exact result as one on shares may be.
"""

from __future__ import annotations

from typing import Any

import torch

SCALE = 2.0**16


class FixedPoint:
    """Multiples of 2^-16, float64. All numbers of a computation share a generator."""

    def __init__(self, value: torch.Tensor, generator: torch.Generator) -> None:
        self.value = value
        self._generator = generator

    @classmethod
    def parameter(cls, tensor: torch.Tensor, generator: torch.Generator) -> FixedPoint:
        """Rounded to the nearest number, as a shared model is."""
        return cls((tensor.double() * SCALE).round() / SCALE, generator)

    @property
    def shape(self) -> torch.Size:
        return self.value.shape

    def dim(self) -> int:
        return self.value.dim()

    def __add__(self, other: Any) -> FixedPoint:
        return self._exact(self.value + _encoded(other))

    __radd__ = __add__

    def __sub__(self, other: Any) -> FixedPoint:
        return self._exact(self.value - _encoded(other))

    def __rsub__(self, other: Any) -> FixedPoint:
        return self._exact(_encoded(other) - self.value)

    def __mul__(self, other: Any) -> FixedPoint:
        if isinstance(other, int):
            return self._exact(self.value * other)
        return self._truncated(self.value * _encoded(other))

    def __truediv__(self, divisor: int) -> FixedPoint:
        assert isinstance(divisor, int), "only whole numbers divide by one truncation"
        return self._truncated(self.value / divisor) if divisor > 1 else self

    def square(self) -> FixedPoint:
        return self * self

    def matmul(self, other: FixedPoint) -> FixedPoint:
        return self._truncated(self.value @ other.value)

    def sum(self, dim: int, keepdim: bool = False) -> FixedPoint:
        return self._exact(self.value.sum(dim, keepdim))

    def mean(self, dim: int, keepdim: bool = False) -> FixedPoint:
        return self.sum(dim, keepdim) / self.shape[dim]

    def reshape(self, *shape: int) -> FixedPoint:
        return self._exact(self.value.reshape(*shape))

    def permute(self, *order: int) -> FixedPoint:
        return self._exact(self.value.permute(*order))

    def transpose(self, one: int, other: int) -> FixedPoint:
        return self._exact(self.value.transpose(one, other))

    def __getitem__(self, place: Any) -> FixedPoint:
        return self._exact(self.value[place])

    def _exact(self, value: torch.Tensor) -> FixedPoint:
        return FixedPoint(value, self._generator)

    def _truncated(self, value: torch.Tensor) -> FixedPoint:
        carried = torch.rand(value.shape, dtype=torch.float64, generator=self._generator)
        return self._exact((value * SCALE + carried).floor() / SCALE)


def _encoded(value: Any) -> torch.Tensor:
    if isinstance(value, FixedPoint):
        return value.value
    return (torch.as_tensor(value, dtype=torch.float64) * SCALE).trunc() / SCALE
