"""Updates in the units in which they are clipped and summed: from two models to the step between them, and back.

A parameter moves by its difference. The running statistics of batch normalisation move by far more in a round, so they
have a scale, and thereby a bound, of their own,

    (m' - m) / sqrt(v + EPSILON)    and    log((v' + EPSILON) / (v + EPSILON)),

both scaled so that the clip equals their span. A sum of such steps leads to no variance below zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tacit.models.layout import Flat, Layout

MEAN_SPAN: Final = 64.0
"""Largest move of a mean per round, in standard deviations: the first round starts from the statistics of no data, so
it equals the largest growth of the variance."""
VARIANCE_SPAN: Final = 8.0
"""Largest move of a variance's logarithm: a factor of 2,981."""
EPSILON: Final = np.float32(1e-5)
"""Added to a variance by batch normalisation, in torch's default."""


@dataclass(frozen=True)
class UpdateUnits:
    """Units of updates of models of this layout.

    clip: the largest coordinate of an update; None: no clipping, and every coordinate moves by its difference.
    """

    layout: Layout
    clip: float | None

    def step(self, before: Flat, after: Flat) -> Flat:
        """Return the step from one model to another, float32 [size]."""
        step: Flat = after - before
        old, new, moves = self.layout.split(before), self.layout.split(after), self.layout.split(step)
        for clip, mean, variance in self._statistics():
            moves[mean][...] *= clip / MEAN_SPAN / np.sqrt(_positive(old[variance]))
            moves[variance][...] = clip / VARIANCE_SPAN * np.log(_positive(new[variance]) / _positive(old[variance]))
        return step

    def moved(self, before: Flat, step: npt.NDArray[np.floating[Any]]) -> Flat:
        """Return the model that a step leads to, float32 [size]: no variance is negative, and values beyond float32 are
        infinite."""
        after: Flat = (before + step).astype(np.float32)
        old, new = self.layout.split(before), self.layout.split(after)
        moves = self.layout.split(step.astype(np.float32))
        for clip, mean, variance in self._statistics():
            with np.errstate(over="ignore"):
                new[mean][...] = old[mean] + moves[mean] * (MEAN_SPAN / clip) * np.sqrt(_positive(old[variance]))
                grown = np.exp(moves[variance] * (VARIANCE_SPAN / clip))
                new[variance][...] = _positive(old[variance]) * grown - EPSILON
        for name, part in new.items():
            if name.rpartition(".")[2] == "running_var":
                np.maximum(part, 0.0, out=part)
        return after

    def _statistics(self) -> Iterator[tuple[float, str, str]]:
        """Yield the clip, and mean and variance of every batch normalisation whose statistics are averaged."""
        if self.clip is None:
            return
        names = {entry.name for entry in self.layout.entries if entry.part == "averaged"}
        for name in sorted(names):
            module, _, kind = name.rpartition("running_")
            if kind == "mean" and f"{module}running_var" in names:
                yield self.clip, name, f"{module}running_var"


def _positive(variance: Flat) -> Flat:
    return np.maximum(variance, np.float32(0.0)) + EPSILON
