"""`federation.group_size`: which groups it makes, and every number with which no group fits."""

import pytest

from tacit.parties.runs.experiment import Experiment, ExperimentError, parse

FITTING = (
    '[policy]\nleast_corrupt = 0.0\nmodes = ["active", "none"]\n'
    "[federation]\nclients = {clients}\ngroup_size = {size}\n[aggregation]\ncorrupt = {corrupt}\ndropout = {dropout}\n"
)


def made(clients: int, size: int, corrupt: float = 0.05, dropout: float = 0.5, more: str = "") -> Experiment:
    text = FITTING.format(clients=clients, size=size, corrupt=corrupt, dropout=dropout)
    return parse(text + more, "groups.toml")


@pytest.mark.parametrize(
    ("clients", "size", "groups"),
    [
        (6, 2, (1, 1, 2, 2, 3, 3)),
        (12, 3, (1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4)),
        (7, 2, (1, 1, 1, 2, 2, 3, 3)),
        (11, 3, (1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3)),
    ],
)
def test_as_many_groups_as_there_can_be_of_almost_the_same_size(
    clients: int, size: int, groups: tuple[int, ...]
) -> None:
    assert made(clients, size).groups() == groups


def test_without_the_key_nobody_is_in_a_group() -> None:
    assert Experiment().groups() == (0,) * 5


@pytest.mark.parametrize(
    ("clients", "size", "corrupt", "dropout"),
    [
        (6, 2, 0.05, 0.34),
        (12, 3, 0.1, 0.33),
        (12, 3, 0.1, 0.5),
        (20, 4, 0.1, 0.2),
        (100, 12, 0.1, 0.3),
        (1000, 52, 0.05, 0.2),
    ],
)
def test_the_values_of_the_page_fit(clients: int, size: int, corrupt: float, dropout: float) -> None:
    found = made(clients, size, corrupt, dropout)
    assert {found.groups().count(group) for group in found.groups()} <= {size, size + 1}


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((12, 3, 0.33, 0.33), "a group of 3 clients, of whom 3 may collude: a group needs at least 5"),
        (
            (12, 5, 0.33, 0.33),
            "one client that is lost takes its group of 6 out of the sum of 12 clients, and 6 are left, where 9 are "
            "needed (dropout = 0.33 of 12 tolerates 3, smallest_cohort = 3): take more clients, smaller groups "
            "(with 3 colluders they need at least 5), or a larger dropout",
        ),
        ((12, 4, 0.1, 0.33), "one client that is lost takes its group of 4 out of the sum of 12 clients"),
        ((5, 1, 0.05, 0.33), "a group of 1 clients, of whom 0 may collude: a group needs at least 2"),
        ((5, 5, 0.05, 0.9), "one client that is lost takes its group of 5 out of the sum of 5 clients"),
        ((4, 2, 0.05, 0.5), "one client that is lost takes its group of 2 out of the sum of 4 clients"),
        ((6, 2, 0.05, 0.5, "threshold = 6\n"), "when one of 6 clients is lost, 5 answer, and 6 must"),
        (
            (6, 2, 0.05, 0.5, 'mode = "none"\n'),
            "without secure aggregation the server sees every update; set it to 0",
        ),
    ],
)  # fmt: skip
def test_groups_that_do_not_fit_are_refused_with_the_numbers(arguments: tuple[int, ...], complaint: str) -> None:
    with pytest.raises(ExperimentError) as caught:
        made(*arguments)  # type: ignore[arg-type]
    assert str(caught.value).startswith(f"groups.toml: federation.group_size = {arguments[1]}: {complaint}")


def test_more_than_there_are_clients_is_no_group() -> None:
    with pytest.raises(ExperimentError, match="group_size = 6: 5 clients make no group of 6"):
        made(5, 6)
