"""Noise of the distribution that is asked for, and updates that are no longer than the clip."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tacit.models.gaussian_noise import noise_bytes, noisy, shortened, standard_normal

SIZE = 100_001  # odd, and more than one block


def draw(seed: int) -> bytes:
    return np.random.default_rng(seed).bytes(noise_bytes(SIZE))


def test_noise_is_normal_and_of_the_deviation() -> None:
    values = np.linspace(-1, 1, SIZE, dtype=np.float32)
    found = noisy(values, 0.5, draw(1)) - values
    assert found.dtype == np.float32
    # A true distribution fails by chance once in 10^6.
    assert stats.kstest(found / 0.5, "norm").pvalue > 1e-6
    # Neighbours, and the two halves of a block that come of the same words, are not correlated: five deviations.
    half = 1 << 15
    for other in (np.roll(found, 1), np.roll(found, half)):
        assert abs(np.corrcoef(found, other)[0, 1]) < 5 / np.sqrt(SIZE)


def test_other_bytes_make_other_noise_and_the_same_the_same() -> None:
    zero = np.zeros(SIZE, np.float32)
    assert np.array_equal(noisy(zero, 1.0, draw(1)), noisy(zero, 1.0, draw(1)))
    assert (noisy(zero, 1.0, draw(1)) != noisy(zero, 1.0, draw(2))).mean() > 0.999


def test_the_extreme_words_are_finite() -> None:
    words = np.array([0, 0, 2**64 - 1, 2**64 - 1], np.uint64)
    assert np.isfinite(standard_normal(words)).all()


@given(st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=8), st.floats(0.01, 1e4))
def test_an_update_is_shortened_and_keeps_its_direction(values: list[float], norm: float) -> None:
    update = np.array(values, np.float32)
    found = shortened(update, norm)
    length = np.linalg.norm(update.astype(np.float64))
    # float32: the factor and every coordinate are rounded once, to 2^-24 of themselves.
    assert np.linalg.norm(found.astype(np.float64)) <= norm * (1 + 2.0**-22) + 1e-40
    if length <= norm:
        assert np.array_equal(found, update)
    else:
        assert found == pytest.approx(update * (norm / length), rel=2.0**-22, abs=1e-30)


def test_without_a_clip_nothing_is_shortened() -> None:
    update = np.full(4, 1e6, np.float32)
    assert np.array_equal(shortened(update, 0.0), update)
