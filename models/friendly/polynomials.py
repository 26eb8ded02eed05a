"""The functions of a transformer block as polynomials, the error of each, and the gauges that guard their intervals.

After Tastan and Nandakumar 2025 (section 4.1): the exponential of the softmax by its Taylor series (Eq. 2), GELU by a
square (Eq. 3), the inverse by the product of Goldschmidt (Eq. 4 and Algorithm 1). The square root of LayerNorm, of
which the paper says nothing, comes from Goldschmidt's iteration (Goldschmidt 1964; Markstein 2004). Arguments are
scaled beforehand so that powers stay small: in fixed point each product is off by one last bit.

A gauge that binds stands before a polynomial, which is valid within an interval only. In training its interval is that
of each batch; calibration widens it, and then it is fixed, with a margin (calibration.py): a value beyond it is an
error in the clear. On shares nobody sees values; there a `watch` may compare. Other gauges only record ranges.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn


def taylor_exponential(x: Any, bound: float, degree: int) -> Any:
    """exp(bound x) for x within -1 ... 1, by the first `degree` + 1 terms of its series.

    Positive for every x where the degree is even. Takes degree - 1 products one after the other (Horner's scheme).
    """
    coefficients = [bound**power / math.factorial(power) for power in range(degree + 1)]
    value = x * coefficients[-1] + coefficients[-2]
    for coefficient in reversed(coefficients[:-2]):
        value = value * x + coefficient
    return value


def exponential_error(bound: float, degree: int) -> float:
    """Largest error of `taylor_exponential`: the terms that it leaves out at x = 1, at most exp(b) b^(d+1) / (d+1)!."""
    power = degree + 1
    term = math.exp(power * math.log(bound) - math.lgamma(power + 1))
    total = 0.0
    while total + term > total or power < bound:
        total += term
        power += 1
        term *= bound / power
    return total


def exponential_share(bound: float, degree: int) -> float:
    """The same error as a share of exp(bound), 0 to 1; for any bound, however large."""
    kept = sum(math.exp(power * math.log(bound) - math.lgamma(power + 1) - bound) for power in range(degree + 1))
    # Where little is left out, the difference would have few digits; the bound is small there.
    return 1 - kept if kept < 0.5 else exponential_error(bound, degree) * math.exp(-bound)


def lowest_argument(degree: int) -> float:
    """Where the Taylor polynomial of exp turns around, below zero; above, it rises and is positive.

    It is the zero of the one of odd degree among degree - 1 and degree: each is the derivative of the next.
    """
    odd = degree - 1 if degree % 2 == 0 else degree
    low, high = -2.0 * odd - 1.0, 0.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        if sum(middle**power / math.factorial(power) for power in range(odd + 1)) < 0:
            low = middle
        else:
            high = middle
    return high


def quadratic_gelu(x: Any) -> Any:
    """0.125 x^2 + 0.25 x + 0.5, as one square and one division.

    No approximation to the last digit: at 0 it is 1/2 where GELU is 0. A model learns to live with it (distillation).
    """
    return (x.square() + x * 2 + 4) / 8


def goldschmidt_inverse(x: Any, steps: int) -> Any:
    """1/x for x within 0 ... 2, both excluded, by the product of 1 + (1 - x)^(2^i) over i = 0 ... steps.

    Its relative error is (1 - x)^(2^(steps + 1)).
    """
    rest = 1 - x
    inverse = rest + 1
    for _ in range(steps):
        rest = rest.square()
        inverse = inverse * (rest + 1)
    return inverse


def inverse_error(low: float, high: float, steps: int) -> float:
    """Largest relative error of `goldschmidt_inverse` for x within low ... high, where 0 < low <= high < 2."""
    return math.pow(max(abs(1 - low), abs(1 - high)), 2 ** (steps + 1))


def goldschmidt_inverse_root(x: Any, steps: int) -> Any:
    """1/sqrt(x) for x within 0 ... 3, both excluded, by coupled iterations for sqrt(x) and 1/(2 sqrt(x)).

    With e = 1 - x y^2 for the value y of a step, which is 1 at first, the next one has e^2 (3 + e) / 4; the relative
    error of y is 1 - sqrt(1 - e). Where x is so small that the steps do not suffice, y is about 1.5^steps: too small,
    never unbounded.
    """
    factor = 1.5 - x / 2
    root, half_inverse = x * factor, factor / 2
    for step in range(1, steps):
        factor = 1.5 - root * half_inverse
        half_inverse = half_inverse * factor
        if step < steps - 1:
            root = root * factor
    return half_inverse * 2


def inverse_root_error(low: float, high: float, steps: int) -> float:
    """Largest relative error of `goldschmidt_inverse_root` for x within low ... high, where 0 < low <= high < 3."""
    return max(_inverse_root_error(low, steps), _inverse_root_error(high, steps), 0.0)


def _inverse_root_error(x: float, steps: int) -> float:
    # The error of a step grows with |e| on either side of zero, so that the ends of an interval are its worst points.
    error = 1 - x
    for _ in range(steps):
        error = error**2 * (3 + error) / 4
    return abs(1 - math.sqrt(1 - error))


class ActivationError(ValueError):
    """A value for which a polynomial is not valid; the message names the place, the value and what to do."""


class Interval(NamedTuple):
    low: float
    high: float

    def joined(self, other: Interval) -> Interval:
        """The smallest interval that holds both."""
        return Interval(min(self.low, other.low), max(self.high, other.high))


Watch = Callable[[str, Any, Interval], None]
"""Called with the name of a gauge, the shared values that pass it, and the interval that they should be within."""


class Gauge(nn.Module):
    """Measures what passes through one place of a model. Has no parameters."""

    def __init__(self, *, positive: bool, binding: bool) -> None:
        """positive: whether zero and what is below it are errors too, as for a divisor; binding: whether what is beyond
        the interval is one."""
        super().__init__()
        self.positive = positive
        self.binding = binding
        self.name = "unnamed"
        """Its place in the model."""
        self.interval: Interval | None = None
        """What passes is within; None before calibration."""
        self.recording = False
        """Whether what passes widens the interval."""
        self.watch: Watch | None = None

    def forward(self, values: Any, of: Callable[[Any], Any] = lambda values: values) -> Interval:
        """The interval of `of(values)` to scale by, for a gauge that binds. Raises ActivationError for a value that is
        not finite or beyond it, or if there is no interval yet."""
        seen = self._measured(of(values.detach())) if isinstance(values, torch.Tensor) else None
        if seen is not None and self.training:
            return seen
        if seen is not None and self.recording:
            self._record(seen)
            return seen
        if self.interval is None:
            raise ActivationError(f"{self.name}: the model is not calibrated; do so in the clear, on typical data")
        if seen is None:
            if self.watch is not None:
                self.watch(self.name, of(values), self.interval)
        elif self.interval.joined(seen) != self.interval:
            raise ActivationError(
                f"{self.name}: values from {seen.low:.6g} to {seen.high:.6g} are beyond the calibrated interval from "
                f"{self.interval.low:.6g} to {self.interval.high:.6g}; calibrate on data like these, or with a larger "
                "margin"
            )
        return self.interval

    def note(self, values: Any, of: Callable[[Any], Any] = lambda values: values) -> None:
        """The same for a gauge that does not bind, which has nothing to say: in calibration `of(values)` widens the
        interval; ActivationError for one that is not finite. Otherwise `of` is not called."""
        if self.recording:
            self._record(self._measured(of(values)))

    def _record(self, seen: Interval) -> None:
        self.interval = seen if self.interval is None else self.interval.joined(seen)

    def _measured(self, values: torch.Tensor) -> Interval:
        low, high = (bound.item() for bound in torch.aminmax(values))
        if not (math.isfinite(low) and math.isfinite(high)):
            raise ActivationError(
                f"{self.name}: a value is not finite; the input or the weights are damaged, or far too large"
            )
        if self.positive and low <= 0:
            raise ActivationError(
                f"{self.name}: a value of {low:.6g}, which must be positive to be divided by; an exponential of an odd "
                "degree can become negative: take an even one"
            )
        return Interval(low, high)


def whole(bound: float) -> float:
    """The smallest n or 1/n, n a whole number, that is at least `bound`: `scaled` by it costs one division at most."""
    return float(math.ceil(bound)) if bound > 1 else 1 / math.floor(1 / bound)


def scaled(values: Any, bound: float) -> Any:
    """values / bound. On shares: for a bound that `whole` gave, one exact division or none."""
    if isinstance(values, torch.Tensor):
        return values / bound
    return values / round(bound) if bound >= 1 else values * round(1 / bound)
