"""Sums of pixels against fractions, which have no error at all."""

from fractions import Fraction
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from tacit.models.data import statistics
from tacit.models.datasets.samples import ArrayImages, FileImages
from tacit.models.interruption import Interrupted
from tacit.models.moments import Moments, moments

ROUNDING = 2.0**-50
"""Relative error of a mean or deviation: a quotient, and a square root of one; each rounds a few times."""


def pixels(count: int, channels: int, *, highest: int = 256, seed: int = 0) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, highest, (count, 5, 7, channels)).astype(np.uint8)


def exact(levels: list[Fraction]) -> tuple[Fraction, Fraction]:
    mean = sum(levels, Fraction(0)) / len(levels)
    return mean / 255, (sum((level - mean) ** 2 for level in levels) / len(levels)) / 255**2


def channel(array: npt.NDArray[np.uint8], at: int) -> list[Fraction]:
    return [Fraction(int(level)) for level in array[..., at].ravel()]


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_parties_together_know_what_one_with_all_images_knows(channels: int) -> None:
    array = pixels(40, channels)
    parts = [moments(ArrayImages(part), channels=channels, image_size=8) for part in np.split(array, [3, 20])]
    together = parts[0] + parts[1] + parts[2]
    assert together == moments(ArrayImages(array), channels=channels, image_size=8)
    together.check(3)
    mean, std = together.normalisation()
    for at in range(channels):
        expected, variance = exact(channel(array, at))
        assert abs(Fraction(mean[at]) - expected) <= ROUNDING * expected
        # Of a square root half the relative error of its argument.
        assert abs(Fraction(std[at]) ** 2 - variance) <= 2 * ROUNDING * variance
    # What a simulation takes from a histogram of all images is rounded a few times for each of 256 levels.
    for ours, other in zip((mean, std), statistics(ArrayImages(array), image_size=8), strict=True):
        np.testing.assert_allclose(ours, other, rtol=1e-12)


def test_a_small_deviation_beside_a_large_mean_loses_nothing() -> None:
    """Where a mean of squares minus the square of a mean would lose half the digits."""
    array = np.full((1000, 5, 7, 1), 250, np.uint8)
    array[0, 0, 0, 0] = 251
    found = moments(ArrayImages(array), channels=1, image_size=8)
    _, variance = exact(channel(array, 0))
    assert abs(Fraction(found.normalisation()[1][0]) ** 2 - variance) <= 2 * ROUNDING * variance


def test_a_constant_channel_has_a_deviation_of_one_level() -> None:
    found = moments(ArrayImages(np.full((4, 5, 7, 1), 9, np.uint8)), channels=1, image_size=8)
    assert found.normalisation() == ((9 / 255,), (1 / 255,))
    assert statistics(ArrayImages(np.full((4, 5, 7, 1), 9, np.uint8)), image_size=8)[1] == (1 / 255,)


def test_coloured_images_that_become_grey_are_off_by_what_is_stated() -> None:
    """Two such parties among three: mean within 2 / 2n levels, variance within 2 / 2n + 255 * 2 / n + (2 / 2n)^2."""
    coloured, grey = [pixels(3, 3, seed=1), pixels(5, 3, seed=2)], pixels(4, 1, seed=3)
    parts = [moments(ArrayImages(array), channels=1, image_size=8) for array in (*coloured, grey)]
    found = parts[0] + parts[1] + parts[2]
    found.check(3)
    levels = [Fraction(int(sum(pixel)), 3) for array in coloured for pixel in array.reshape(-1, 3).tolist()]
    levels += channel(grey, 0)
    n, mean = len(levels), found.normalisation()[0][0]
    assert found.pixels == n
    expected, variance = exact(levels)
    assert found.sums != (sum(levels),)  # Something was rounded.
    assert abs(Fraction(mean) - expected) * 255 <= Fraction(2, 2 * n) + 255 * ROUNDING
    spread = Fraction(found.pixels * found.squares[0] - found.sums[0] ** 2, n**2)
    assert abs(spread - variance * 255**2) <= Fraction(2, 2 * n) + Fraction(255 * 2, n) + Fraction(2, 2 * n) ** 2


def test_some_images_and_those_in_files(tmp_path: Path) -> None:
    for number in range(3):
        Image.fromarray(np.full((9, 6, 3), 10 * number, np.uint8)).save(tmp_path / f"{number}.png")
    files = FileImages(tuple(tmp_path / f"{number}.png" for number in range(3)))
    found = moments(files, channels=3, image_size=8, indices=np.array([1, 2]))
    assert found == Moments(128, (64 * 30,) * 3, (64 * 500,) * 3)


def test_counting_ends_when_nobody_waits_any_more() -> None:
    def proceed() -> None:
        raise Interrupted

    with pytest.raises(Interrupted):
        moments(ArrayImages(pixels(1, 1)), channels=1, image_size=8, proceed=proceed)


@pytest.mark.parametrize(
    "impossible",
    [
        Moments(0, (0,), (0,)),
        Moments(1000, (300_000,), (300_000,)),
        Moments(1000, (1000,), (300_000,)),
        Moments(1000, (100_000,), (100_000,)),
    ],
    ids=["none", "beyond 255", "squares beyond 255 times the levels", "squares below the square of the mean"],
)
def test_pixels_that_do_not_exist(impossible: Moments) -> None:
    with pytest.raises(ValueError, match="do not exist"):
        impossible.check(3)


@pytest.mark.parametrize("levels", [[0], [255], [0, 255], list(range(256))])
def test_pixels_at_the_bounds_exist(levels: list[int]) -> None:
    Moments(len(levels), (sum(levels),), (sum(level**2 for level in levels),)).check(1)
