"""Gauges: they know what a place of a model reaches, and guard a polynomial, which is valid within an interval only.

A gauge that binds stands before a polynomial. In training its interval is that of each batch, so that the polynomial is
always valid while the weights move. In calibration it is widened by everything that passes. Afterwards it is fixed,
with a margin (calibration.py): a value beyond it is an error wherever values are in the clear. On shares nobody sees
values; there a `watch` may compare.

A gauge that does not bind only takes note of what passes in calibration: what computes on fixed-point numbers has to
know how large they become (reach.py), which in the clear is no matter.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn


class ActivationError(ValueError):
    """A value for which a polynomial is not valid; the message names the place, the value and what to do."""


class Interval(NamedTuple):
    """From `low` to `high`, both included."""

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
