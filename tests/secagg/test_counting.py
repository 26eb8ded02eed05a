"""Counts of contributors packed into words, against Python integers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.secagg.counting import COUNTING_RING, CountPacking


@st.composite
def cohorts(draw: st.DrawFn) -> tuple[CountPacking, np.ndarray]:
    """A packing, and who contributes to what: bool [contributors, size], within what was packed for."""
    packing = CountPacking(clients=draw(st.integers(1, 70)), size=draw(st.integers(1, 130)))
    contributors = draw(st.integers(1, packing.clients))
    share = draw(st.sampled_from([0.0, 0.3, 1.0]))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    return packing, random.random((contributors, packing.size)) < share


def reference(packing: CountPacking, contributes: np.ndarray) -> list[int]:
    """The words of the sum, as the module describes them, in integers without bounds."""
    words = [0] * packing.length
    for coordinate, count in enumerate(contributes.sum(axis=0).tolist()):
        field, word = divmod(coordinate, packing.length)
        words[word] += count << field * packing.bits
    return words


@given(cohorts())
def test_the_sum_of_the_words_holds_every_count(drawn: tuple[CountPacking, np.ndarray]) -> None:
    packing, contributes = drawn
    total = np.zeros(packing.length, COUNTING_RING.word)
    for client in contributes:
        COUNTING_RING.add_into(total, packing.encode(client))
    assert total.tolist() == reference(packing, contributes)
    counts = packing.decode(total, contributors=len(contributes))
    assert counts.tolist() == contributes.sum(axis=0).tolist()


@pytest.mark.parametrize(
    ("clients", "fields"), [(1, 64), (3, 32), (4, 21), (7, 21), (8, 16), (100, 9), (127, 9), (128, 8), (1000, 6)]
)
def test_a_full_cohort_fits_as_many_fields_as_the_page_says(clients: int, fields: int) -> None:
    """Every field at its largest: one that carried would change its neighbour."""
    packing = CountPacking(clients, 2 * fields)
    assert packing.length == 2
    assert CountPacking(clients, 2 * fields + 1).length == 3
    everything = np.uint64(clients) * packing.encode(np.ones(2 * fields, np.bool_))
    assert packing.decode(everything, contributors=clients).tolist() == [clients] * 2 * fields


def test_more_contributors_than_there_were_are_refused() -> None:
    packing = CountPacking(5, 30)
    words = packing.encode(np.arange(30) == 22) * np.uint64(3)
    assert packing.decode(words, contributors=3)[22] == 3
    with pytest.raises(ValueError, match="coordinate 22 counts 3 of 2 contributors"):
        packing.decode(words, contributors=2)


@pytest.mark.parametrize("contributes", [np.ones(29, np.bool_), np.ones((2, 15), np.bool_), np.ones(30, np.uint8)])
def test_other_contributions_are_refused(contributes: np.ndarray) -> None:
    with pytest.raises(ValueError, match=r"expected bool \[30\]"):
        CountPacking(5, 30).encode(contributes)


@pytest.mark.parametrize("total", [np.zeros(3, np.uint64), np.zeros(2, np.uint32), np.zeros((1, 2), np.uint64)])
def test_other_words_are_refused(total: np.ndarray) -> None:
    with pytest.raises(ValueError, match="expected 2 words of 64 bits"):
        CountPacking(5, 30).decode(total, contributors=5)


@pytest.mark.parametrize(("clients", "size"), [(0, 30), (5, 0)])
def test_nothing_to_count_is_refused(clients: int, size: int) -> None:
    with pytest.raises(ValueError, match=f"cannot count {size} coordinates over {clients} clients"):
        CountPacking(clients, size)
