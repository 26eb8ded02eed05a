"""How much of an image came back, and whether that is more than somebody knows who attacks nothing.

A recovered image is compared with the one that its client trained on: peak signal-to-noise ratio and structural
similarity (Wang et al. 2004, as scikit-image has it), both on pixels between 0 and 1. As both say much for a grey image
too, success is judged beside a blind attacker, who gives the mean of images that nobody trained on, and by
re-identification: whether the true image is nearest to the recovered one among 100 candidates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
from scipy.stats import binomtest, t
from skimage.metrics import structural_similarity

from tacit.simulate.audit.figures import Judged, Score

CANDIDATES: Final = 100
"""Images of which the true one is to be picked."""
CONFIDENCE: Final = 0.95
MOST_DECIBELS: Final = 200.0
"""Of images that are the same to the last bit, whose ratio is infinite."""

Pixels = npt.NDArray[np.float64]
"""An image: [C, S, S], from 0 to 1."""


def score(client: str, round: int, recovered: Pixels, true: Pixels, others: Sequence[Pixels]) -> Score:
    """One recovered image; others: the candidates beside the true one."""
    recovered = np.nan_to_num(np.clip(recovered, 0.0, 1.0), nan=0.5)
    error = float(np.mean((recovered - true) ** 2))
    decibels = MOST_DECIBELS if error == 0 else min(MOST_DECIBELS, -10 * math.log10(error))
    distances = [float(np.mean((recovered - other) ** 2)) for other in others]
    window = min(7, true.shape[-1])
    similar = structural_similarity(  # type: ignore[no-untyped-call]
        true, recovered, data_range=1.0, channel_axis=0, win_size=window if window % 2 else window - 1
    )
    return Score(
        client=client,
        round=round,
        psnr=decibels,
        ssim=float(similar),
        identified=error < min(distances, default=math.inf),
    )


def nearest(image: Pixels, truths: Sequence[tuple[str, Pixels]]) -> tuple[str, Pixels]:
    """Whose image it is, nobody says: the nearest counts."""
    return min(truths, key=lambda one: float(np.mean((one[1] - image) ** 2)))


def judge(scores: Sequence[Score], blind: Sequence[Score], *, sought: int = 1) -> Judged:
    """The scores of an attack beside those of the blind attacker for the same images, where any of so many counts as
    the true one. ValueError for none."""
    if not scores or len(scores) != len(blind):
        raise ValueError(
            f"{len(scores)} images and {len(blind)} of the blind attacker: both are the same number, not 0"
        )
    # An attack that picks images has none to compare.
    pairs = [(one.psnr, other.psnr) for one, other in zip(scores, blind, strict=True)]
    gains = np.array([one - other for one, other in pairs if one is not None and other is not None])
    low, high = mean_interval(gains)
    hits = sum(one.identified for one in scores)
    interval = binomtest(hits, len(scores)).proportion_ci(CONFIDENCE, "exact")
    chance = sought / (CANDIDATES - 1 + sought)
    found = float(interval.low) > chance
    return Judged(
        images=len(scores),
        psnr=_mean([one.psnr for one in scores]),
        ssim=_mean([one.ssim for one in scores]),
        better_by=_mean(gains.tolist()),
        better_by_interval=(low, high),
        identified=hits / len(scores),
        identified_interval=(float(interval.low), float(interval.high)),
        chance=chance,
        found=found,
        recovered=found and low is not None and low > 0,
    )


def _mean(values: Sequence[float | None]) -> float | None:
    there = [one for one in values if one is not None]
    return float(np.mean(there)) if there else None


def mean_interval(values: npt.NDArray[np.float64]) -> tuple[float, float] | tuple[None, None]:
    """Of the mean of values [N], 95 %, by Student's t; None for one value."""
    if len(values) < 2:
        return None, None
    half = t.ppf((1 + CONFIDENCE) / 2, len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values))
    return float(values.mean() - half), float(values.mean() + half)
