"""Metrics of images from an attack, compared with those of a baseline.

Peak signal-to-noise ratio and structural similarity (Wang et al. 2004, as in scikit-image) are high for a grey image
too, so the baseline is the mean of images without training use; re-identification is among 100 candidates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
from scipy.stats import binomtest, t
from skimage.metrics import structural_similarity

from tacit.simulate.audit.results import ImageMetrics, ImageScore

CANDIDATES: Final = 100
"""Images among which the true one is re-identified."""
CONFIDENCE: Final = 0.95
MOST_DECIBELS: Final = 200.0
"""PSNR of identical images, whose ratio is infinite."""

Pixels = npt.NDArray[np.float64]
"""An image: [C, S, S], from 0 to 1."""


def score(client: str, round: int, reconstructed: Pixels, true: Pixels, others: Sequence[Pixels]) -> ImageScore:
    """Score one reconstructed image; others: the candidates beside the true one."""
    reconstructed = np.nan_to_num(np.clip(reconstructed, 0.0, 1.0), nan=0.5)
    error = float(np.mean((reconstructed - true) ** 2))
    decibels = MOST_DECIBELS if error == 0 else min(MOST_DECIBELS, -10 * math.log10(error))
    distances = [float(np.mean((reconstructed - other) ** 2)) for other in others]
    window = min(7, true.shape[-1])
    similar = structural_similarity(  # type: ignore[no-untyped-call]
        true, reconstructed, data_range=1.0, channel_axis=0, win_size=window if window % 2 else window - 1
    )
    return ImageScore(
        client=client,
        round=round,
        psnr=decibels,
        ssim=float(similar),
        re_identified=error < min(distances, default=math.inf),
    )


def nearest(image: Pixels, truths: Sequence[tuple[str, Pixels]]) -> tuple[str, Pixels]:
    """Return the nearest true image with its client: no attack names the client."""
    return min(truths, key=lambda one: float(np.mean((one[1] - image) ** 2)))


def image_metrics(scores: Sequence[ImageScore], baseline: Sequence[ImageScore], *, sought: int = 1) -> ImageMetrics:
    """Metrics of an attack, with the baseline's scores for the same images; sought: how many images count as the true
    one. ValueError for no scores."""
    if not scores or len(scores) != len(baseline):
        raise ValueError(f"{len(scores)} images and {len(baseline)} of the baseline: both are the same number, not 0")
    # An attack that picks images has none to compare.
    pairs = [(one.psnr, other.psnr) for one, other in zip(scores, baseline, strict=True)]
    gains = np.array([one - other for one, other in pairs if one is not None and other is not None])
    low, high = mean_interval(gains)
    hits = sum(one.re_identified for one in scores)
    interval = binomtest(hits, len(scores)).proportion_ci(CONFIDENCE, "exact")
    chance = sought / (CANDIDATES - 1 + sought)
    re_identified = float(interval.low) > chance
    return ImageMetrics(
        images=len(scores),
        psnr=_mean([one.psnr for one in scores]),
        ssim=_mean([one.ssim for one in scores]),
        advantage_db=_mean(gains.tolist()),
        advantage_db_interval=(low, high),
        re_identification_rate=hits / len(scores),
        re_identification_interval=(float(interval.low), float(interval.high)),
        chance=chance,
        re_identified=re_identified,
        reconstructed=re_identified and low is not None and low > 0,
    )


def _mean(values: Sequence[float | None]) -> float | None:
    there = [one for one in values if one is not None]
    return float(np.mean(there)) if there else None


def mean_interval(values: npt.NDArray[np.float64]) -> tuple[float, float] | tuple[None, None]:
    """Return the 95 % interval of the mean of values [N], by Student's t; None for one value."""
    if len(values) < 2:
        return None, None
    half = t.ppf((1 + CONFIDENCE) / 2, len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values))
    return float(values.mean() - half), float(values.mean() + half)
