"""Finds, in the clear, what the values of a friendly model reach: there its polynomials have to be valid.

The model runs on typical images; every gauge takes the smallest and the largest value that pass it, and the interval
is widened by a margin: a factor upwards, and downwards too where only positive values are possible. The intervals are
public: whoever takes part in a computation on shares learns them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from tacit.models.friendly.blocks import Attention, LayerNorm, norm_bound, products_bound
from tacit.models.friendly.gauge import Gauge, Interval, whole
from tacit.models.friendly.polynomials import exponential_share, inverse_error, inverse_root_error

BATCH = 64
"""Images at a time."""


def calibrate(
    model: nn.Module, images: torch.Tensor, *, margin: float, progress: Callable[[int], None] = lambda done: None
) -> None:
    """Fix the intervals of a model from images [N, C, S, S]; the model is left in evaluation mode.

    margin: 1 keeps the intervals as they are seen, 2 takes twice the largest and half of the smallest value; progress:
    gets the number of images that are done. Raises
    ValueError for a margin below 1 or no images, ActivationError as of Gauge; the intervals then stay.
    """
    if not 1 <= margin < math.inf:
        raise ValueError(f"the margin is a finite factor of at least 1, not {margin}")
    if len(images) == 0:
        raise ValueError("a model is calibrated on at least one image")
    gauges = list(_gauges(model))
    before = [gauge.interval for gauge in gauges]
    model.eval()
    device = next(model.parameters()).device
    try:
        for gauge in gauges:
            gauge.interval, gauge.recording = None, True
        with torch.no_grad():
            for number, batch in enumerate(torch.split(images, BATCH)):
                model(batch.to(device))
                progress(number * BATCH + len(batch))
    except BaseException:
        for gauge, interval in zip(gauges, before, strict=True):
            gauge.interval = interval
        raise
    finally:
        for gauge in gauges:
            gauge.recording = False
    for gauge in gauges:
        if gauge.interval is not None:
            gauge.interval = _widened(gauge.interval, margin, positive=gauge.positive)


def intervals(model: nn.Module) -> dict[str, Interval]:
    """The interval of every gauge that has one."""
    return {gauge.name: gauge.interval for gauge in _gauges(model) if gauge.interval is not None}


def fix_intervals(model: nn.Module, found: Mapping[str, Interval]) -> None:
    """Give the gauges the intervals of a calibration. ValueError for one that is no interval, or of no gauge here."""
    gauges = {gauge.name: gauge for gauge in _gauges(model)}
    for name, (low, high) in found.items():
        if name not in gauges:
            raise ValueError(f"interval {name!r} belongs to no part of this model")
        least = 0.0 if gauges[name].positive else -math.inf
        if not (least < low <= high < math.inf):
            raise ValueError(f"interval {name!r} from {low} to {high} is none that {name} can have")
    for name, interval in found.items():
        gauges[name].interval = Interval(*interval)


@dataclass(frozen=True, kw_only=True)
class Bound:
    """What a polynomial may be off by, within its calibrated interval."""

    name: str
    interval: Interval
    error: float
    """Relative; of the exponential in terms of its largest value."""


def error_bounds(model: nn.Module) -> list[Bound]:
    """The largest error of every polynomial of a calibrated model; functions that are computed exactly have none."""
    bounds: list[Bound] = []

    def add(gauge: Gauge, error: float) -> None:
        if gauge.interval is not None:
            bounds.append(Bound(name=gauge.name, interval=gauge.interval, error=error))

    for part in model.modules():
        if isinstance(part, LayerNorm) and part.steps is not None and part.variance.interval is not None:
            low, high = (end / norm_bound(part.variance.interval) ** 2 for end in part.variance.interval)
            add(part.variance, inverse_root_error(low, high, part.steps))
        elif isinstance(part, Attention) and part.degree is not None and part.products.interval is not None:
            largest = part.scale * products_bound(part.products.interval)
            add(part.products, exponential_share(largest, part.degree))
            if part.steps is not None and part.totals.interval is not None:
                low, high = (end / whole(part.totals.interval.high) for end in part.totals.interval)
                add(part.totals, inverse_error(low, high, part.steps))
    return bounds


def _gauges(model: nn.Module) -> Iterator[Gauge]:
    return (part for part in model.modules() if isinstance(part, Gauge))


def _widened(interval: Interval, margin: float, *, positive: bool) -> Interval:
    if positive:
        return Interval(interval.low / margin, interval.high * margin)
    largest = margin * max(abs(interval.low), abs(interval.high))
    return Interval(-largest, largest)
