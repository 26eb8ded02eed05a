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


def reference_regular(clients: int, corrupt: Fraction, dropout: Fraction, active: bool) -> tuple[int, int] | None:
    """The rule with scipy's tails, linear searches and exact integers for the connectivity."""
    a, d = math.floor(corrupt * clients), math.floor(dropout * clients)
    survivors = math.ceil((1 - dropout) * clients)
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
    ("clients", "corrupt", "dropout", "active", "neighbours", "threshold"),
    [
        (100, 0.33, 0.33, False, 68, 34),
        (1000, 0.33, 0.33, False, 286, 150),
        (100, 0.05, 0.05, False, 12, 6),
        (1000, 0.05, 0.05, False, 30, 17),
        (10, 0.33, 0.33, False, 8, 4),
        (100, 0.05, 0.33, True, 72, 39),
        (1000, 0.33, 0.05, True, 132, 109),
        (1000, 0.3, 0.3, True, 872, 584),
        (100, 0.05, 0.05, True, 16, 11),
        (1000, 0.05, 0.05, True, 52, 37),
    ],
)
def test_published_regular_parameters(
    clients: int, corrupt: float, dropout: float, active: bool, neighbours: int, threshold: int
) -> None:
    found = regular_parameters(clients, corrupt=corrupt, dropout=dropout, active=active)
    assert found == GraphParameters(neighbours, threshold)


@cases("active", [False, True])
@cases("clients", [4, 6, 15, 20, 33, 64, 150])
@cases("percent", [(0, 0), (1, 1), (5, 20), (20, 5), (10, 30), (29, 29), (45, 45)])
def test_regular_parameters_equal_the_reference(clients: int, percent: tuple[int, int], active: bool) -> None:
    corrupt, dropout = (Fraction(part, 100) for part in percent)
    expected = reference_regular(clients, corrupt, dropout, active)
    if corrupt + (2 if active else 1) * dropout > Fraction(9, 10):
        expected = None
    try:
        found = regular_parameters(clients, corrupt=float(corrupt), dropout=float(dropout), active=active)
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
    corrupt, dropout = (Fraction(part, 100) for part in percent)
    found = regular_parameters(clients, corrupt=float(corrupt), dropout=float(dropout), active=False)
    assert (found.neighbours, found.threshold) == reference_regular(clients, corrupt, dropout, False)
    assert found.neighbours == neighbours


@cases(
    ("clients", "fraction", "active"),
    [(5, 0.2, False), *((clients, 0.33, True) for clients in (5, 20, 100, 1000, 10_000)), (1000, 0.46, False)],
)
def test_says_when_no_regular_graph_exists(clients: int, fraction: float, active: bool) -> None:
    server = "an active" if active else "a semi-honest"
    with pytest.raises(ValueError, match=rf"{clients} clients .*corrupt={fraction} .*{server} server: .*complete"):
        regular_parameters(clients, corrupt=fraction, dropout=fraction, active=active)


@cases(
    ("clients", "active", "corrupt", "threshold"),
    [
        (2, False, 0.0, 2),
        (3, False, 0.33, 2),
        (5, False, 0.2, 3),
        (100, False, 0.33, 51),
        (100, False, 0.57, 58),  # Fractions are decimals: 0.57 * 100 is 56.99... in floating point.
        (100, False, 0.7, 71),
        (2, True, 0.0, 2),
        (3, True, 0.0, 3),
        (4, True, 0.25, 3),
        (10, True, 0.3, 7),
        (100, True, 0.33, 67),
    ],
)
def test_complete_parameters(clients: int, active: bool, corrupt: float, threshold: int) -> None:
    assert complete_parameters(clients, active=active, corrupt=corrupt) == GraphParameters(clients - 1, threshold)


def test_complete_threshold_protects_whenever_it_is_given() -> None:
    for clients, corrupt in product(range(2, 200), (0.0, 0.1, 0.33, 0.5, 0.9)):
        adversaries = math.floor(Fraction(str(corrupt)) * clients)
        semi_honest = complete_parameters(clients, active=False, corrupt=corrupt).threshold
        assert adversaries < semi_honest <= clients < 2 * semi_honest
        try:
            active = complete_parameters(clients, active=True, corrupt=corrupt).threshold
        except ValueError:
            assert 3 * adversaries >= clients  # A third or more corrupt: Bonawitz et al. give no guarantee either.
        else:
            assert clients + adversaries < 2 * active <= 2 * clients


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
    chosen = choose_parameters(clients, corrupt=0.05, dropout=0.05, active=active, graph=graph)  # type: ignore[arg-type]
    assert chosen.neighbours == neighbours
    make = complete_parameters if neighbours == clients - 1 else regular_parameters
    dropout = {} if neighbours == clients - 1 else {"dropout": 0.05}
    assert chosen == make(clients, corrupt=0.05, active=active, **dropout)  # type: ignore[operator]


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
    with pytest.raises(ValueError, match=r"100 clients against 40 .*active server: lower `corrupt` \(0.4\)"):
        complete_parameters(100, active=True, corrupt=0.4)
    for clients in (-1, 0, 1):
        with pytest.raises(ValueError, match="at least 2 clients"):
            complete_parameters(clients, active=False, corrupt=0.0)
        with pytest.raises(ValueError, match="no regular graph"):
            regular_parameters(max(clients, 0), corrupt=0.0, dropout=0.0, active=False)
    for fraction in (-0.1, 1.0, 1.5, math.nan):
        with pytest.raises(ValueError, match="`corrupt` is a fraction"):
            complete_parameters(10, active=False, corrupt=fraction)
        with pytest.raises(ValueError, match="`corrupt` is a fraction"):
            regular_parameters(10, active=False, corrupt=fraction, dropout=0.1)
        with pytest.raises(ValueError, match="`dropout` is a fraction"):
            regular_parameters(10, active=False, corrupt=0.1, dropout=fraction)
    with pytest.raises(ValueError, match="occurs twice"):
        ring_order(np.array([1, 2, 1]), SEED)
