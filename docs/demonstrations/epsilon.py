"""A lower bound of epsilon from one run, beside the accountant's: `dp-gaussian`, one round, every client a canary.

Every client's update is as long as it may be, and its sign is a coin's. The server has all updates with their noise, as
without a secure sum, guesses coins, and what it gets right refutes every epsilon below a bound (95 %; Steinke et al.
2023, tacit.models.attacks.epsilon). It is never "the" epsilon: the accountant's is what is guaranteed.

    python docs/demonstrations/epsilon.py [CLIENTS]
"""

from __future__ import annotations

import os
import sys
import time

import numpy as np
from dp_accounting import get_epsilon_gaussian

from tacit.models.attacks.epsilon import Canaries, lower_bound
from tacit.models.gaussian_noise import noise_bytes, noisy, shortened
from tacit.parties.protections.gaussian_noise import GaussianNoise

SIZE = 1000
"""Coordinates of an update."""
MULTIPLIERS = (GaussianNoise().dp_noise, 0.3, 0.5, 1.0, 2.0, 5.0)


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
