"""What CrypTen can do, case by case: the calls on shares, the same in float64 plaintext, and how far they may differ.

All inputs are multiples of 2^-16, CrypTen's precision, so encoding them is exact. What remains is truncation: a product
is cut back to 16 fractional bits by every party on its own share, off by at most one last bit for each (`slip`, in the
tolerances). CrypTen's approximations are compared with the same approximation in plaintext.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from tacit.parties.crypten.compatibility import crypten

LAST_BIT = 2.0**-16
Tensor = torch.Tensor


@dataclass(frozen=True)
class Case:
    """`secure` and `plain` take x (from rank 0) and y (from rank 1): encrypted, and in float64."""

    secure: Callable[[Any, Any], Any]
    plain: Callable[[Tensor, Tensor], Tensor]
    tolerance: Callable[[float, Tensor, Tensor], Any] = lambda slip, x, y: 0.0
    """Greatest difference, given the error of one truncation. 0: none, the result is exact."""
    x: tuple[int, ...] = (4, 6)
    y: tuple[int, ...] = (4, 6)
    positive: bool = False
    """Inputs in [1/4, 4] and not in [-4, 4]."""

    def inputs(self, index: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(index)
        low, high = (1 << 14, 1 << 18) if self.positive else (-(1 << 18), (1 << 18) + 1)
        return tuple(torch.randint(low, high, shape, generator=generator) * LAST_BIT for shape in (self.x, self.y))  # type: ignore[return-value]


def one_slip(slip: float, x: Tensor, y: Tensor) -> float:
    return slip


def limit_exp(x: Tensor) -> Tensor:
    """CrypTen's exponential: (1 + x/2^8)^(2^8) by 8 squarings."""
    return (1 + x / 2**8) ** (2**8)


def exp_slip(slip: float, x: Tensor) -> Tensor:
    """Error of that: the division slips once, every squaring doubles the relative error and slips again."""
    value, error = 1 + x / 2**8, torch.full_like(x, slip)
    for _ in range(8):
        error = 2 * value.abs() * error + error**2 + slip
        value = value**2
    return error


def first_reciprocal(x: Tensor) -> Tensor:
    return 3 * limit_exp(1 - 2 * x) + 0.003


def newton_reciprocal(x: Tensor, y: Tensor | None = None, steps: int = 10) -> Tensor:
    """CrypTen's reciprocal, from the first guess y."""
    y = first_reciprocal(x) if y is None else y
    for _ in range(steps):
        y = 2 * y - y * y * x
    return y


def newton_slip(
    slip: float, x: Tensor, x_error: Any = 0.0, y: Tensor | None = None, error: Any = 0.0, steps: int = 10
) -> Tensor:
    """Error of that: each step turns e into |2 - 2xy| e + x e^2, adds y^2 times the error of x, and slips twice, once
    times x."""
    if y is None:
        y, error = first_reciprocal(x), 3 * exp_slip(slip, 1 - 2 * x) + slip
    for _ in range(steps):
        error = (2 - 2 * x * y).abs() * error + x * error**2 + (y.abs() + error) ** 2 * x_error + (x + 1) * slip
        y = 2 * y - y * y * x
    return torch.as_tensor(error)


def newton_inverse_root(x: Tensor) -> Tensor:
    """CrypTen's inverse square root."""
    y = 2.2 * limit_exp(-(x / 2 + 0.2)) + 0.2 - x / 1024
    for _ in range(3):
        y = y * (3 - x * y * y) / 2
    return y


def inverse_root_slip(slip: float, x: Tensor, x_error: Any = 0.0) -> Tensor:
    """Error of that: each step turns e into |3 - 3xy^2| e / 2 + 3xy e^2 / 2 + x e^3 / 2, adds y^3 / 2 times the error
    of x, and slips four times: times xy / 2, times y / 2, half, and whole."""
    y = 2.2 * limit_exp(-(x / 2 + 0.2)) + 0.2 - x / 1024
    error = 2.2 * (exp_slip(slip, -(x / 2 + 0.2)) + x_error) + 3 * slip
    for _ in range(3):
        contracted = (3 - 3 * x * y**2).abs() * error + 3 * x * y.abs() * error**2 + x * error**3
        error = (contracted + (y.abs() + error) ** 3 * x_error + (x + 1) * y.abs() * slip + slip) / 2 + slip
        y = y * (3 - x * y * y) / 2
    return error


def logistic(x: Tensor) -> Tensor:
    """CrypTen's sigmoid."""
    y = newton_reciprocal(1 + limit_exp(-x.abs()), torch.full_like(x, 0.75), steps=3)
    return torch.where(x < 0, 1 - y, y)


def logistic_slip(slip: float, x: Tensor, y: Tensor) -> Tensor:
    return newton_slip(
        slip,
        1 + limit_exp(-x.abs()),
        x_error=exp_slip(slip, -x.abs()),
        y=torch.full_like(x, 0.75),
        steps=3,
    )


def softmax(x: Tensor) -> Tensor:
    """CrypTen's softmax."""
    powers = limit_exp(x - x.amax(-1, keepdim=True))
    return powers * newton_reciprocal(powers.sum(-1, keepdim=True))


def softmax_slip(slip: float, x: Tensor, y: Tensor) -> Tensor:
    """A product of powers and the reciprocal of their sum, each with its error, and a slip."""
    powers, error = limit_exp(x - x.amax(-1, keepdim=True)), exp_slip(slip, x - x.amax(-1, keepdim=True))
    total = powers.sum(-1, keepdim=True)
    inverse_error = newton_slip(slip, total, error.sum(-1, keepdim=True))
    return error / total + (powers + error) * inverse_error + slip


def centre(x: Any) -> Any:
    return x - x.mean(-1, keepdim=True)


def layer_norm_slip(slip: float, x: Tensor, y: Tensor) -> Tensor:
    """The mean slips; its square doubles that times the value; their mean slips; then inverse root and product."""
    centred = centre(x)
    squares_error = 2 * centred.abs() * slip + slip**2 + slip
    variance, variance_error = centred.square().mean(-1, keepdim=True), squares_error.mean(-1, keepdim=True) + slip
    root = newton_inverse_root(variance)
    root_error = inverse_root_slip(slip, variance, variance_error)
    return centred.abs() * root_error + slip * (root + root_error) + slip


def power_slip(slip: float, x: Tensor, exponent: int, error: Any = 0.0) -> Tensor:
    """Error of a power by products of smaller ones, from the error of x: what the greatest possible x gives more, and
    for each product a slip, times at most the other powers."""
    reach = x.abs() + error
    return reach**exponent - x.abs() ** exponent + exponent * slip * reach.clamp(min=1) ** (exponent - 1)


def _binary(x: Any) -> Any:
    return x.to(crypten.mpc.binary).to(crypten.mpc.arithmetic)


def _conv(function: str, **options: Any) -> Callable[[Any, Any], Any]:
    return lambda x, y: getattr(x, function)(y, **options)


def _batch_norm(x: Any, y: Any) -> Any:
    return x.batchnorm(
        torch.full((3,), 1.5),
        torch.full((3,), 0.5),
        training=False,
        running_mean=torch.full((3,), 0.25),
        running_var=torch.full((3,), 2.0),
        eps=0,
    )


HALVES = np.full((4, 6), 0.5)

CASES: dict[str, Case] = {
    "add": Case(lambda x, y: x + y, lambda x, y: x + y),
    "subtract public": Case(lambda x, y: 2.5 - x, lambda x, y: 2.5 - x),
    "negate": Case(lambda x, y: -x, lambda x, y: -x),
    "sum": Case(lambda x, y: x.sum(1), lambda x, y: x.sum(1)),
    "cumulative sum": Case(lambda x, y: x.cumsum(1), lambda x, y: x.cumsum(1)),
    "shapes": Case(
        lambda x, y: crypten.cat([crypten.stack([x, y]).permute(0, 2, 1).flatten(1).unsqueeze(0)[:, :, 3:]] * 2),
        lambda x, y: torch.cat([torch.stack([x, y]).permute(0, 2, 1).flatten(1).unsqueeze(0)[:, :, 3:]] * 2),
    ),
    "pad": Case(lambda x, y: x.pad((1, 2), value=0.5), lambda x, y: F.pad(x, (1, 2), value=0.5)),
    "multiply public": Case(lambda x, y: x * 1.5, lambda x, y: x * 1.5, one_slip),
    "divide public": Case(lambda x, y: x / 3, lambda x, y: x / 3, one_slip),
    "multiply": Case(lambda x, y: x * y, lambda x, y: x * y, one_slip),
    "square": Case(lambda x, y: x.square(), lambda x, y: x**2, one_slip),
    "matmul": Case(lambda x, y: x @ y, lambda x, y: x @ y, one_slip, x=(2, 5, 7), y=(7, 3)),
    "matmul public": Case(
        lambda x, y: x @ torch.ones(6, 2), lambda x, y: x.sum(1, keepdim=True).expand(4, 2), one_slip
    ),
    "conv1d": Case(_conv("conv1d", padding=1), lambda x, y: F.conv1d(x, y, padding=1), one_slip, (2, 3, 9), (4, 3, 3)),
    "conv2d": Case(
        _conv("conv2d", stride=2, padding=1),
        lambda x, y: F.conv2d(x, y, stride=2, padding=1),
        one_slip,
        (2, 3, 8, 8),
        (4, 3, 3, 3),
    ),
    "conv_transpose2d": Case(
        _conv("conv_transpose2d", stride=2),
        lambda x, y: F.conv_transpose2d(x, y, stride=2),
        one_slip,
        (1, 3, 4, 4),
        (3, 2, 2, 2),
    ),
    # The square slips and is multiplied by x; the product slips.
    "cube": Case(lambda x, y: x.pow(3), lambda x, y: x**3, lambda slip, x, y: (x.abs() + 1) * slip),
    "fifth power": Case(lambda x, y: x.pow(5), lambda x, y: x**5, lambda slip, x, y: power_slip(slip, x, 5)),
    "seventh power": Case(lambda x, y: x.pow(7.0), lambda x, y: x**7, lambda slip, x, y: power_slip(slip, x, 7)),
    "inverse fifth power": Case(
        lambda x, y: x.pow(-5),
        lambda x, y: newton_reciprocal(x) ** 5,
        lambda slip, x, y: power_slip(slip, newton_reciprocal(x), 5, newton_slip(slip, x)),
        positive=True,
    ),
    "from NumPy": Case(lambda x, y: x + crypten.cryptensor(HALVES, src=1), lambda x, y: x + 0.5),
    "polynomial": Case(
        lambda x, y: x.polynomial([0.5, -0.25, 0.125]),
        lambda x, y: 0.5 * x - 0.25 * x**2 + 0.125 * x**3,
        lambda slip, x, y: 3 * slip + 0.25 * slip + 0.125 * (x.abs() + 1) * slip,
    ),
    "embedding": Case(lambda x, y: y.argmax(1) @ x, lambda x, y: x[y.argmax(1)], x=(7, 3), y=(5, 7)),
    "mean": Case(lambda x, y: x.mean(1), lambda x, y: x.mean(1), one_slip),
    # (x - mean)^2 with |x - mean| <= 8: twice 8 slips of the mean, one of the square, one of the division.
    "variance": Case(lambda x, y: x.var(1), lambda x, y: x.var(1), lambda slip, x, y: 18 * slip),
    "less than": Case(lambda x, y: x < y, lambda x, y: (x < y).double()),
    "equal": Case(lambda x, y: x == x.where(x > y, y), lambda x, y: (x >= y).double()),
    "not equal": Case(lambda x, y: x != y, lambda x, y: (x != y).double()),
    "sign": Case(lambda x, y: x.sign(), lambda x, y: torch.where(x < 0, -1.0, 1.0)),
    "absolute": Case(lambda x, y: x.abs(), lambda x, y: x.abs()),
    "relu": Case(lambda x, y: x.relu(), lambda x, y: x.relu()),
    "where": Case(lambda x, y: x.where(x > y, y), torch.maximum),
    "max": Case(lambda x, y: x.max(1, one_hot=True)[0], lambda x, y: x.amax(1)),
    "argmax": Case(lambda x, y: x.argmax(1), lambda x, y: F.one_hot(x.argmax(1), 6).double()),
    "min": Case(lambda x, y: x.min(), lambda x, y: x.min()),
    "max_pool2d": Case(lambda x, y: x.max_pool2d(2), lambda x, y: F.max_pool2d(x, 2), x=(1, 2, 4, 4)),
    "avg_pool2d": Case(lambda x, y: x.avg_pool2d(2), lambda x, y: F.avg_pool2d(x, 2), one_slip, x=(1, 2, 4, 4)),
    "binary and back": Case(lambda x, y: _binary(x), lambda x, y: x),
    "exp": Case(lambda x, y: x.exp(), lambda x, y: limit_exp(x), lambda slip, x, y: exp_slip(slip, x)),
    "reciprocal": Case(
        lambda x, y: x.reciprocal(),
        lambda x, y: newton_reciprocal(x),
        lambda slip, x, y: newton_slip(slip, x),
        positive=True,
    ),
    "divide": Case(
        lambda x, y: y / x,
        lambda x, y: y * newton_reciprocal(x),
        lambda slip, x, y: y * newton_slip(slip, x) + slip,
        positive=True,
    ),
    "inverse root": Case(
        lambda x, y: x.inv_sqrt(),
        lambda x, y: newton_inverse_root(x),
        lambda slip, x, y: inverse_root_slip(slip, x),
        positive=True,
    ),
    "root": Case(
        lambda x, y: x.sqrt(),
        lambda x, y: x * newton_inverse_root(x),
        lambda slip, x, y: x * inverse_root_slip(slip, x) + slip,
        positive=True,
    ),
    "sigmoid": Case(lambda x, y: x.sigmoid(), lambda x, y: logistic(x), logistic_slip),
    "tanh": Case(
        lambda x, y: x.tanh(),
        lambda x, y: 2 * logistic(2 * x) - 1,
        lambda slip, x, y: 2 * logistic_slip(slip, 2 * x, y),
    ),
    "softmax": Case(lambda x, y: x.softmax(-1), lambda x, y: softmax(x), softmax_slip),
    "layer norm": Case(
        lambda x, y: centre(x) * centre(x).square().mean(-1, keepdim=True).inv_sqrt(),
        lambda x, y: centre(x) * newton_inverse_root(x.var(-1, unbiased=False, keepdim=True)),
        layer_norm_slip,
        x=(3, 16),
        positive=True,
    ),
    "batch norm": Case(
        _batch_norm,
        lambda x, y: (x - 0.25) / 2**0.5 * 1.5 + 0.5,
        # |x - 1/4| <= 4.25 times the last bit of the public inverse root, and a slip, both times 1.5, and a slip.
        lambda slip, x, y: 9 * slip,
        x=(2, 3, 2, 2),
    ),
}
