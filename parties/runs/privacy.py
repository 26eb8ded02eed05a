"""What the noise of `dp-gaussian` guarantees in a run: epsilon for the delta of the experiment.

The unit is all data of one client: two federations are neighbours if one client has other data in one of them. Its
updates then differ by at most 2 dp_clip in Euclidean norm, and each carries noise of dp_noise * dp_clip, so that a
round is a Gaussian mechanism of noise multiplier dp_noise / 2, and the rounds together one whose inverse square is the
sum of theirs (Dong, Roth and Su 2022, "Gaussian Differential Privacy"). Epsilon is as in Balle and Wang 2018, exact.

`update` holds towards whoever sees the client's updates one by one: the server without secure aggregation. `sum` holds
towards whoever sees nothing but the sums: the noise of those in the sum adds up, without that of clients who collude,
and where it is cut or rounded away, without that of anybody else. Rounds are not taken for subsampled: a client is in
all of them, and an update for a round that was never closed, as when the server was killed, counts as one more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Final

from tacit.parties.protections.protection import Noise
from tacit.parties.runs.experiment import Experiment

MOST_EPSILON: Final = 10.0
"""Above it a guarantee is next to none: what is seen may change an adversary's odds by a factor of exp(10), 22,000."""


def guarantee(experiment: Experiment, rounds: Sequence[dict[str, Any]], updates: int) -> dict[str, Any] | None:
    """`delta`, `epsilon_update` and `epsilon_sum`; None without noise. rounds: those of summary.json; updates: how many
    a client made, at most.

    An epsilon of None stands for infinity: without dp_clip noise of any size guarantees nothing. So does that of sums
    without secure aggregation, where nobody sees the sums alone.
    """
    noise, aggregation = experiment.protection.noise(), experiment.aggregation
    if noise is None:
        return None
    result: dict[str, Any] = {"delta": noise.delta, "epsilon_update": None, "epsilon_sum": None}
    held = max(len(rounds), updates)
    if not noise.norm or not held:
        return result
    multiplier = noise.multiplier / 2
    result["epsilon_update"] = epsilon_of(noise.delta, held / multiplier**2)
    if aggregation.mode != "none":
        # A round that was aborted opened no sum, but is counted as the least that it could have.
        honest = [1] * held
        if _arrives_whole(experiment, noise):
            corrupt = Fraction(str(aggregation.corrupt))
            for place, entry in enumerate(rounds):
                honest[place] = max(1, len(entry["survivors"]) - math.floor(corrupt * len(entry["cohort"])))
        result["epsilon_sum"] = epsilon_of(noise.delta, sum(1 / (multiplier**2 * count) for count in honest))
    return result


def _arrives_whole(experiment: Experiment, noise: Noise) -> bool:
    """Whether clipping and rounding leave the noise of the other clients in the sum."""
    # Sampled at steps of half a standard deviation a Gaussian is one, but for a share of exp(-2 (2 pi)^2).
    step = experiment.packing(tensor_sizes=(1,), metrics=()).quantiser.step
    return experiment.clip >= noise.norm + noise.room and step <= noise.deviation / 2


def epsilon_of(delta: float, inverse_square: float) -> float:
    """Of Gaussian mechanisms of which the inverse squares of the noise multipliers add up to this."""
    # Imported here: it takes seconds to load, and only runs with noise need it.
    from dp_accounting import get_epsilon_gaussian

    return float(get_epsilon_gaussian(1 / math.sqrt(inverse_square), delta))
