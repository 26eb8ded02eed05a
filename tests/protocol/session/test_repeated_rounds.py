"""Rounds from a model that a round has had before: after an abort, a spoiled sum, a crash, or one that moved nothing.

Keys are fresh in every round, so a repeated round repeats no mask; a client enters every round once.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import structs

from tacit.protocol.core.errors import Code
from tacit.protocol.core.machine import Ended
from tacit.protocol.core.messages import Message
from tacit.protocol.session.messages import EndRound, StartRound
from tacit.protocol.session.rounds import RoundDone, RoundOver, Train
from tacit.protocol.session.states import SessionState
from tacit.protocol.sum.messages import MaskedInput, ShareKeys, UnmaskRequest
from tacit.simulate.world.federation import SERVER, MemoryFederation, small_configuration
from tacit.simulate.world.world import Parcel, altered
from tests.cases import cases

CELLS: dict[str, dict[str, Any]] = {
    "active": {},
    "semi-honest": {"mode": "semi-honest"},
    "no secure sum": {"mode": "none"},
    "group key": {"group_key": True},
}
SECURE = [name for name in CELLS if name != "no secure sum"]
CHEAT = "client-1"
every_cell = cases("cell", CELLS)


class LearningFederation(MemoryFederation):
    """Updates are zeros and are decoded; in its first rounds `spoilers` contribute random words."""

    spoilers: tuple[str, ...] = ()
    spoiled_rounds = 1

    def draw(self, name: str, round: int) -> npt.NDArray[Any]:
        words, packing = super().draw(name, round), self.configuration.packing()
        if name in self.spoilers and round <= self.spoiled_rounds:
            return words
        encoded = packing.encode(np.zeros(packing.values_length), 1, {}, np.random.default_rng(0))
        self.vectors[name, round] = encoded.words
        return encoded.words

    def apply(self, done: RoundDone) -> str:
        try:
            self.configuration.packing().decode(done.total, contributors=len(done.survivors))  # type: ignore[arg-type]
        except ValueError as error:
            return str(error)
        return super().apply(done)


def federation(cell: str, *, rounds: int = 2) -> LearningFederation:
    return LearningFederation(small_configuration(5, **CELLS[cell]), 5, rounds=rounds)


def check_entered_once(one: MemoryFederation) -> None:
    """Every journal has every round that its client entered, each once."""
    for name, journal in one.journals.items():
        places = [(entry.session, entry.round) for entry in journal]
        assert places, name
        assert len(places) == len(set(places)), name


def check_whole(one: MemoryFederation, done: RoundDone, *members: str) -> None:
    """A round with these members, or all, whose sum is theirs."""
    assert (done.code, done.survivors) == (None, members or one.roster.clients)
    assert (done.total == one.plain_sum(done)).all()


@cases("cell", SECURE)
@cases("spoiled", [1, 2])
def test_random_words_end_the_round_for_all_and_the_run_goes_on(cell: str, spoiled: int) -> None:
    """The sum opens, and is none of honest updates. Everybody is told, the model stays, and the next round is run."""
    one = federation(cell, rounds=3)
    one.spoilers, one.spoiled_rounds = (CHEAT,), spoiled
    model = one.model
    one.run()
    for done in one.outcome(RoundDone):
        check_whole(one, done)
    codes = [Code.VECTOR if round <= spoiled else None for round in (1, 2, 3)]
    for name in one.roster.clients:
        assert [over.code for over in one.outcome(RoundOver, name)] == codes
        assert [train.model for train in one.outcome(Train, name)][: spoiled + 1] == [model] * (spoiled + 1)
    ends = [parcel.message for parcel in one.log if parcel.packet.kind is EndRound]
    assert all(bool(end.detail) == (end.code is Code.VECTOR) for end in ends)
    assert (np.frombuffer(one.model, "<f4") - np.frombuffer(model, "<f4") == 3 - spoiled).all()
    assert one.ended(SERVER) == Ended(None, "all rounds are done")
    check_entered_once(one)


@cases("cell", SECURE)
def test_a_spoiled_last_round_is_told_to_all_before_the_end(cell: str) -> None:
    one = federation(cell, rounds=1)
    one.spoilers = (CHEAT,)
    one.run()
    assert [over.code for over in one.outcome(RoundOver)] == [Code.VECTOR] * 5
    assert {ended.code for ended in one.outcome(Ended)} == {None}


@cases("cell", SECURE)
def test_a_wrong_secret_bars_its_owner_and_the_round_is_repeated_without_it(cell: str) -> None:
    """client-1 shares another seed than it committed to: found when the sum is opened, which fails."""
    one = federation(cell)

    def hook(parcel: Parcel) -> list[Parcel]:
        if parcel.sender != CHEAT or not isinstance(shared := parcel.message, ShareKeys):
            return [parcel]
        return [altered(parcel, message=structs.replace(shared, seed_commitment=bytes(32)))]

    model = one.model
    one.hook = hook
    one.run()
    first, second = one.outcome(RoundDone)
    assert (first.code, first.culprit, first.total) == (Code.SECRET, CHEAT, None)
    others = tuple(name for name in one.roster.clients if name != CHEAT)
    assert second.cohort == others
    check_whole(one, second, *others)
    ended = one.ended(CHEAT)
    assert ended is not None
    assert ended.code is Code.SECRET
    assert {train.model for train in one.outcome(Train)} == {model}
    for name in others:
        assert [over.code for over in one.outcome(RoundOver, name)] == [Code.SECRET, None]
    check_entered_once(one)


@every_cell
def test_a_round_that_moves_nothing_is_followed_by_others(cell: str) -> None:
    one = federation(cell, rounds=3)
    one.apply = lambda done: ""  # type: ignore[method-assign]
    one.run()
    for done in one.outcome(RoundDone):
        check_whole(one, done)
    assert len(one.outcome(RoundDone)) == 3
    assert len({train.model for train in one.outcome(Train)}) == 1
    assert one.ended(SERVER) == Ended(None, "all rounds are done")
    check_entered_once(one)


@every_cell
def test_a_server_that_dies_with_the_answers_and_without_the_new_model(cell: str) -> None:
    """It has the sum, and nothing of it on its disk. The next session repeats the round: nothing else is lost."""
    one = federation(cell)
    one.paused = True
    one.run()
    assert one.server.state is SessionState.BETWEEN_ROUNDS
    session, model = one.server.session, one.model
    one.start_server(completed=0)
    one.paused = False
    one.run()
    before, first, second = one.outcome(RoundDone)
    assert [done.round for done in (before, first, second)] == [1, 1, 2]
    for done in (first, second):
        check_whole(one, done)
    assert (np.frombuffer(one.model, "<f4") - np.frombuffer(model, "<f4") == 2).all()
    for journal in one.journals.values():
        assert {(entry.session == session, entry.round) for entry in journal} == {(True, 1), (False, 1), (False, 2)}
    check_entered_once(one)


def silent(one: MemoryFederation, kind: type[Message], *names: str) -> Callable[[Parcel], list[Parcel]]:
    """A hook that loses everything that these members say from their first message of this type on, in round 1."""
    lost: set[str] = set()

    def hook(parcel: Parcel) -> list[Parcel]:
        if parcel.sender in names and parcel.packet.kind is kind and one.server.round == 1:
            lost.add(parcel.sender)
        return [] if parcel.sender in lost else [parcel]

    return hook


@every_cell
def test_an_aborted_round_is_repeated_by_those_who_are_left(cell: str) -> None:
    """Two of five vectors do not come; the others go on from the same model, at once."""
    one = federation(cell)
    one.hook = silent(one, MaskedInput, "client-0", "client-1", "client-2")
    model = one.model
    one.start()
    one.settle(until=one.configuration.train_seconds + 2 * one.configuration.phase_seconds)
    (first,) = one.outcome(RoundDone)
    assert (first.code, one.server.round) == (Code.THRESHOLD, 2)
    assert {train.model for train in one.outcome(Train)} == {model}


@cases("cell", ["active", "group key"])
def test_two_of_five_are_lost_while_the_sum_is_opened(cell: str) -> None:
    """Three have sent shares that open it, four are needed: the three of them go on from the same model."""
    one = federation(cell)
    names = one.roster.clients
    lost: set[str] = set()

    def hook(parcel: Parcel) -> list[Parcel]:
        if parcel.receiver in names[3:] and parcel.packet.kind is UnmaskRequest:
            lost.add(parcel.receiver)
        return [] if lost & {parcel.receiver, parcel.sender} else [parcel]

    one.hook = hook
    one.start()
    for name in sorted(lost):
        one.server.link_lost(name, one.now)
        one.kill(name)
    one.settle()
    first, second, third = one.outcome(RoundDone)
    assert (first.code, {drop.phase for drop in first.dropped}) == (Code.THRESHOLD, {"UNMASK"})
    assert first.missed, "a round that lost its clients does not count"
    for whole in (second, third):
        check_whole(one, whole, *names[:3])
    for name in names[:3]:
        assert [over.code for over in one.outcome(RoundOver, name)] == [Code.THRESHOLD, None, None]
    assert one.ended(SERVER) == Ended(None, "all rounds are done")
    check_entered_once(one)


@every_cell
def test_vectors_that_come_too_late_are_not_counted_in_the_repeated_round(cell: str) -> None:
    one = federation(cell)
    late = one.roster.clients[:3]
    held: dict[str, list[Parcel]] = {name: [] for name in late}

    def hook(parcel: Parcel) -> list[Parcel]:
        if parcel.sender in held and parcel.packet.kind is MaskedInput:
            held[parcel.sender].append(parcel)
            return []
        if parcel.packet.kind is EndRound:
            return [*held.pop(parcel.receiver, []), parcel]
        return [parcel]

    one.hook = hook
    one.run()
    first, second = one.outcome(RoundDone)
    assert (first.code, first.total) == (Code.THRESHOLD, None)
    check_whole(one, second)
    starts = {parcel.message for parcel in one.log if parcel.packet.kind is StartRound}
    assert len(starts) == 1, "the same cohort and the same model"
    assert {over.code for over in one.outcome(RoundOver, "client-4")} == {Code.THRESHOLD, None}
    check_entered_once(one)
