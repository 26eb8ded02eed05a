"""A lower bound of epsilon from one run, beside the accountant's: `dp-gaussian`, one round, every client a canary.

This is Steinke, Nasr and Jagielski 2023, "Privacy Auditing with One (1) Training Run". Every client's update is as long
as it may be, and a coin decides its sign: with other data an update differs by twice that norm at most, and so does a
canary. The server has all updates with their noise, as without a secure sum. It scores every canary, guesses the signs
of those with the r largest scores, abstains from the others, and is right v times.

If the mechanism is (epsilon, delta)-differentially private, then by their main theorem, with m canaries and as the code
in their Appendix D computes it,

    P[right >= v] <= f(v) + 2 m delta max_{i = 1..m} (f(v - i) - f(v)) / i,    f(v) = P[Binomial(r, q) >= v],

where q = e^epsilon / (1 + e^epsilon). An epsilon for which this is below 5 % is refuted. The bound is the largest of
these, and the true epsilon is at least that with a confidence of 95 %. It is no estimate: one run shows little of what
many would, and the bound is often far below. How many guesses are made must not depend on whether they are right;
several numbers of guesses share the 5 % (Bonferroni). It is never "the" epsilon: what is guaranteed is
the accountant's.

    python docs/demonstrations/epsilon.py [CLIENTS]
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
from dp_accounting import get_epsilon_gaussian
from scipy.stats import binom

from tacit.models.gaussian_noise import noise_bytes, noisy, shortened
from tacit.models.layout import Flat
from tacit.parties.protections.gaussian_noise import GaussianNoise

SIZE = 1000
"""Coordinates of an update."""
MULTIPLIERS = (GaussianNoise().dp_noise, 0.3, 0.5, 1.0, 2.0, 5.0)
LARGEST: Final = 64.0
"""No bound is above: 2^-52, the precision of probabilities here, refutes no epsilon beyond 36."""
_HALVINGS: Final = 40


@dataclass(frozen=True, kw_only=True, eq=False)
class Canaries:
    """m updates of D coordinates, each of `norm` and in its own block of D / m coordinates, rounded down."""

    directions: Flat
    """Of Euclidean norm one, float32 [m, D // m]."""
    positive: npt.NDArray[np.bool_]
    """The coins [m]: a canary's sign. The attacker is not told."""
    size: int
    norm: float

    @classmethod
    def draw(cls, count: int, *, size: int, norm: float, generator: np.random.Generator) -> Canaries:
        """ValueError for more canaries than coordinates."""
        width = size // count
        if not width:
            raise ValueError(f"{count} canaries need as many coordinates, and the update has {size}; take fewer")
        signs = generator.integers(0, 2, (count, width)) * 2 - 1
        return cls(
            directions=(signs / math.sqrt(width)).astype(np.float32),
            positive=generator.integers(0, 2, count).astype(np.bool_),
            size=size,
            norm=norm,
        )

    def update(self, index: int) -> Flat:
        """What the client of this canary sends before the noise: float32 [D]."""
        update = np.zeros(self.size, np.float32)
        width = self.directions.shape[1]
        sign = 1.0 if self.positive[index] else -1.0
        update[index * width : (index + 1) * width] = sign * self.norm * self.directions[index]
        return update

    def scores(self, total: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
        """How much the noisy sum of all updates, [D], speaks for a positive sign of each canary: [m]."""
        count, width = self.directions.shape
        blocks = np.asarray(total[: count * width], np.float64).reshape(count, width)
        return np.asarray((blocks * self.directions).sum(axis=1))


def lower_bound(
    scores: npt.NDArray[np.float64],
    positive: npt.NDArray[np.bool_],
    *,
    delta: float,
    guesses: Sequence[int],
    confidence: float = 0.95,
) -> float:
    """The largest bound of epsilon that these numbers of guesses give together.

    scores [m]: a canary's sign is guessed to be its score's, of the largest first. ValueError for a number of guesses
    that is not from 1 to m.
    """
    count = len(scores)
    if not guesses or not all(1 <= number <= count for number in guesses):
        raise ValueError(f"guesses {list(guesses)}: between 1 and the {count} canaries can be guessed")
    right = ((scores > 0) == positive)[np.argsort(-np.abs(scores), kind="stable")]
    chance = (1.0 - confidence) / len(guesses)
    return max(
        epsilon_refuted(int(right[:number].sum()), number, canaries=count, delta=delta, chance=chance)
        for number in guesses
    )


def epsilon_refuted(right: int, guesses: int, *, canaries: int, delta: float, chance: float) -> float:
    """The largest epsilon under which so many right guesses have at most this chance; 0 if there is none."""
    low, high = 0.0, LARGEST
    if right_guesses_chance(right, guesses, canaries=canaries, epsilon=low, delta=delta) > chance:
        return 0.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if right_guesses_chance(right, guesses, canaries=canaries, epsilon=middle, delta=delta) > chance:
            high = middle
        else:
            low = middle
    return low


def right_guesses_chance(right: int, guesses: int, *, canaries: int, epsilon: float, delta: float) -> float:
    """The most that the probability of at least so many right guesses can be: the right side of the theorem."""
    accuracy = 1.0 / (1.0 + math.exp(-epsilon))
    above = float(binom.sf(right - 1, guesses, accuracy))
    # f(v - i) - f(v) grows no further beyond i = v.
    between = np.cumsum(binom.pmf(np.arange(right - 1, -1, -1), guesses, accuracy)) / np.arange(1, right + 1)
    return min(1.0, above + 2.0 * canaries * delta * float(between.max(initial=0.0)))


def audited(protection: GaussianNoise, clients: int) -> tuple[float, float]:
    """The bound, and the part of all coins that is guessed right."""
    noise = protection.noise()
    coins = np.random.default_rng().integers(0, 2, clients).astype(np.bool_)
    direction = Canaries.draw(1, size=SIZE, norm=noise.norm, generator=np.random.default_rng()).directions[0]
    scores = np.empty(clients)
    for index, coin in enumerate(coins):
        update = shortened((direction if coin else -direction) * np.float32(noise.norm), noise.norm)
        scores[index] = noisy(update, noise.deviation, os.urandom(noise_bytes(SIZE))) @ direction
    guesses = sorted({max(1, round(clients * part)) for part in (0.01, 0.1, 0.3, 1.0)})
    bound = lower_bound(scores, coins, delta=noise.delta, guesses=guesses)
    return bound, float(np.mean((scores > 0) == coins))


def main(clients: int) -> None:
    print("| dp_noise | at least (95 %) | the accountant's | coins guessed right | seconds |")
    print("|---|---|---|---|---|")
    for multiplier in MULTIPLIERS:
        protection, began = GaussianNoise(dp_noise=multiplier), time.perf_counter()
        bound, right = audited(protection, clients)
        # Two updates differ by twice the norm at most.
        granted = get_epsilon_gaussian(multiplier / 2, protection.dp_delta)
        seconds = time.perf_counter() - began
        print(f"| {multiplier} | {bound:.2f} | {granted:.4g} | {right:.1%} | {seconds:.1f} |", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5000)
