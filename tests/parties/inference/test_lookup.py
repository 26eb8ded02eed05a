"""What is looked up and compared on shares: all values of small domains, bounds to the last unit, an exact zero."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import pytest
import torch

from tacit.parties.inference.material import Lookup
from tacit.parties.inference.operations import Party, Program
from tacit.parties.inference.tables import LookedUp, Range
from tacit.protocol.inference.schedule import PLACE, THRESHOLD_LEVELS
from tests.parties.inference.in_memory import Pair, shares

UNIT = 1 << (PLACE - THRESHOLD_LEVELS)
RING = 1 << PLACE


def looked_up(
    values: torch.Tensor, request: Lookup, limits: Range, words: tuple[torch.Tensor, torch.Tensor] | None = None
) -> tuple[torch.Tensor | None, int]:
    """The function of the values, and how many of them were out of range."""
    parts = shares(values)
    pair = Pair()

    def act(party: Party) -> Program[tuple[torch.Tensor, torch.Tensor]]:
        lookup = LookedUp(party, request)
        (opened,) = yield from party.open("look up", lookup.masked(parts[party.rank]))
        outside = lookup.settle(opened, limits)
        return (torch.zeros(()) if words is None else lookup.value(*words)), outside

    (one, outside), (other, others) = pair.run(*(act(party) for party in pair.parties))
    assert pair.log == [("look up", 4 * values.numel(), 4 * values.numel())]
    return (None if words is None else one + other), int(outside + others) % RING


def outside(values: Sequence[int], limits: Range, levels: int = THRESHOLD_LEVELS) -> int:
    return looked_up(torch.tensor(values, dtype=torch.int64), Lookup((len(values),), levels=levels), limits)[1]


@pytest.mark.parametrize(("index", "slope"), [(1, 0), (3, 2), (4, 0), (2, 4), (6, 0)])
def test_every_value_of_a_small_domain_has_its_function(index: int, slope: int) -> None:
    """Exact: on the line of its interval or on that of the next, as the mask makes it, and on both in time."""
    domain = index + slope
    request = Lookup((1 << domain,), domain, index, slope)
    values = torch.arange(1 << domain)
    heights = torch.randint(-(1 << 40), 1 << 40, (1 << index,))
    slopes = torch.randint(-(1 << 20), 1 << 20, (1 << index,))
    size, rest = 1 << index, values & ((1 << slope) - 1)
    here = values >> slope
    after = (here + 1) % size
    lines = heights[here] + slopes[here] * rest, heights[after] + slopes[after] * (rest - (1 << slope))
    seen = [torch.zeros_like(values), torch.zeros_like(values)]
    for _ in range(16):
        found, count = looked_up(values, request, Range(0, 2), (heights, slopes))
        assert found is not None
        hits = [found == line for line in lines]
        assert (hits[0] | hits[1]).all()
        assert hits[0][rest == 0].all()
        seen = [before + hit for before, hit in zip(seen, hits, strict=True)]
        assert count == 0
    assert seen[0].sum() > 0
    assert slope == 0 or seen[1].sum() > 0


@pytest.mark.parametrize("domain", [12, 29, 32])
def test_what_is_below_the_place_in_an_interval_is_cut_with_a_carry(domain: int) -> None:
    """Of finer values the place is rounded down, or one more: at every edge of an interval, on either side."""
    index, slope = 3, 4
    rest = domain - index - slope
    edges = torch.arange(1 << index) << (domain - index)
    values = torch.cat([edges, edges + 1, edges - 1, edges + (1 << rest) - 1]) & ((1 << domain) - 1)
    heights = torch.arange(1 << index) << (slope + 8)
    slopes = torch.full((1 << index,), 1 << 8)  # Of the function x / 2^rest, times 2^8.
    for _ in range(8):
        found, _ = looked_up(values, Lookup(tuple(values.shape), domain, index, slope), Range(0, 1), (heights, slopes))
        assert found is not None
        seen = (found >> 8) & ((1 << (index + slope)) - 1)
        exact = values >> rest
        assert (((seen - exact) & ((1 << (index + slope)) - 1)) <= 1).all()
        assert ((found & 0xFF) == 0).all()


LOW, HIGH = 1000, 40000
STEPS = sorted({step for power in range(PLACE - 1) for step in ((1 << power) - 1, 1 << power, (1 << power) + 1)})


def test_what_exceeds_a_bound_by_about_a_power_of_two_is_refused() -> None:
    """By 2^k - 1, 2^k and 2^k + 1, on both sides, whatever the mask: never found in range."""
    above = [HIGH * UNIT + step for step in STEPS if HIGH * UNIT + step < 0.95 * RING]
    below = [LOW * UNIT - 1 - step for step in STEPS if step < LOW * UNIT]
    for value in (*above[::16], *below[::16]):
        assert outside([value], Range(LOW, HIGH)) == 1, value
    # None can make up for another: each counts as one or as nothing.
    assert outside([*above, *below] * 16, Range(LOW, HIGH)) == 16 * (len(above) + len(below))


def test_what_is_within_less_one_unit_is_never_refused() -> None:
    lowest, highest = (LOW + 1) * UNIT, (HIGH - 1) * UNIT - 1
    values = [value for step in STEPS for value in (lowest + step, highest - step) if lowest <= value <= highest]
    assert outside(values * 16, Range(LOW, HIGH)) == 0


def test_within_one_unit_of_a_bound_a_value_is_found_on_either_side_by_its_mask() -> None:
    found = outside([(HIGH - 1) * UNIT + UNIT // 2] * 60, Range(LOW, HIGH))
    assert 0 < found < 60  # Each with probability 1/2: by chance alone in one of 2^59 runs.


def test_without_a_lower_bound_zero_is_in_range() -> None:
    assert outside([0, 1, UNIT - 1, UNIT, 3 * UNIT] * 30, Range(0, 5)) == 0


def test_bounds_may_be_the_whole_ring() -> None:
    assert outside([0, UNIT, 7 * UNIT, int(0.9 * RING)] * 20, Range(0, 1 << THRESHOLD_LEVELS)) == 0
    assert outside([0, UNIT - 1, 3 * UNIT, int(0.9 * RING)] * 20, Range(2, 1 << THRESHOLD_LEVELS)) == 40


def test_every_value_and_every_bound_of_few_levels() -> None:
    """With all masks that 20 draws give: what is seen of a value is its unit or one more."""
    for levels in (1, 2, 3):
        size, unit = 1 << levels, RING >> levels
        middles = [place * unit + unit // 2 for place in range(size - 1)]  # No sum fills the last unit.
        for low, high in combinations(range(size + 1), 2):
            beyond = [middle for middle in middles if not low * unit <= middle < high * unit]
            within = [middle for middle in middles if (low + 1 if low else 0) * unit <= middle < (high - 1) * unit]
            assert outside(beyond * 20, Range(low, high), levels) == 20 * len(beyond), (levels, low, high)
            assert outside(within * 20, Range(low, high), levels) == 0, (levels, low, high)


def test_a_count_of_which_all_bits_are_compared_is_zero_or_not() -> None:
    counts = [2, 3, 255, (1 << 31) - 1, RING - 1, *(1 << power for power in range(PLACE))]
    assert outside(counts * 8, Range(0, 1), levels=PLACE) == 8 * len(counts)
    assert outside([0] * 16, Range(0, 1), levels=PLACE) == 0


def test_nothing_is_out_of_range_of_nothing() -> None:
    assert outside([], Range(3, 9)) == 0
