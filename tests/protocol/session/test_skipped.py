"""Stragglers and refusals: whoever costs the last rounds too much is left out of some, and nobody is blamed."""

from typing import Any

import pytest

from tacit.protocol.core.errors import Code
from tacit.protocol.core.machine import Ended
from tacit.protocol.session.events import ClientLeft, RoundStarted
from tacit.protocol.session.rounds import RoundDone
from tacit.protocol.session.stragglers import MOST_SKIPPED, Stragglers
from tacit.protocol.sum.exchange import Dropped
from tacit.protocol.sum.policy import Policy
from tacit.simulate.world.federation import SERVER, MemoryFederation, small_configuration
from tests.cases import cases

SLOW = "client-4"
TRAINING = 5.0


def federation(rounds: int, *, clients: int = 5, **settings: Any) -> MemoryFederation:
    one = MemoryFederation(
        small_configuration(clients, train_seconds=600.0, phase_seconds=60.0), clients, rounds=rounds, **settings
    )
    one.training_seconds = lambda: TRAINING
    return one


def cohorts_without(one: MemoryFederation, name: str) -> list[int]:
    return [done.round for done in one.outcome(RoundDone) if name not in done.cohort]


def test_who_never_trains_is_skipped_ever_longer_and_not_blamed() -> None:
    one = federation(14)
    one.idle = {SLOW}
    one.run()
    # Late in 1 and 2, 4, 7, 12.
    assert cohorts_without(one, SLOW) == [3, 5, 6, 8, 9, 10, 11, 13, 14]
    assert one.server.presence.barred == set()
    assert one.ended(SLOW) == Ended(None, "the federation is finished")
    rounds = one.outcome(RoundStarted, SERVER)
    assert [SLOW in round.skipped for round in rounds] == [
        number in cohorts_without(one, SLOW) for number in range(1, 15)
    ]


def test_a_round_that_it_completes_clears_a_straggler() -> None:
    one = federation(8)
    one.idle = {SLOW}
    one.start()
    one.settle(until=2 * 660.0 + TRAINING + 1)
    assert cohorts_without(one, SLOW) == [3]
    one.idle = set()
    one.settle()
    # Late in 4 as well, and so skipped in two; then it is as good as any other.
    assert cohorts_without(one, SLOW) == [3, 5, 6]
    assert [done.survivors for done in one.outcome(RoundDone)[6:]] == [one.roster.clients] * 2


def done(round: int, survivors: tuple[str, ...], *dropped: Dropped) -> RoundDone:
    return RoundDone(round, 0.0, ("a", "b"), survivors, dropped, None, None, "", "")


def test_nobody_is_skipped_for_more_than_the_most() -> None:
    stragglers = Stragglers()
    late = Dropped("b", "MASKED_INPUT", Code.TIMEOUT, "", False)
    lengths, round = [], 0
    for _ in range(11):
        round += 1
        stragglers.note(done(round, ("a",), late))
        before = round
        while "b" in stragglers.skipped(round + 1):
            round += 1
        lengths.append(round - before)
    assert lengths == [0, 1, 2, 4, 8, 16, 32, 64, 64, 64, 64]
    assert max(lengths) == MOST_SKIPPED


def test_a_completed_round_clears_strikes_and_skips() -> None:
    stragglers = Stragglers()
    late = Dropped("b", "MASKED_INPUT", Code.TIMEOUT, "", False)
    stragglers.note(done(1, ("a",), late))
    stragglers.note(done(2, ("a", "b")))
    stragglers.note(done(3, ("a",), late))
    assert stragglers.skipped(4) == {}
    for round in (4, 5):
        stragglers.note(done(round, ("a",), late))
    assert [list(stragglers.skipped(round)) for round in (6, 7, 8)] == [["b"], ["b"], []]
    # The others were too few, and it was taken.
    stragglers.note(done(6, ("a", "b")))
    assert stragglers.skipped(7) == {}


def test_a_straggler_is_taken_where_the_others_are_too_few() -> None:
    one = federation(4, clients=3)
    one.idle = {"client-2"}
    one.run()
    assert cohorts_without(one, "client-2") == []


def test_the_whole_group_of_a_straggler_is_skipped() -> None:
    configuration = small_configuration(6, colluders=0, dropout=0.34, train_seconds=600.0)
    one = MemoryFederation(configuration, 6, rounds=3, groups=(1, 1, 2, 2, 3, 3))
    one.idle = {SLOW}
    one.run()
    assert one.outcome(RoundDone)[2].cohort == ("client-0", "client-1", "client-2", "client-3")


def seconds_of_six_rounds(idle: set[str]) -> float:
    one = federation(9)
    one.paused = True
    one.start()
    for _ in range(3):
        one.settle(until=one.now + TRAINING + 1)
        one.paused = False
        one.work()
        one.paused = True
    assert [round.total is not None for round in one.outcome(RoundDone)] == [True] * 3
    began, one.idle, one.paused = one.now, idle, False
    one.settle()
    assert one.ended(SERVER) == Ended(None, "all rounds are done")
    assert all(round.total is not None for round in one.outcome(RoundDone))
    return one.now - began


def test_six_rounds_with_who_never_trains_take_three_times_the_time_at_most() -> None:
    assert seconds_of_six_rounds({SLOW}) <= 3 * seconds_of_six_rounds(set())


def test_a_round_does_not_go_on_without_others_where_too_few_are_ready() -> None:
    one = federation(4)
    one.start()
    one.settle(until=3 * TRAINING)
    one.idle = {"client-3", SLOW}
    one.settle(until=one.now + 600.0)
    assert one.server.round == 4
    one.settle()
    assert one.outcome(RoundDone)[3].code is Code.THRESHOLD


def test_a_client_that_takes_the_usual_time_is_in_every_round() -> None:
    one = federation(8)
    seconds = iter([20.0, 20.0, 20.0, 20.0, 39.0] * 8)
    one.training_seconds = lambda: next(seconds)
    one.run()
    assert [len(round.survivors) for round in one.outcome(RoundDone)] == [5] * 8


@cases("refusal", ["configuration", "cohort"])
def test_who_refuses_is_left_out_and_named_and_the_others_go_on(refusal: str) -> None:
    policy = Policy(modes=("none",)) if refusal == "configuration" else Policy(modes=("active",), threshold_floor=5)
    one = federation(4, policies={SLOW: policy})
    one.run()
    assert one.ended(SERVER) == Ended(None, "all rounds are done")
    whole = [round for round in one.outcome(RoundDone) if round.survivors == one.roster.clients[:4]]
    assert len(whole) == 4
    assert one.server.presence.barred == set()
    if refusal == "configuration":
        assert one.now < 60.0, "nobody waits for it"
        (left,) = one.outcome(ClientLeft, SERVER)
        assert (left.member, "refuses" in left.detail) == (SLOW, True)
    else:
        # A refusal costs nobody time, and it is asked less and less often.
        assert cohorts_without(one, SLOW) == [2, 4]
        assert "it refused its last round" in str(one.outcome(RoundStarted, SERVER))


def test_a_server_that_is_refused_by_too_many_ends() -> None:
    refusing = {name: Policy(modes=("none",)) for name in ("client-0", "client-1", "client-2")}
    one = federation(4, policies=refusing)
    one.run()
    ended = one.ended(SERVER)
    assert ended is not None
    assert (ended.code, one.now <= TRAINING) == (Code.THRESHOLD, True)


@pytest.mark.parametrize("mode", ["semi-honest", "none"])
def test_rounds_of_other_modes_proceed_too(mode: str) -> None:
    one = MemoryFederation(small_configuration(5, mode=mode, train_seconds=600.0), 5, rounds=4)
    one.training_seconds = lambda: TRAINING
    one.start()
    one.settle(until=3 * TRAINING)
    one.idle = {SLOW}
    began = one.now
    one.settle()
    assert one.outcome(RoundDone)[-1].survivors == one.roster.clients[:4]
    assert one.now - began < 3 * TRAINING
