"""Differential privacy of a run with noise: the guarantee of `dp-gaussian`, epsilon for the delta of the experiment.

The unit is all data of one client: two federations are neighbours if one client has other data in one of them. Its
updates then differ by at most 2 dp_clip in Euclidean norm, and each carries noise of dp_noise * dp_clip, so that a
round is a Gaussian mechanism of noise multiplier dp_noise / 2, and the rounds together one whose inverse square is the
sum of theirs (Dong, Roth and Su 2022, "Gaussian Differential Privacy"). Epsilon is as in Balle and Wang 2018, exact.

Every round that a client takes part in counts in full, even with client sampling: amplification by sampling does not
apply, because the server knows its draws. An update for a round that was never closed, as when the server was killed,
counts as one more.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from tacit.parties.protections.protection import Noise
from tacit.parties.runs.experiment import Experiment
from tacit.parties.runs.results import Caution
from tacit.parties.session.events import RoundEnded

MOST_EPSILON: Final = 10.0
"""Above it a guarantee is next to none: an observation may change an adversary's odds by a factor of exp(10),
22,000."""


class PrivacyGuarantee(msgspec.Struct, frozen=True, kw_only=True):
    """Differential privacy of the least protected client; an epsilon of null is infinite."""

    delta: float
    epsilon_update: float | None
    """Against an adversary that sees single updates: the server without secure aggregation."""
    epsilon_sum: float | None
    """Against an adversary that sees only sums. The noise of all clients in a sum adds up, except that of colluding
    clients; if noise is clipped or rounded away, only the client's own counts."""

    def view(self) -> Iterator[str]:
        """Both, and a warning if that of sums is next to none."""
        yield (
            f"differential privacy of a client, delta {self.delta:g}: epsilon {_shown(self.epsilon_update)} for an "
            f"adversary that sees its updates, {_shown(self.epsilon_sum)} for one that sees only sums"
        )
        if self.epsilon_sum is None or self.epsilon_sum > MOST_EPSILON:
            yield Caution(
                f"  an epsilon above {MOST_EPSILON:g} protects next to nobody: raise protection.dp_noise, with more "
                "clients, or hold fewer rounds"
            )


def _shown(epsilon: float | None) -> str:
    return "infinite" if epsilon is None else f"{epsilon:.3g}"


def guarantee(
    experiment: Experiment, rounds: Sequence[RoundEnded], updates: Mapping[str, int], *, colluders: int
) -> PrivacyGuarantee | None:
    """Return the guarantee of a run; None without noise. updates: number of each client's updates, if known;
    colluders: clients whose noise does not count.

    Without dp_clip noise of any size guarantees nothing. Neither do sums without secure aggregation, where the server
    sees more than the sums."""
    noise, aggregation = experiment.protection.noise(), experiment.aggregation
    if noise is None:
        return None
    cohorts = [frozenset(round.cohort) for round in rounds]
    # An aborted round opened no sum, but counts as the smallest possible one.
    honest = [max(1, len(round.survivors) - colluders) for round in rounds]
    if not _arrives_whole(experiment, noise):
        honest = [1] * len(rounds)
    seen = {
        name: [count for count, cohort in zip(honest, cohorts, strict=True) if name in cohort]
        for name in frozenset(updates).union(*cohorts)
    }
    held = [counts + [1] * (updates.get(name, 0) - len(counts)) for name, counts in seen.items()]
    if not noise.norm or not any(held):
        return PrivacyGuarantee(delta=noise.delta, epsilon_update=None, epsilon_sum=None)
    multiplier = noise.multiplier / 2
    updated, summed = max(map(len, held)), max(sum(1 / count for count in counts) for counts in held)
    return PrivacyGuarantee(
        delta=noise.delta,
        epsilon_update=epsilon_of(noise.delta, updated / multiplier**2),
        epsilon_sum=None if aggregation.mode == "none" else epsilon_of(noise.delta, summed / multiplier**2),
    )


def _arrives_whole(experiment: Experiment, noise: Noise) -> bool:
    """Whether clipping and rounding leave the noise of the other clients in the sum."""
    # Sampled at steps of half a standard deviation a Gaussian is one, but for a share of exp(-2 (2 pi)^2).
    step = experiment.packing(tensor_sizes=(1,), metrics=()).step
    return experiment.clip >= noise.norm + noise.room and step <= noise.deviation / 2


def epsilon_of(delta: float, inverse_square: float) -> float:
    """Return epsilon of Gaussian mechanisms; inverse_square: sum of the inverse squares of their noise multipliers."""
    # Imported here: it takes seconds to load, and only runs with noise need it.
    from dp_accounting import get_epsilon_gaussian

    return float(get_epsilon_gaussian(1 / math.sqrt(inverse_square), delta))
