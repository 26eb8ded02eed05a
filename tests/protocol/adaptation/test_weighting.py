"""Weights of data owners: by the images that they state, and within a factor of two."""

from tacit.protocol.adaptation.sums import LARGEST, LEAST, sum_of_weights, weight_of
from tests.cases import cases

COUNTS = range(1, 200)


@cases("least", [1, 2, 7, 16, 50])
def test_weights_are_those_of_the_images_and_never_more_than_twice_others(least: int) -> None:
    weights = [weight_of(count, least) for count in COUNTS]
    assert weights == sorted(weights)
    assert {LEAST, LARGEST} <= set(weights) <= set(range(LEAST, LARGEST + 1))
    assert max(weights) == 2 * min(weights)
    for count, weight in zip(COUNTS, weights, strict=True):
        if least <= count <= 2 * least:
            # Whole weights: less than one is cut off.
            assert 0 <= LEAST * count / least - weight < 1
        else:
            assert weight == (LEAST if count < least else LARGEST)


def test_without_counts_all_weigh_one() -> None:
    assert {weight_of(count, 0) for count in (0, *COUNTS)} == {1}
    assert sum_of_weights(5, 0) == (5, 5)


def test_the_weights_of_several_are_within_their_bounds() -> None:
    least, largest = sum_of_weights(3, 10)
    assert least == 3 * weight_of(1, 10)
    assert largest == 3 * weight_of(2**31, 10)
