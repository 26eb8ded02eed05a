"""Client sampling: the server draws the cohort of each round among the clients that are ready."""

from collections import Counter
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tacit.protocol.core.errors import LocalProtocolError
from tacit.protocol.core.machine import Ended
from tacit.protocol.session.events import RoundStarted
from tacit.protocol.session.rounds import JournalEntry, RoundDone
from tacit.protocol.session.sampling import check_cohorts, least_cohort, most_colluders
from tacit.protocol.session.sampling import cohorts as bounds
from tacit.protocol.session.states import SessionState
from tacit.simulate.world.federation import GRACE, JOIN_SECONDS, SERVER, MemoryFederation, small_configuration
from tests.cases import cases

SAMPLING = b"s" * 32
PAIRS = (1, 1, 2, 2, 3, 3, 4, 4, 5, 5)


def federation(
    clients: int, cohort: int, *, rounds: int = 6, sampling: bytes = SAMPLING, seed: bytes = b"seed", **changes: Any
) -> MemoryFederation:
    groups = changes.pop("groups", ())
    smallest_cohort = changes.pop("smallest_cohort", 3)
    return MemoryFederation(
        small_configuration(cohort, **{"colluders": 1, "dropout": 0.0} | changes),
        clients,
        rounds=rounds,
        participants=clients,
        sampling=sampling,
        groups=groups,
        smallest_cohort=smallest_cohort,
        seed=seed,
    )


def cohorts(one: MemoryFederation) -> list[tuple[str, ...]]:
    return [done.cohort for done in one.outcome(RoundDone)]


def test_every_round_draws_its_cohort_and_all_have_the_same_chance() -> None:
    one = federation(6, 4, rounds=60).run()
    assert one.ended(SERVER) == Ended(None, "all rounds are done")
    assert {len(cohort) for cohort in cohorts(one)} == {4}
    assert len(set(cohorts(one))) > 8
    drawn = Counter(name for cohort in cohorts(one) for name in cohort)
    # 60 draws with a probability of 2/3: within four standard deviations.
    assert all(abs(drawn[name] - 40) < 4 * 3.7 for name in one.roster.clients)
    assert all(done.survivors == done.cohort and done.total is not None for done in one.outcome(RoundDone))


@cases(["other", "equal"], [({}, True), ({"seed": b"other keys"}, True), ({"sampling": b"t" * 32}, False)])
def test_the_seed_of_the_draws_repeats_them(other: dict[str, Any], equal: bool) -> None:
    one, another = federation(8, 4).run(), federation(8, 4, **other).run()
    assert (cohorts(one) == cohorts(another)) is equal


def test_without_a_seed_cohorts_come_from_the_randomness_of_the_server() -> None:
    one, same, other = (federation(8, 4, sampling=b"", seed=seed).run() for seed in (b"one", b"one", b"other"))
    assert cohorts(one) == cohorts(same) != cohorts(other)


def test_a_server_that_goes_on_after_a_crash_draws_as_it_would_have() -> None:
    whole = federation(8, 4).run()
    one = federation(8, 4)
    one.paused = True
    one.start()
    one.rounds_left -= 1
    one.start_server(completed=1)
    one.paused = False
    one.start()
    one.settle()
    assert [done.cohort for done in one.outcome(RoundDone) if done.round > 1] == cohorts(whole)[1:]


def test_it_gathers_everybody_before_it_draws() -> None:
    one = federation(6, 4)
    one.start(*one.roster.clients[:5])
    assert one.server.state is SessionState.GATHERING
    one.start(one.roster.clients[5])
    assert one.server.state is not SessionState.GATHERING


def test_a_dead_client_halts_nobody_and_is_never_drawn() -> None:
    one = federation(6, 4)
    dead = one.roster.clients[2]
    one.start(*(name for name in one.roster.clients if name != dead))
    one.settle()
    assert one.ended(SERVER) == Ended(None, "all rounds are done")
    assert len(set(cohorts(one))) > 1
    assert all(len(cohort) == 4 and dead not in cohort for cohort in cohorts(one))
    assert one.outcome(RoundDone)[0].began == pytest.approx(JOIN_SECONDS)


def test_a_client_that_dies_between_rounds_is_not_drawn_any_more() -> None:
    one = federation(6, 4, rounds=12)
    one.paused = True
    one.start()
    dead = one.roster.clients[0]
    one.kill(dead)
    one.server.link_lost(dead, one.now)
    one.settle(until=one.now + GRACE + 1)
    one.paused = False
    one.settle()
    assert one.ended(SERVER) == Ended(None, "all rounds are done")
    assert all(len(cohort) == 4 and dead not in cohort for cohort in cohorts(one)[1:])


def test_everybody_who_is_ready_takes_part_where_the_others_are_away() -> None:
    one = federation(8, 5)
    there = one.roster.clients[:4]
    one.start(*there)
    one.settle()
    assert set(cohorts(one)) == {there}


def test_stragglers_are_not_drawn_while_they_are_skipped() -> None:
    one = federation(6, 5, rounds=14, dropout=0.2, colluders=0, train_seconds=600.0)
    slow = one.roster.clients[4]
    one.idle = {slow}
    one.run()
    rounds = one.outcome(RoundStarted, SERVER)
    assert any(slow in round.skipped for round in rounds)
    assert all(slow not in {*round.cohort, *round.undrawn} for round in rounds if slow in round.skipped)


def test_who_is_ready_and_not_drawn_is_named_apart() -> None:
    one = federation(6, 4).run()
    rounds = one.outcome(RoundStarted, SERVER)
    assert all({*round.cohort, *round.undrawn} == {*one.roster.clients} for round in rounds)
    assert all(len(round.undrawn) == 2 and not round.skipped for round in rounds)
    # Nothing of a round leaves a client that is not drawn, and nothing is spent of its budget.
    for name, lines in one.journals.items():
        entered = {line.round for line in lines if isinstance(line, JournalEntry)}
        assert entered == {done.round for done in one.outcome(RoundDone) if name in done.cohort}


def test_groups_are_drawn_whole() -> None:
    one = federation(10, 6, rounds=12, groups=PAIRS, colluders=0, dropout=0.34).run()
    assert len(set(cohorts(one))) > 2
    for cohort in cohorts(one):
        assert len(cohort) == 6
        one.roster.check_whole(cohort)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=5), st.integers(1, 20))
def test_every_draw_of_whole_groups_is_within_the_bounds(sizes: list[int], most: int) -> None:
    fewest, largest = bounds(most, sizes)
    for order in permutations(sizes):
        drawn = 0
        for size in order:
            drawn += size if drawn + size <= most else 0
        assert fewest <= drawn <= largest
    assert bounds(sum(sizes), sizes) == (sum(sizes), sum(sizes))


def test_the_smallest_cohort_is_accepted() -> None:
    terms = small_configuration(3, colluders=0, dropout=0.0)
    check_cohorts(terms, (), 3)
    with pytest.raises(ValueError, match="too few"):
        check_cohorts(terms, (), 4)


def test_suggested_cohorts_and_colluders_are_the_closest_that_work() -> None:
    plain, secure = (small_configuration(5, mode=mode, colluders=2, dropout=0.0) for mode in ("none", "active"))
    assert [least_cohort(plain, 5, (), smallest) for smallest in (1, 2, 5, 6)] == [1, 2, 5, None]
    assert [least_cohort(secure, clients, (), 1) for clients in (3, 4, 5)] == [None, 4, 4]
    assert [most_colluders(replace(secure, clients=clients), (), 1) for clients in (2, 3, 5)] == [0, 1, 1]
    assert most_colluders(secure, (), 6) is None


def test_clients_agree_on_a_key_for_every_cohort() -> None:
    one = federation(6, 4, group_key=True).run()
    assert one.ended(SERVER) == Ended(None, "all rounds are done")
    assert len(set(cohorts(one))) > 1


@cases(
    ["clients", "cohort", "changes"],
    [
        # Fewer than a policy's smallest cohort, and than two beside the colluders.
        (10, 2, {"colluders": 0}),
        (10, 4, {"colluders": 3}),
        # No threshold resists so many colluders where as many may be lost.
        (10, 5, {"colluders": 3, "dropout": 0.4}),
        # Two groups of three are no five, and whichever are drawn must do.
        (9, 5, {"groups": (1, 1, 1, 2, 2, 2, 3, 3, 3), "smallest_cohort": 5, "colluders": 0}),
        # Only the cohort of the last round could read it.
        (6, 4, {"group_key": True, "encrypted": True}),
    ],
)
def test_cohorts_that_keep_no_bound_are_refused_before_the_start(
    clients: int, cohort: int, changes: dict[str, Any]
) -> None:
    with pytest.raises(LocalProtocolError):
        federation(clients, cohort, **changes)
