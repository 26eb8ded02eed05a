"""Metrics of images: beside the baseline, beside chance, and with intervals that scipy confirms."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import beta, ttest_1samp

from tacit.simulate.audit.results import NOT_RECONSTRUCTED, RE_IDENTIFIED, ImageMetrics, ImageScore
from tacit.simulate.audit.scores import CANDIDATES, image_metrics, score

GENERATOR = np.random.default_rng(0)
TRUE = GENERATOR.random((3, 16, 16))
OTHERS = [GENERATOR.random((3, 16, 16)) for _ in range(CANDIDATES - 1)]


def one(psnr: float, re_identified: bool) -> ImageScore:
    return ImageScore(client="client-1", round=1, psnr=psnr, ssim=0.0, re_identified=re_identified)


def test_decibels_are_those_of_the_squared_error() -> None:
    # 0.1 everywhere: 10 log10(1 / 0.01).
    dark = np.full((1, 8, 8), 0.3)
    assert score("client-1", 1, dark + 0.1, dark, []).psnr == pytest.approx(20.0)


def test_what_is_no_number_counts_as_grey_and_what_is_outside_is_cut() -> None:
    wild = np.where(TRUE > 0.5, np.nan, 7.0)
    found = score("client-1", 1, wild, TRUE, OTHERS)
    expected = np.where(TRUE > 0.5, 0.5, 1.0)
    assert found.psnr == pytest.approx(-10 * np.log10(np.mean((expected - TRUE) ** 2)))
    assert not found.re_identified


def test_intervals_are_those_of_student_and_of_clopper_and_pearson() -> None:
    gains = [3.0, 5.0, 4.0, 6.0, 2.5]
    judged = image_metrics([one(10 + gain, gain > 3.5) for gain in gains], [one(10, False)] * 5)
    low, high = ttest_1samp(gains, 0).confidence_interval(0.95)
    assert judged.advantage_db_interval == pytest.approx((low, high))
    # Three of five.
    assert judged.re_identification_interval == pytest.approx((beta.ppf(0.025, 3, 3), beta.ppf(0.975, 4, 2)))
    assert judged.reconstructed


@pytest.mark.parametrize(
    ("gain", "hits", "re_identified", "reconstructed"),
    [(5.0, 10, True, True), (5.0, 1, False, False), (-5.0, 10, True, False), (-5.0, 0, False, False)],
)
def test_reconstructed_takes_better_images_and_more_of_them_than_chance(
    gain: float, hits: int, re_identified: bool, reconstructed: bool
) -> None:
    scores = [one(10 + gain, number < hits) for number in range(10)]
    judged = image_metrics(scores, [one(10, False)] * 10)
    assert (judged.re_identified, judged.reconstructed) == (re_identified, reconstructed)


def test_chance_is_larger_where_any_of_several_images_counts() -> None:
    assert image_metrics([one(10, False)], [one(10, False)]).chance == pytest.approx(0.01)
    assert image_metrics([one(10, False)], [one(10, False)], sought=5).chance == pytest.approx(5 / 104)


def test_an_attack_that_picks_images_has_none_and_is_judged_by_its_picks() -> None:
    def picked(hits: int) -> ImageMetrics:
        scores = [
            ImageScore(client="client-1", round=1, psnr=None, ssim=None, re_identified=number < hits)
            for number in range(10)
        ]
        return image_metrics(scores, [one(10, False)] * 10)

    for hits, verdict in ((10, RE_IDENTIFIED), (2, RE_IDENTIFIED), (1, NOT_RECONSTRUCTED), (0, NOT_RECONSTRUCTED)):
        judged = picked(hits)
        assert (judged.psnr, judged.ssim, judged.advantage_db, judged.baseline_psnr) == (None,) * 4
        assert (judged.re_identification_rate, judged.reconstructed, judged.verdict) == (hits / 10, False, verdict)
        assert judged.succeeded == (verdict == RE_IDENTIFIED)
    # An attack that has images is to reconstruct them.
    judged = image_metrics([one(5, True)] * 10, [one(10, False)] * 10)
    assert (judged.verdict, judged.succeeded) == (RE_IDENTIFIED, False)


def test_one_image_has_no_interval_and_proves_nothing() -> None:
    judged = image_metrics([one(100, True)], [one(10, False)])
    assert judged.advantage_db_interval == (None, None)
    assert not judged.reconstructed
