"""Thresholds against published values and scipy; graphs against their definition."""

import math
from collections import Counter
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import hypergeom

from tacit.secagg.graph import (
    GraphParameters,
    choose_parameters,
    complete_parameters,
    regular_parameters,
    ring_order,
)
from tests.cases import cases

SEED = bytes(range(32))


def counts_of(clients: int, percent: tuple[int, int]) -> dict[str, int]:
    """So many percent of the clients that collude, and that drop out, rounded down."""
    return {"colluders": clients * percent[0] // 100, "dropouts": clients * percent[1] // 100}


def reference_regular(clients: int, active: bool, *, colluders: int, dropouts: int) -> tuple[int, int] | None:
    """The rule with scipy's tails, linear searches and exact integers for the connectivity."""
    a, d, survivors = colluders, dropouts, clients - dropouts
    if a + (1 + active) * d > Fraction(9, 10) * clients:
        return None
    for k in range(2, clients - 1, 2):
        if k <= a + d:
            bound = Fraction(clients * (clients - k - 1), 2) * Fraction(
                math.factorial(a + d) * math.factorial(clients - k),
                math.factorial(clients) * math.factorial(a + d - k),
            )
            if bound >= Fraction(1, 2**41):
                continue
        counts = np.arange(k + 1)
        t1 = int(counts[hypergeom.sf(counts, clients, a, k) <= 2.0**-41 / clients].min())
        t2 = int(counts[hypergeom.cdf(counts - 1, clients, survivors, k) <= 2.0**-20 / clients].max())
        if active:
            t1 = math.ceil((t1 + k - 1.25) / 2)
        if t2 > t1:
            return k, max(t1 + 1, 2)
    return None


@cases(
    ("clients", "percent", "active", "neighbours", "threshold"),
    [
        (100, (33, 33), False, 68, 34),
        (1000, (33, 33), False, 286, 150),
        (100, (5, 5), False, 12, 6),
        (1000, (5, 5), False, 30, 17),
        (10, (33, 33), False, 8, 4),
        (100, (5, 33), True, 72, 39),
        (1000, (33, 5), True, 132, 109),
        (1000, (30, 30), True, 872, 584),
        (100, (5, 5), True, 16, 11),
        (1000, (5, 5), True, 52, 37),
    ],
)
def test_published_regular_parameters(
    clients: int, percent: tuple[int, int], active: bool, neighbours: int, threshold: int
) -> None:
    found = regular_parameters(clients, **counts_of(clients, percent), active=active)
    assert found == GraphParameters(neighbours, threshold)


@cases("active", [False, True])
@cases("clients", [4, 6, 15, 20, 33, 64, 150])
@cases("percent", [(0, 0), (1, 1), (5, 20), (20, 5), (10, 30), (29, 29), (45, 45)])
def test_regular_parameters_equal_the_reference(clients: int, percent: tuple[int, int], active: bool) -> None:
    counts = counts_of(clients, percent)
    expected = reference_regular(clients, active, **counts)
    try:
        found = regular_parameters(clients, **counts, active=active)
    except ValueError:
        assert expected is None
    else:
        assert (found.neighbours, found.threshold) == expected


@cases(
    ("clients", "percent", "neighbours"),
    [
        (30, (0, 40), 14),
        (55, (0, 40), 24),
        (55, (0, 45), 24),
        (55, (2, 50), 28),
        (64, (4, 45), 28),
        (75, (10, 40), 32),
        (90, (0, 30), 24),
    ],
)
def test_a_graph_that_could_fall_apart_is_not_taken(clients: int, percent: tuple[int, int], neighbours: int) -> None:
    """Where the first of the rules decides, by a factor of two or less."""
    counts = counts_of(clients, percent)
    found = regular_parameters(clients, **counts, active=False)
    assert (found.neighbours, found.threshold) == reference_regular(clients, False, **counts)
    assert found.neighbours == neighbours


@cases(
    ("clients", "count", "active"),
    [(5, 1, False), (5, 1, True), (20, 7, True), (100, 33, True), (1000, 330, True), (10_000, 3300, True),
     (1000, 460, False)],
)  # fmt: skip
def test_says_when_no_regular_graph_exists(clients: int, count: int, active: bool) -> None:
    server = "an active" if active else "a semi-honest"
    with pytest.raises(ValueError, match=rf"{clients} clients tolerates {count} colluders .*{server} server: .*comple"):
        regular_parameters(clients, colluders=count, dropouts=count, active=active)


@cases(
    ("clients", "active", "colluders", "threshold"),
    [
        (2, False, 0, 2),
        (3, False, 0, 2),
        (5, False, 1, 3),
        (100, False, 33, 51),
        (100, False, 70, 71),
        (2, True, 0, 2),
        (3, True, 0, 3),
        (3, True, 1, 3),
        (4, True, 1, 3),
        (5, True, 3, 5),
        (10, True, 3, 7),
        (10, True, 5, 8),
        (100, True, 33, 67),
        (100, True, 40, 71),
    ],
)
def test_complete_parameters(clients: int, active: bool, colluders: int, threshold: int) -> None:
    found = complete_parameters(clients, active=active, colluders=colluders)
    assert found == GraphParameters(clients - 1, threshold)


def test_the_complete_threshold_is_the_least_that_protects() -> None:
    """For every number of colluders among up to 40 clients; Bonawitz et al. 2017, section 6.2."""
    for clients in range(2, 41):
        for colluders, active in product(range(clients), (False, True)):
            safe = [t for t in range(1, clients + 1) if t > colluders and 2 * t > clients]
            if active:
                safe = [t for t in safe if 2 * t > clients + colluders and 3 * t > 2 * clients]
            found = complete_parameters(clients, colluders=colluders, active=active)
            assert found == GraphParameters(clients - 1, safe[0])


@cases(
    ("clients", "active", "graph", "neighbours"),
    [
        (19, False, "auto", 18),
        (20, False, "auto", 4),
        (100, False, "auto", 12),
        (100, True, "auto", 99),
        (100, False, "complete", 99),
        (100, True, "regular", 16),
        (15, False, "regular", 2),
    ],
)
def test_choice_of_the_graph(clients: int, active: bool, graph: str, neighbours: int) -> None:
    counts = counts_of(clients, (5, 5))
    chosen = choose_parameters(clients, **counts, active=active, graph=graph)  # type: ignore[arg-type]
    assert chosen.neighbours == neighbours
    complete = complete_parameters(clients, colluders=counts["colluders"], active=active)
    assert chosen == (complete if neighbours == clients - 1 else regular_parameters(clients, **counts, active=active))


@given(st.lists(st.integers(0, 2**40), unique=True, max_size=30), st.binary(min_size=32, max_size=32), st.randoms())
def test_ring_order_depends_on_the_set_of_members_only(members: list[int], seed: bytes, random: object) -> None:
    order = ring_order(np.array(members, np.int64), seed)
    assert sorted(order.tolist()) == sorted(members)
    random.shuffle(members)  # type: ignore[attr-defined]
    assert ring_order(np.array(members, np.int64), seed).tolist() == order.tolist()


def test_ring_order_is_uniform_over_permutations() -> None:
    """6,000 fixed seeds, 6 orders: each count is binomial(6000, 1/6), standard deviation 29; five of them allowed."""
    orders = Counter(tuple(ring_order(np.array([3, 5, 9]), seed.to_bytes(32, "big")).tolist()) for seed in range(6000))
    assert len(orders) == 6
    assert all(abs(count - 1000) < 145 for count in orders.values())


def test_refusals() -> None:
    for clients in (-1, 0, 1):
        with pytest.raises(ValueError, match="at least 2 clients"):
            complete_parameters(clients, active=False, colluders=0)
    with pytest.raises(ValueError, match="no regular graph"):
        regular_parameters(1, colluders=0, dropouts=0, active=False)
    for colluders, dropouts in ((-1, 0), (10, 0), (0, -1), (0, 10)):
        with pytest.raises(ValueError, match="some must be neither"):
            regular_parameters(10, colluders=colluders, dropouts=dropouts, active=False)
    with pytest.raises(ValueError, match="some must be neither"):
        complete_parameters(10, colluders=10, active=False)
    with pytest.raises(ValueError, match="occurs twice"):
        ring_order(np.array([1, 2, 1]), SEED)
