"""The layers of a vision transformer in additions and products, one code path for the clear and for shares.

In the clear the functions themselves can stand in the place of their polynomials (`Approximation`): the layers are then
timm's own, and a stock model runs unchanged.

Inputs are torch tensors or shared tensors of CrypTen, and so are parameters (`with_parameters`): every operator here
exists for both, +, *, / by a whole number, matmul, sum, mean, square, reshape, permute, transpose. Names and shapes of
the parameters are timm's. Shapes: B images, T tokens, D their width, H heads.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import torch
from torch import nn
from torch.nn.functional import gelu

from tacit.models.friendly.gauge import Gauge, Interval, scaled, whole
from tacit.models.friendly.polynomials import (
    goldschmidt_inverse,
    goldschmidt_inverse_root,
    quadratic_gelu,
    taylor_exponential,
)

AnyModule = TypeVar("AnyModule", bound=nn.Module)


@dataclass(frozen=True, kw_only=True)
class Approximation:
    """How functions are approximated. None stands for the function itself, and so does a GELU that is not quadratic.

    Raises ValueError for a degree or a number of steps below 1.
    """

    softmax_degree: int | None = 6
    """Of the Taylor series in the softmax. Even ones keep it positive."""
    inverse_steps: int | None = 7
    """Of Goldschmidt's iterations, in the softmax and in LayerNorm."""
    quadratic_gelu: bool = True
    """Whether a square stands for GELU."""

    def __post_init__(self) -> None:
        for name, value in (("softmax_degree", self.softmax_degree), ("inverse_steps", self.inverse_steps)):
            if value is not None and value < 1:
                raise ValueError(f"{name} = {value}: at least 1 is needed")


STOCK: Final = Approximation(softmax_degree=None, inverse_steps=None, quadratic_gelu=False)
"""All functions themselves, as timm computes them."""


class LinearLayer(nn.Module):
    """x W^T + b for W [out, in] and b [out], or None."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.bias = None if bias is None else nn.Parameter(bias)

    def forward(self, x: Any) -> Any:
        """[..., in] to [..., out]."""
        weight: Any = self.weight
        # On shares the weight may be a product that knows how to compute itself, at less cost than with a shared one.
        product = weight(x) if callable(weight) else x.matmul(weight.transpose(0, 1))
        return product if self.bias is None else product + self.bias


class LayerNorm(nn.Module):
    """(x - mean) / sqrt(variance + eps) * weight + bias over the last axis.

    x - mean is scaled first, so that its variance is at most 1.5^2 and the iteration for the inverse square root
    converges; the result does not depend on the scale.
    """

    def __init__(self, norm: nn.LayerNorm, approximation: Approximation) -> None:
        super().__init__()
        self.weight = nn.Parameter(norm.weight.detach().clone())
        self.bias = nn.Parameter(norm.bias.detach().clone())
        self.eps = norm.eps
        self.steps = approximation.inverse_steps
        self.variance = Gauge(positive=True, binding=self.steps is not None)
        self.centred = Gauge(positive=False, binding=False)

    def forward(self, x: Any) -> Any:
        """[B, T, D] to the same shape."""
        centred = x - x.mean(-1, keepdim=True)
        self.centred.note(centred)
        if self.steps is None:
            self.variance.note(centred, of=self._variance)
            normalised = centred / self._variance(centred).sqrt()
        else:
            bound = norm_bound(self.variance(centred, of=self._variance))
            centred = scaled(centred, bound)
            variance = centred.square().mean(-1, keepdim=True) + self.eps / bound**2
            normalised = centred * goldschmidt_inverse_root(variance, self.steps)
        return normalised * self.weight + self.bias

    def _variance(self, centred: Any) -> Any:
        return centred.square().mean(-1, keepdim=True) + self.eps


def norm_bound(variance: Interval) -> float:
    """What LayerNorm divides by, so that a variance up to `variance.high` becomes at most 1.5^2."""
    return whole(variance.high**0.5 / 1.5)


class Attention(nn.Module):
    """Multi-head self-attention with the Taylor softmax.

    The series is one around zero, and a softmax does not change when all scores of a row are shifted; so the rows are
    centred, by centring the keys, which costs no product. (The paper does not, and has a wider range to cover.) The
    sums of the exponentials divide the weighted values, not the weights: the same quotient, and fewer products.
    """

    def __init__(
        self, qkv: LinearLayer, proj: LinearLayer, *, heads: int, scale: float, approximation: Approximation
    ) -> None:
        super().__init__()
        self.qkv = qkv
        self.proj = proj
        self.heads = heads
        self.scale = scale
        self.degree = approximation.softmax_degree
        self.steps = approximation.inverse_steps
        self.queries = _gauges(heads)
        self.keys = _gauges(heads)
        self.products = Gauge(positive=False, binding=self.degree is not None)
        self.totals = Gauge(positive=True, binding=None not in (self.degree, self.steps))
        self.value = Gauge(positive=False, binding=False)

    def forward(self, x: Any) -> Any:
        """[B, T, D] to the same shape."""
        images, tokens, width = x.shape
        joint = self.qkv(x).reshape(images, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        query, key, value = joint[0], joint[1], joint[2]  # [B, H, T, D/H]
        key = key - key.mean(2, keepdim=True)
        for head in range(self.heads):
            self.queries[head].note(query, of=_norms(head))
            self.keys[head].note(key, of=_norms(head))
        self.value.note(value)
        products = query.matmul(key.transpose(2, 3))
        if self.degree is None:
            self.products.note(products)
            self.totals.note(products, of=self._totals)
            mixed = (products * self.scale).softmax(-1).matmul(value)
        else:
            bound = products_bound(self.products(products))
            powers = taylor_exponential(scaled(products, bound), self.scale * bound, self.degree)
            mixed = self._divided(powers.matmul(value), powers.sum(-1, keepdim=True))
        return self.proj(mixed.permute(0, 2, 1, 3).reshape(images, tokens, width))

    def _divided(self, weighted: Any, totals: Any) -> Any:
        if self.steps is None:
            self.totals.note(totals)
            return weighted / totals
        bound = whole(self.totals(totals).high)
        return scaled(weighted * goldschmidt_inverse(scaled(totals, bound), self.steps), bound)

    def _totals(self, products: torch.Tensor) -> torch.Tensor:
        return (products * self.scale).exp().sum(-1)


def _gauges(heads: int) -> Any:
    """For the norm of the vectors of every head."""
    return nn.ModuleList(Gauge(positive=False, binding=False) for _ in range(heads))


def _norms(head: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """From vectors [B, H, T, D/H] the norms [B, T] of one head."""
    return lambda vectors: vectors[:, head].norm(dim=-1)


def products_bound(products: Interval) -> float:
    """What products of queries and keys are divided by, to be within -1 ... 1."""
    return whole(max(abs(products.low), abs(products.high)))


class Mlp(nn.Module):
    """Two linear layers with GELU between them, the quadratic one or GELU itself: x times the normal distribution's
    probability below x."""

    def __init__(self, fc1: LinearLayer, fc2: LinearLayer, approximation: Approximation) -> None:
        super().__init__()
        self.fc1 = fc1
        self.fc2 = fc2
        self.quadratic = approximation.quadratic_gelu
        self.hidden = Gauge(positive=False, binding=False)

    def forward(self, x: Any) -> Any:
        """[B, T, D] to the same shape."""
        hidden = self.fc1(x)
        self.hidden.note(hidden)
        return self.fc2(quadratic_gelu(hidden) if self.quadratic else gelu(hidden))


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, norm1: LayerNorm, attn: Attention, norm2: LayerNorm, mlp: Mlp) -> None:
        super().__init__()
        self.norm1 = norm1
        self.attn = attn
        self.norm2 = norm2
        self.mlp = mlp
        self.stream = Gauge(positive=False, binding=False)

    def forward(self, x: Any) -> Any:
        """[B, T, D] to the same shape."""
        middle = x + self.attn(self.norm1(x))
        output = middle + self.mlp(self.norm2(middle))
        for values in (x, middle, output):
            self.stream.note(values)
        return output


def with_parameters(module: AnyModule, make: Callable[[str, torch.Tensor], Any]) -> AnyModule:
    """A copy of a module whose parameters are what `make(name, tensor)` gives for them: shared tensors of the same
    shape, or for the weight of a LinearLayer a callable that multiplies by it. The copy is for evaluation only."""
    copied = copy.deepcopy(module).eval().requires_grad_(False)
    for path, part in copied.named_modules():
        for name, parameter in list(part.named_parameters(recurse=False)):
            delattr(part, name)
            setattr(part, name, make(f"{path}.{name}" if path else name, parameter.data))
    return copied
