"""Decisions from a few seeds.

A claim about a difference is decided by its mean over the seeds, with the 95 % interval of Student's t around it, which
is wide for so few seeds: with three, 4.303 standard errors to each side. If the interval contains both answers, the
runs decide nothing, and a single seed never does.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Final

from tacit.simulate.experiments.results import StudyRow, Verdict, spread

MARGIN: Final = 0.02
"""Accuracies that differ by at most this count as equal: two images of a hundred."""
INTERVAL: Final = "95 % interval (Student's t; with three seeds 4.303 standard errors to each side)"
EQUAL_OR_LOWER: Final = (
    f"the accuracy of an arm less that of the unprotected one, seed by seed, and the {INTERVAL} of its mean: equal if "
    f"all of it is within {100 * MARGIN:.0f} points, else lower (or higher) if the mean is beyond that and the "
    "interval leaves out 0, else undecided"
)


def half_width(values: Sequence[float]) -> float:
    """Return half the width of the 95 % interval of the mean; infinite for a single value."""
    if len(values) < 2:
        return float("inf")
    # Imported here: scipy.stats takes a second to load, and `tacit experiment list` needs none of it.
    from scipy.stats import t

    return float(t.ppf(0.975, len(values) - 1)) * spread(values) / math.sqrt(len(values))


def is_above(values: Sequence[float], bound: float) -> bool | None:
    """Return whether the mean is above a bound by its whole interval; None if neither above nor below by as much."""
    if len(values) < 2:
        return None
    # Rounded, so that equal accuracies differ by nothing.
    distance = round(statistics.mean(values) - bound, 9)
    return None if abs(distance) <= half_width(values) else distance > 0


def differences(row: StudyRow, baseline: StudyRow) -> list[float]:
    """Return the accuracies of a federation minus the baseline's, seed by seed, on the same data in the same order."""
    return [ours - theirs for ours, theirs in zip(row.accuracies, baseline.accuracies, strict=True)]


def compare(found: Sequence[float]) -> str:
    """Return one of equal, lower, higher and undecided, for differences seed by seed: see EQUAL_OR_LOWER."""
    if len(found) < 2:
        return "undecided"
    # Rounded, so that a difference of just the margin is within it.
    mean, width = round(statistics.mean(found), 9), half_width(found)
    if round(abs(mean) + width, 9) <= MARGIN:
        return "equal"
    if abs(mean) <= MARGIN or abs(mean) <= width:
        return "undecided"
    return "lower" if mean < 0 else "higher"


def verdict(found: Mapping[str, Sequence[float]], *, claim: str, above: float) -> Verdict:
    """Judge whether all named differences of accuracies, given seed by seed, are above a bound."""
    decided = {name: is_above(values, above) for name, values in found.items()}
    not_so = [name for name, answer in decided.items() if answer is False]
    unclear = [name for name, answer in decided.items() if answer is None]
    detail = ", ".join(
        f"{name} {100 * statistics.mean(values):+.1f} points" if values else f"{name} not measured"
        for name, values in found.items()
    )
    if not_so:
        detail += f"; not so: {', '.join(not_so)}"
    if unclear:
        detail += f"; undecided: {', '.join(unclear)}"
    return Verdict(
        claim=claim,
        criterion=f"the difference of the accuracies, seed by seed, has a mean whose {INTERVAL} is above "
        f"{100 * above:g} points; not so if it is below; if both are in it, and with one seed, undecided",
        reproduced=False if not_so else None if unclear else True,
        detail=detail,
    )
