"""What updates with Gaussian noise cost a client, and whether a budget has room for them.

The unit is all data of the client: with other data an update differs by twice the largest norm at most, so that it is a
Gaussian mechanism of half the noise multiplier, and updates together are one whose inverse square is the sum of theirs
(Dong, Roth and Su 2022, "Gaussian Differential Privacy"). That sum is what the updates cost, and delta follows from it
for every epsilon (Balle and Wang 2018, "Improving the Gaussian Mechanism", Theorem 8).
"""

from __future__ import annotations

import math

from tacit.parties.protections.protection import Noise


def cost_of(noise: Noise | None) -> float:
    """Of one update; infinite where nothing bounds it."""
    return 4.0 / noise.multiplier**2 if noise is not None and noise.norm else math.inf


def affordable(spent: float, *, epsilon: float, delta: float) -> bool:
    """Whether updates of this cost together are (epsilon, delta)-differentially private."""
    if not spent:
        return True
    deviation = 1.0 / math.sqrt(spent)
    near, far = 0.5 / deviation - epsilon * deviation, -0.5 / deviation - epsilon * deviation
    return _below(near) - math.exp(epsilon) * _below(far) <= delta


def _below(bound: float) -> float:
    """The probability that a standard Gaussian is below."""
    return 0.5 * math.erfc(-bound / math.sqrt(2.0))
