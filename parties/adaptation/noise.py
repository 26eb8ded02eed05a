"""Gaussian noise of the model owner on the sums that it reveals, and the number of sums that a budget permits.

The privacy unit is the whole model: two model owners are neighbours if they publish the same `PublicLearning`, whatever
their weights. The parameters after a batch in range have a norm below `largest_norm`, which follows from the public
bounds alone (bounds.py) for every model; so does their weighted mean. With another model the opened mean thus differs
by at most 2 largest_norm, as a client's update does by twice its largest norm, and the accounting is that of a client
(protections/budget.py). A sum costs the same for one owner, for many, and for colluding ones. Loss and correct answers,
which depend on the model as well, have noise in proportion to their ranges, and are accounted for as two more sums.

Not covered are other disclosures to a data owner: the total number of batches out of range, and predictions.

The noise consists of whole units of the words, and the sum is exact: a rounded Gaussian on integers equals a Gaussian
rounded afterwards, and rounding is post-processing.
"""

from __future__ import annotations

import math
import os
from bisect import bisect_left
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from tacit.models.adapters.configuration import TeachingConfiguration
from tacit.models.gaussian_noise import noise_bytes, standard_normal
from tacit.parties.adaptation.fixed_point import KEPT, PARAMETER
from tacit.parties.adaptation.public import PublicLearning
from tacit.parties.adaptation.standing import COUNT_BITS, COUNTS
from tacit.parties.inference.ring import SPARE, WORD_BITS
from tacit.parties.protections.gaussian_noise import affordable, cost_of
from tacit.parties.protections.protection import Noise
from tacit.protocol.adaptation.schedule import HEAD_TENSORS

_ACCOUNTED: Final = 3
"""Gaussian mechanisms in a sum: of the parameters, of the loss, and of the right answers."""
_LARGEST_DRAW: Final = 8.7
"""Standard deviations that no draw of `standard_normal` exceeds: the root of 108 ln 2."""
_ROOM: Final = 2.0 ** (WORD_BITS - 2)
"""Bound on noise, so that adding it to a sum that fits does not wrap around."""


@dataclass(frozen=True, kw_only=True)
class NoisePolicy:
    """Noise that a model owner adds to the sums that it reveals, and its budget."""

    deviation: float
    """Standard deviation of the noise of every common parameter."""
    largest_epsilon: float = 0.0
    """Budget for all revealed sums; 0: none."""
    delta: float = 1e-5


def noise_policy(own: TeachingConfiguration) -> NoisePolicy | None:
    if not own.noise:
        return None
    return NoisePolicy(deviation=own.noise, largest_epsilon=own.largest_epsilon, delta=own.delta)


def largest_norm(learning: PublicLearning) -> float:
    """Largest norm of all parameters after a batch in range, for every model."""
    moved = learning.scales.moved
    total = sum(most**2 * (1 if name in HEAD_TENSORS else learning.sizes.adapters) for name, most in moved.items())
    # A value found in range may exceed the bound by a rounding error.
    return math.sqrt(total) / SPARE


class SumNoise:
    """Noise on the sums of one training. ValueError if it does not fit the words of a sum over so many data owners."""

    def __init__(self, policy: NoisePolicy, learning: PublicLearning, *, owners: int) -> None:
        self.policy, self.norm = policy, largest_norm(learning)
        self.multiplier = policy.deviation / self.norm
        """Standard deviation of the noise, as a multiple of the largest norm."""
        self.cost = _ACCOUNTED * cost_of(Noise(self.multiplier, norm=self.norm, delta=policy.delta))
        """Privacy cost of a sum."""
        self._learning = learning
        if _LARGEST_DRAW * max(self._deviations(owners, owners)) >= _ROOM:
            raise ValueError(
                f"adaptation.noise = {policy.deviation:g} does not fit the words of a sum over {owners} data owners"
            )

    def words(self, weight: int, owners: int) -> torch.Tensor:
        """Fresh noise for the model owner's sum: int64 [n]. weight: divisor of the sum; owners: data owners in it."""
        parameters, loss, correct = self._deviations(weight, owners)
        count = self._learning.sizes.parameters
        drawn = standard_normal(np.frombuffer(os.urandom(noise_bytes(count + 2)), "<u8"))
        deviations = np.concatenate([np.full(count, parameters), [loss, correct]])
        words = np.rint(drawn[: count + 2] * deviations).astype(np.int64)
        # Refused batches have one sum over all rounds, and weights are public.
        return torch.from_numpy(np.append(words, np.zeros(COUNTS - 2, np.int64)))

    def rounds(self, most: int, *, opened: int = 0, spent: float = 0.0) -> int:
        """Number of sums that may be revealed in total, up to `most`. opened, spent: those revealed before and their
        cost. ValueError, which names the budget, if it is too small for the training."""
        policy, planned = self.policy, self._learning.schedule.rounds
        if not policy.largest_epsilon:
            return most

        def exhausted(more: int) -> bool:
            after = spent + more * self.cost
            return not math.isfinite(after) or not affordable(after, epsilon=policy.largest_epsilon, delta=policy.delta)

        found = min(opened + bisect_left(range(1, most + 1), True, key=exhausted), most)
        if found < min(planned, most):
            raise ValueError(
                f"adaptation.largest_epsilon = {policy.largest_epsilon:g}, for delta = {policy.delta:g}: with "
                f"adaptation.noise = {policy.deviation:g}, and parameters whose norm can reach {self.norm:.4g}, the "
                f"model owner may open {found} rounds, and {planned} are to be learned; take more noise, or rely on "
                "adaptation.most_rounds instead of a budget"
            )
        return found

    def _deviations(self, weight: int, owners: int) -> tuple[float, float, float]:
        """Deviations in units of the words: of a parameter, of the loss, and of the correct answers."""
        learning = self._learning
        images = owners * learning.batch * learning.batches
        half = self.multiplier * images / 2
        # A loss is between 0 and the largest difference of two logits in range plus the logarithm of the classes.
        worst = (2 * learning.scales.head.reach + math.log(learning.classes)) / SPARE
        return (
            self.policy.deviation * weight * 2.0**KEPT,
            half * worst * learning.classes * 2.0 ** (2 * PARAMETER),
            half * 2.0**COUNT_BITS,
        )
