"""Coordinated weights: nobody contributes alone, and everybody's probability of a zero stays what it was."""

import numpy as np
import pytest
from scipy.stats import binom, binomtest, chisquare

from tacit.models.binary_weights import RESOLUTION, coordinated_weights, coordination_words
from tacit.models.layout import Layout, LayoutEntry
from tests.cases import cases

ALL_WORDS = Layout((LayoutEntry("w", (RESOLUTION,)),))


def all_weights(
    layout: Layout, probabilities: tuple[float, ...], random: np.ndarray, *, members: int, fewest: int
) -> np.ndarray:
    """Every member's weights: bool [members, D]."""
    drawn = [
        coordinated_weights(layout, probabilities, members=members, place=place, fewest=fewest, random=random)
        for place in range(members)
    ]
    return np.array(drawn)


def drawn_weights(layout: Layout, zero: float, *, members: int, fewest: int, seed: int) -> np.ndarray:
    words = coordination_words(layout, members)
    random = np.random.default_rng(seed).integers(0, RESOLUTION, words, np.uint16)
    return all_weights(layout, (zero,) * len(layout.entries), random, members=members, fewest=fewest)


def distribution(members: int, zero: float, fewest: int) -> np.ndarray:
    """P(c) for c = 0..members [members + 1], from the formula of the module."""
    chances = np.where(np.arange(members + 1) >= fewest, binom.pmf(np.arange(members + 1), members, 1 - zero), 0.0)
    chances /= chances.sum()
    chances *= members * (1 - zero) / (chances @ np.arange(members + 1))
    chances[0] = 1 - chances.sum()
    return chances


@cases("zero", [0.0, 2**-17, 0.2, 0.5, 0.8, 0.99, 1 - 2**-16, 1 - 2**-30])
@cases(("members", "fewest"), [(1, 1), (2, 1), (2, 2), (5, 1), (5, 3), (5, 4), (5, 5), (11, 7), (60, 12), (60, 55)])
def test_over_all_words_the_probability_is_exact(members: int, fewest: int, zero: float) -> None:
    """All 65,536 words that choose the number of contributors, each with any start."""
    starts = np.random.default_rng(1).integers(0, RESOLUTION, RESOLUTION, np.uint16)
    keys = np.arange(4 * members, dtype=np.uint16)
    random = np.concatenate([keys, np.arange(RESOLUTION, dtype=np.uint16), starts])
    counts = all_weights(ALL_WORDS, (zero,), random, members=members, fewest=fewest).sum(axis=0)
    ones = RESOLUTION - min(round(zero * RESOLUTION), RESOLUTION - 1)
    assert counts.sum() == members * ones
    assert not ((counts > 0) & (counts < fewest)).any()
    expected = distribution(members, 1 - ones / RESOLUTION, fewest)
    variation = np.abs(np.bincount(counts, minlength=members + 1) / RESOLUTION - expected).sum() / 2
    assert variation <= 2 * members / RESOLUTION


@pytest.mark.parametrize(("members", "fewest", "zero"), [(5, 3, 0.5), (5, 2, 0.8), (8, 5, 0.2), (3, 3, 0.6)])
def test_what_is_drawn_is_what_is_promised(members: int, fewest: int, zero: float) -> None:
    """Many tensors, for the order of the members is drawn for each."""
    tensors, size = 600, 200
    layout = Layout(tuple(LayoutEntry(f"w{number}", (size,)) for number in range(tensors)))
    weights = drawn_weights(layout, zero, members=members, fewest=fewest, seed=members)
    counts = weights.sum(axis=0)
    total = tensors * size
    # Fixed seeds; every comparison is wrong for one seed in 10^6.
    for member in range(members):
        assert binomtest(int((~weights[member]).sum()), total, zero).pvalue > 1e-6
    expected = distribution(members, zero, fewest)
    possible = expected > 0
    assert np.bincount(counts, minlength=members + 1)[~possible].sum() == 0
    # The table's own departure, 2 members / 65536 at most, adds to a chi-square of 120,000 draws less than 0.01.
    assert chisquare(np.bincount(counts, minlength=members + 1)[possible], total * expected[possible]).pvalue > 1e-6
    # Given the number of contributors, who they are: every pair is as likely. One coordinate per tensor is independent.
    pairs = np.triu_indices(members, 1)
    chance = float((expected * np.arange(members + 1) * (np.arange(members + 1) - 1)).sum() / (members * (members - 1)))
    for one, other in zip(*pairs, strict=True):
        together = int((weights[one] & weights[other])[::size].sum())
        assert binomtest(together, tensors, chance).pvalue > 1e-6


def test_starts_are_spread_over_the_circle() -> None:
    """One tensor, three members of whom all or exactly one would contribute: its start decides which."""
    weights = drawn_weights(Layout((LayoutEntry("w", (60_000,)),)), 0.9, members=3, fewest=1, seed=4)
    alone = weights[:, weights.sum(axis=0) == 1].sum(axis=1)
    assert chisquare(alone).pvalue > 1e-6  # A fixed seed, wrong for one in 10^6.


def test_every_tensor_has_its_own_probability() -> None:
    layout = Layout((LayoutEntry("a", (40_000,)), LayoutEntry("b", ()), LayoutEntry("c", (7, 5_000))))
    probabilities = (0.2, 0.0, 0.7)
    random = np.random.default_rng(2).integers(0, RESOLUTION, coordination_words(layout, 4), np.uint16)
    weights = all_weights(layout, probabilities, random, members=4, fewest=2)
    parts = np.split(weights, np.cumsum(layout.tensor_sizes)[:-1], axis=1)
    assert parts[1].all()
    for part, zero in ((parts[0], 0.2), (parts[2], 0.7)):
        # In all members together: the number of contributors of every coordinate is independent.
        counts = np.bincount(part.sum(axis=0), minlength=5)
        expected = distribution(4, zero, 2)
        assert chisquare(counts[expected > 0], counts.sum() * expected[expected > 0]).pvalue > 1e-6


def test_equal_sort_keys_still_give_every_member_its_own_position() -> None:
    random = np.zeros(coordination_words(ALL_WORDS, 3), np.uint16)
    random[-RESOLUTION:] = np.arange(RESOLUTION)
    random[-2 * RESOLUTION : -RESOLUTION] = np.arange(RESOLUTION)
    counts = all_weights(ALL_WORDS, (0.5,), random, members=3, fewest=2).sum(axis=0)
    assert set(counts.tolist()) == {0, 2, 3}


def test_cohorts_of_a_thousand() -> None:
    layout = Layout((LayoutEntry("w", (10,)),))
    weights = drawn_weights(layout, 0.5, members=1_000, fewest=510, seed=5)
    counts = weights.sum(axis=0)
    assert all(count == 0 or count >= 510 for count in counts)
    assert counts.any()


@pytest.mark.parametrize(("members", "fewest"), [(4, 5), (1, 2), (4, 0)])
def test_a_cohort_that_cannot_be_coordinated_is_refused(members: int, fewest: int) -> None:
    with pytest.raises(
        ValueError, match=r"protection\.min_contributors .* lower protection\.min_contributors, tolerate"
    ):
        coordinated_weights(ALL_WORDS, (0.5,), members=members, place=0, fewest=fewest, random=np.zeros(0, np.uint16))
