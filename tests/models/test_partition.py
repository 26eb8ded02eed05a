import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.models.configuration import DataConfiguration
from tacit.models.partition import Indices, by_centre, dirichlet, divide, iid, minimum

LABELS = np.arange(1437, dtype=np.int64) % 10

labels_strategy = st.lists(st.integers(0, 4), min_size=8, max_size=200).map(lambda values: np.array(values, np.int64))
seeds = st.integers(0, 2**32)


def is_a_division(parts: list[Indices], count: int) -> bool:
    return sorted(np.concatenate(parts).tolist()) == list(range(count)) and all(
        part.dtype == np.int64 and (np.diff(part) > 0).all() for part in parts
    )


@settings(max_examples=100, deadline=None)
@given(labels_strategy, st.integers(1, 4), st.floats(0.3, 1e6), seeds)
def test_dirichlet_gives_every_index_to_one_client(labels: Indices, clients: int, alpha: float, seed: int) -> None:
    try:
        parts = dirichlet(labels, clients=clients, alpha=alpha, seed=seed)
    except ValueError:
        # Where no class has an image for everybody, equal shares may be rounded alike in all of them.
        assert np.bincount(labels).max() < clients
        return
    assert len(parts) == clients
    assert is_a_division(parts, len(labels))
    assert min(map(len, parts)) >= minimum(len(labels), clients=clients)


@settings(max_examples=50, deadline=None)
@given(labels_strategy, st.integers(1, 8), seeds)
def test_iid_gives_every_index_to_one_client(labels: Indices, clients: int, seed: int) -> None:
    parts = iid(labels, clients=clients, seed=seed)
    assert len(parts) == clients
    assert is_a_division(parts, len(labels))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize(
    ("samples", "clients", "fewest"), [(1437, 5, 32), (1437, 20, 17), (128, 1, 32), (127, 1, 31), (3, 2, 1)]
)
def test_minimum(samples: int, clients: int, fewest: int) -> None:
    assert minimum(samples, clients=clients) == fewest


def test_small_draws_are_repeated() -> None:
    # With alpha 0.1 one draw leaves some client below 32 images more often than not; twenty seeds never show one.
    for seed in range(20):
        assert min(map(len, dirichlet(LABELS, clients=5, alpha=0.1, seed=seed))) >= 32


def test_a_large_alpha_gives_equal_shares_of_every_class() -> None:
    # Shares of a Dirichlet with concentration 1e6 in 5 parts have standard deviation 0.4 / sqrt(5e6) = 0.0002, so a
    # class of 144 images departs from 28.8 for each by less than rounding of the two cuts, 1, and 6 deviations, 0.2.
    parts = dirichlet(LABELS, clients=5, alpha=1e6, seed=3)
    counts = np.array([np.bincount(LABELS[part], minlength=10) for part in parts])
    assert np.abs(counts - np.bincount(LABELS) / 5).max() < 1.2


def test_a_small_alpha_concentrates_classes() -> None:
    # Expected sum of squared shares of one class: (1 + alpha) / (1 + 5 alpha), which is 0.2 where shares are equal.
    def concentration(alpha: float) -> float:
        parts = dirichlet(LABELS, clients=5, alpha=alpha, seed=5)
        shares = np.array([np.bincount(LABELS[part], minlength=10) for part in parts]) / np.bincount(LABELS)
        return float((shares**2).sum(axis=0).mean())

    assert concentration(0.1) > concentration(1.0) > concentration(100.0)


@pytest.mark.parametrize("kind", ["dirichlet", "iid"])
def test_divide_follows_the_configuration_and_the_seed(kind: str) -> None:
    configuration = DataConfiguration(partition=kind, alpha=0.5)  # type: ignore[arg-type]
    parts = divide(LABELS, configuration, clients=5, seed=7)
    direct = dirichlet(LABELS, clients=5, alpha=0.5, seed=7) if kind == "dirichlet" else iid(LABELS, clients=5, seed=7)
    assert all(np.array_equal(one, other) for one, other in zip(parts, direct, strict=True))
    again = divide(LABELS, configuration, clients=5, seed=8)
    assert not all(np.array_equal(one, other) for one, other in zip(parts, again, strict=True))


@pytest.mark.parametrize("clients", [0, 4])
def test_every_client_needs_an_image(clients: int) -> None:
    labels = np.zeros(3, dtype=np.int64)
    with pytest.raises(ValueError, match=f"{clients} clients cannot share 3 images"):
        dirichlet(labels, clients=clients, alpha=1.0, seed=0)
    with pytest.raises(ValueError, match=f"{clients} clients cannot share 3 images"):
        iid(labels, clients=clients, seed=0)


@settings(max_examples=50, deadline=None)
@given(labels_strategy, st.integers(1, 5))
def test_centres_stay_whole(centres: Indices, clients: int) -> None:
    clients = min(clients, len(np.unique(centres)))
    parts = by_centre(centres, clients=clients)
    assert len(parts) == clients
    assert is_a_division(parts, len(centres))
    places = [set(centres[part].tolist()) for part in parts]
    assert all(places)
    assert sum(map(len, places)) == len(set(centres.tolist()))


def test_as_many_clients_as_centres_have_one_each_in_ascending_order() -> None:
    parts = by_centre(np.array([5, 0, 5, 3, 0]), clients=3)
    assert [part.tolist() for part in parts] == [[1, 4], [3], [0, 2]]


def test_fewer_clients_take_centres_in_turn() -> None:
    parts = by_centre(np.array([0, 1, 2, 3, 4, 5, 0]), clients=4)
    assert [part.tolist() for part in parts] == [[0, 4, 6], [1, 5], [2], [3]]


def test_centres_may_be_given_in_the_order_of_the_clients() -> None:
    parts = by_centre(np.array([5, 0, 5, 3, 0]), clients=3, order=(3, 5, 0))
    assert [part.tolist() for part in parts] == [[3], [0, 2], [1, 4]]
