"""The functions of a transformer block as polynomials, the error of each, and the gauges that guard their intervals.

docs/distillation.md has a table of them. Arguments are scaled beforehand so that powers stay small: in fixed point each
product is off by one last bit. A gauge that binds stands before a polynomial. In training its interval is that of each
batch; calibration (calibration.py) fixes it, with a margin: a value beyond it is an error in the clear. On shares no
party sees values; there a `watch` may compare. Other gauges only record ranges.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn


def taylor_exponential(x: Any, bound: float, degree: int) -> Any:
    """Return exp(bound x) for x within -1 ... 1, by the first `degree` + 1 terms of its series.

    Positive for every x if the degree is even. Takes degree - 1 products one after the other (Horner's scheme).
    """
    coefficients = [bound**power / math.factorial(power) for power in range(degree + 1)]
    value = x * coefficients[-1] + coefficients[-2]
    for coefficient in reversed(coefficients[:-2]):
        value = value * x + coefficient
    return value


def exponential_error(bound: float, degree: int) -> float:
    """Return the largest error of `taylor_exponential`: the omitted terms at x = 1, at most exp(b) b^(d+1) / (d+1)!."""
    power = degree + 1
    term = math.exp(power * math.log(bound) - math.lgamma(power + 1))
    total = 0.0
    while total + term > total or power < bound:
        total += term
        power += 1
        term *= bound / power
    return total


def exponential_share(bound: float, degree: int) -> float:
    """Return the same error as a fraction of exp(bound), 0 to 1; for any bound, however large."""
    kept = sum(math.exp(power * math.log(bound) - math.lgamma(power + 1) - bound) for power in range(degree + 1))
    # For a small remainder the difference would have few digits; the bound is small there.
    return 1 - kept if kept < 0.5 else exponential_error(bound, degree) * math.exp(-bound)


def lowest_argument(degree: int) -> float:
    """Return the argument below zero at which the Taylor polynomial of exp turns; above, it rises and is positive.

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
    """Return 0.125 x^2 + 0.25 x + 0.5, as one square and one division.

    It is no close approximation: at 0 it is 1/2 where GELU is 0. Distillation adapts a model to it.
    """
    return (x.square() + x * 2 + 4) / 8


def goldschmidt_inverse(x: Any, steps: int) -> Any:
    """Return 1/x for x within 0 ... 2, both excluded, by the product of 1 + (1 - x)^(2^i) over i = 0 ... steps.

    Its relative error is (1 - x)^(2^(steps + 1)).
    """
    rest = 1 - x
    inverse = rest + 1
    for _ in range(steps):
        rest = rest.square()
        inverse = inverse * (rest + 1)
    return inverse


def inverse_error(low: float, high: float, steps: int) -> float:
    """Return the relative error of `goldschmidt_inverse`, at most, for x within low ... high, 0 < low <= high < 2."""
    return math.pow(max(abs(1 - low), abs(1 - high)), 2 ** (steps + 1))


def goldschmidt_inverse_root(x: Any, steps: int) -> Any:
    """Return 1/sqrt(x) for x within 0 ... 3, both excluded, by coupled iterations for sqrt(x) and 1/(2 sqrt(x)).

    With e = 1 - x y^2 for the value y of a step, which starts at 1, the next one has e^2 (3 + e) / 4; the relative
    error of y is 1 - sqrt(1 - e). For x too small for the number of steps, y is about 1.5^steps: too small, never
    unbounded.
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
    """Return the largest relative error of `goldschmidt_inverse_root` for x in low ... high, 0 < low <= high < 3."""
    return max(_inverse_root_error(low, steps), _inverse_root_error(high, steps), 0.0)


def _inverse_root_error(x: float, steps: int) -> float:
    # The error of a step grows with |e| on either side of zero, so that the ends of an interval are its worst points.
    error = 1 - x
    for _ in range(steps):
        error = error**2 * (3 + error) / 4
    return abs(1 - math.sqrt(1 - error))


class ActivationError(ValueError):
    """A value outside of a polynomial's interval; the message names the place, the value and the remedy."""


class Interval(NamedTuple):
    low: float
    high: float

    def joined(self, other: Interval) -> Interval:
        """Return the smallest interval that holds both."""
        return Interval(min(self.low, other.low), max(self.high, other.high))


Watch = Callable[[str, Any, Interval], None]
"""Receives the name of a gauge, the shared values that pass it, and their expected interval."""


class Gauge(nn.Module):
    """Measurement of the values at one place of a model. Has no parameters."""

    def __init__(self, *, positive: bool, binding: bool) -> None:
        """positive: whether zero and negative values are errors too, as for a divisor; binding: whether values outside
        the interval are errors."""
        super().__init__()
        self.positive = positive
        self.binding = binding
        self.name = "unnamed"
        """Its place in the model."""
        self.interval: Interval | None = None
        """Interval of all passing values; None before calibration."""
        self.recording = False
        """Whether passing values widen the interval."""
        self.watch: Watch | None = None

    def forward(self, values: Any, of: Callable[[Any], Any] = lambda values: values) -> Interval:
        """Return the interval of `of(values)` to scale by, for a gauge that binds. ActivationError for a value that is
        not finite or outside, or if there is no interval yet."""
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
        """Record values at a gauge that does not bind: in calibration `of(values)` widens the interval; ActivationError
        for one that is not finite. Otherwise `of` is not called."""
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
    """Return the least n or 1/n, n an integer, that is at least `bound`: `scaled` by it costs at most one division."""
    return float(math.ceil(bound)) if bound > 1 else 1 / math.floor(1 / bound)


def scaled(values: Any, bound: float) -> Any:
    """Return values / bound. On shares: for a bound from `whole`, one exact division or none."""
    if isinstance(values, torch.Tensor):
        return values / bound
    return values / round(bound) if bound >= 1 else values * round(1 / bound)
