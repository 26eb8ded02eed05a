"""When a model owner opens the sum of its shares: every order in which three owners can learn in two rounds and say who
survived, with a book kept beside it of what each has done; and what the search leaves out, one by one."""

from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, field
from itertools import combinations, permutations
from typing import Any, TypeVar

import pytest

from tacit.protocol.adaptation.sums import MOST_LOST, OpeningPolicy, RoundSums
from tacit.protocol.core.errors import Code, RemoteProtocolError
from tests.cases import cases

OWNERS = ("a", "b", "c")
ALL = OWNERS
ROUNDS = (1, 2)


def policy(**changes: int) -> OpeningPolicy:
    return OpeningPolicy(**({"rounds": 2, "owners": 3, "smallest_cohort": 2, "colluders": 0} | changes))


@dataclass
class Book:
    """What every owner has done, kept without a look at how the sums are decided."""

    learned: dict[str, int] = field(default_factory=dict)
    """The round that an owner has ended last, since the last sum."""
    said: dict[str, tuple[int, tuple[str, ...]]] = field(default_factory=dict)
    """What it has said since then."""
    told: list[tuple[int, tuple[str, ...]]] = field(default_factory=list)
    """Rounds whose sums may have been told, and over whom."""

    def key(self) -> Any:
        return tuple(sorted(self.learned.items())), tuple(sorted(self.said.items())), tuple(self.told)


ThingT = TypeVar("ThingT", RoundSums, Book)


def copied(thing: ThingT) -> ThingT:
    """With collections of its own; what is in them does not change."""
    own = copy(thing)
    vars(own).update({name: copy(value) for name, value in vars(thing).items()})
    return own


Move = tuple[str, str, int, tuple[str, ...]]


def lists_of(owner: str) -> Iterator[tuple[str, ...]]:
    """Every list of two or three survivors that an owner may name."""
    for count in (2, 3):
        yield from (names for names in combinations(OWNERS, count) if owner in names)


MOVES: list[Move] = [
    *(("learn", owner, number, ()) for owner in OWNERS for number in ROUNDS),
    *(("say", owner, number, names) for owner in OWNERS for number in ROUNDS for names in (*lists_of(owner), ())),
    *((what, "", number, ()) for what in ("give up", "give up early") for number in ROUNDS),
]


def admitted(sums: RoundSums, owner: str, number: int) -> bool:
    try:
        sums.check_begin(owner, number, sums.current)
    except RemoteProtocolError:
        return False
    return True


def moved(sums: RoundSums, book: Book, move: Move) -> None:
    """Make the move, and hold what comes of it against the book."""
    what, owner, number, names = move
    before = copied(sums)
    if what == "learn":
        if not admitted(sums, owner, number):
            assert number <= sums.current or sums.opened == sums.policy.rounds
            return
        sums.begin(owner, number)
        sums.keep(owner, number)
        book.learned[owner] = number
        book.said.pop(owner, None)
    elif what == "give up early":
        # All that was said, at 0.0, was said since.
        assert sums.give_up(number, -1.0) or sums.verdict(number) == ""
        assert sums == before
    elif what == "give up":
        said = {name for name, (about, _) in book.said.items() if about == number}
        assert sums.give_up(number, 0.0) or sums.verdict(number) == ""
        if not said & {name for name, learned in book.learned.items() if learned == number}:
            assert sums == before
    else:
        none = sums.none_for(owner, number, names)
        sums.say(owner, number, names, 0.0)
        if names and number > before.current and book.learned.get(owner) == number:
            book.said[owner] = number, names
        else:
            # Who has no share in a round, and who was not there, decides nothing about it.
            assert {**vars(sums), "owners": set()} == {**vars(before), "owners": set()}
        if none is not None:
            assert sums.verdict(number) != "" or names not in ((), sums.survivors)
    if sums.current == before.current:
        assert (sums.opened, sums.survivors) == (before.opened, before.survivors)
    else:
        assert sums.current == number > before.current
        assert sums.opened == before.opened + 1 <= sums.policy.rounds
        assert len(sums.survivors) - sums.policy.colluders >= sums.policy.smallest_cohort
        for name in sums.survivors:
            assert book.learned[name] == number
            assert book.said[name] == (number, sums.survivors)
        book.told.append((number, sums.survivors))
        book.learned, book.said = {}, {}
    for each in ROUNDS:
        assert (sums.verdict(each) == "") == (each == sums.current)
        if before.verdict(each) is not None and sums.current in (before.current, each):
            assert sums.verdict(each) == before.verdict(each)
    assert [each for each, _ in book.told] == sorted({each for each, _ in book.told})


def key(sums: RoundSums, book: Book) -> Any:
    stores = (sums.kept, sums.said, dict.fromkeys(sums.lost, ""))
    decided = sums.opened, sums.current, sums.survivors
    return decided, tuple(tuple(sorted(store.items())) for store in stores), book.key()


@pytest.mark.parametrize("colluders", [1, pytest.param(0, marks=pytest.mark.exhaustive)])
def test_every_order_of_learning_and_saying(colluders: int) -> None:
    begin = RoundSums(policy(colluders=colluders)), Book()
    seen, waiting, told = {key(*begin)}, [begin], set[Any]()
    while waiting:
        here = waiting.pop()
        for move in MOVES:
            sums, book = map(copied, here)
            moved(sums, book, move)
            told.update(book.told)
            if (found := key(sums, book)) not in seen:
                seen.add(found)
                waiting.append((sums, book))
    assert len(seen) > 1000
    # All that may be told is told on some way.
    cohorts = [names for count in (2, 3) for names in combinations(OWNERS, count) if count - colluders >= 2]
    assert told == {(number, names) for number in ROUNDS for names in cohorts}


def learned(number: int = 1, owners: tuple[str, ...] = ALL, **changes: int) -> RoundSums:
    sums = RoundSums(policy(**changes))
    for owner in owners:
        sums.begin(owner, number)
        sums.keep(owner, number)
    return sums


@cases("order", [*permutations(ALL)])
def test_a_round_is_final_when_the_last_survivor_has_said_the_same(order: tuple[str, ...]) -> None:
    sums = learned()
    for place, owner in enumerate(order):
        assert (sums.verdict(1), sums.silent(1)) == (None, sorted(order[place:]) if place else [])
        sums.say(owner, 1, ALL, 0.0)
    assert (sums.verdict(1), sums.survivors, sums.silent(1)) == ("", ALL, [])
    for owner in ALL:
        assert sums.none_for(owner, 1, ALL) is sums.none_for(owner, 1, ()) is None
        sums.say(owner, 1, ALL, 0.0)
    assert sums.opened == 1


def test_an_owner_without_a_share_loses_no_round() -> None:
    sums = learned(owners=("a", "b"))
    for names in (("a", "c"), ALL, ("b", "c")):
        assert sums.none_for("c", 1, names) == "c has left no share of what it learned in round 1"
        sums.say("c", 1, names, 0.0)
    sums.say("c", 1, (), 0.0)
    assert sums.give_up(1, 0.0) == "nobody who has learned in round 1 has said who survived"
    assert sums.verdict(1) is None
    for owner in ("a", "b"):
        sums.say(owner, 1, ("a", "b"), 0.0)
    assert (sums.verdict(1), sums.survivors) == ("", ("a", "b"))


def test_who_survived_may_be_known_before_the_last_share_has_come() -> None:
    sums = learned(owners=("a", "b"))
    sums.begin("c", 1)
    for owner in ("a", "b"):
        sums.say(owner, 1, ALL, 0.0)
    assert (sums.verdict(1), sums.silent(1)) == (None, ["c"])
    sums.keep("c", 1)
    sums.say("c", 1, ALL, 0.0)
    assert sums.verdict(1) == ""


def test_a_list_that_comes_late_is_told_nothing() -> None:
    """Also of an owner that was in the round: the sum is that of those who have confirmed each other."""
    sums = learned()
    for owner in ("a", "b"):
        sums.say(owner, 1, ("a", "b"), 0.0)
    for owner, names in (("c", ("b", "c")), ("c", ALL), ("a", ("a", "c"))):
        assert "names other survivors of round 1" in (sums.none_for(owner, 1, names) or "")
    assert sums.none_for("c", 1, ()) is None


def test_what_was_learned_from_older_parameters_is_void() -> None:
    """An owner is in a later round before the one before it is final."""
    sums = learned()
    sums.begin("c", 2)
    for owner in ("a", "b"):
        sums.say(owner, 1, ("a", "b"), 0.0)
    sums.keep("c", 2)
    for owner in ("a", "b"):
        sums.begin(owner, 2)
        sums.keep(owner, 2)
    assert sums.none_for("c", 2, ALL) == "c has left no share of what it learned in round 2"
    for owner in ALL:
        sums.say(owner, 2, ALL, 0.0)
    assert (sums.verdict(2), sums.silent(2)) == (None, ["c"])
    assert sums.give_up(2, 0.0) == "no word on who survived from c"


def test_an_owner_has_a_share_in_one_round() -> None:
    sums = learned()
    sums.say("a", 1, ALL, 0.0)
    sums.begin("a", 2)
    sums.keep("a", 2)
    for owner in ("b", "c"):
        sums.say(owner, 1, ALL, 0.0)
    assert (sums.verdict(1), sums.silent(1)) == (None, ["a"])
    assert sums.none_for("a", 1, ALL) == "a has left no share of what it learned in round 1"


def test_time_is_left_to_survivors_from_the_first_word_on() -> None:
    sums = learned()
    early = "time is left to survivors of round 1 who have not said who survived"
    sums.say("a", 1, ALL, 50.0)
    assert (sums.give_up(1, 49.0), sums.verdict(1)) == (early, None)
    # That it is said again makes it no younger.
    sums.say("a", 1, ALL, 60.0)
    sums.say("b", 1, ALL, 55.0)
    # What is void does not count.
    sums.begin("a", 1)
    sums.keep("a", 1)
    assert (sums.give_up(1, 54.0), sums.verdict(1)) == (early, None)
    assert sums.give_up(1, 55.0) == "no word on who survived from a, c"


def test_who_ends_a_round_again_says_again_who_survived() -> None:
    sums = learned()
    sums.say("a", 1, ALL, 0.0)
    sums.begin("a", 1)
    sums.keep("a", 1)
    for owner in ("b", "c"):
        sums.say(owner, 1, ALL, 0.0)
    assert (sums.verdict(1), sums.silent(1)) == (None, ["a"])
    sums.say("a", 1, ALL, 0.0)
    assert sums.verdict(1) == ""


def test_what_is_lost_stays_lost_and_the_next_round_is_not() -> None:
    sums = learned()
    sums.say("a", 1, ALL, 0.0)
    reason = "no word on who survived from b, c"
    assert sums.give_up(1, 0.0) == sums.verdict(1) == reason
    for owner in ALL:
        assert sums.none_for(owner, 1, ALL) == reason
        sums.say(owner, 1, ALL, 0.0)
    assert sums.verdict(1) == sums.give_up(1, 0.0) == reason
    sums.begin("a", 1)
    sums.keep("a", 1)
    assert sums.kept == {}
    for owner in ALL:
        sums.check_begin(owner, 2, 0)
        sums.begin(owner, 2)
        sums.keep(owner, 2)
    for owner in ALL:
        sums.say(owner, 2, ALL, 0.0)
    assert (sums.verdict(2), sums.verdict(1)) == ("", "a later round, 2, has been opened")
    assert sums.lost == sums.kept == sums.said == sums.since == sums.begun == {}


def test_a_liar_that_loses_round_after_round_fills_no_memory() -> None:
    sums = learned()
    for number in range(2, 2 * MOST_LOST):
        sums.begin("c", number)
        sums.keep("c", number)
        sums.say("c", number, ("c",), 0.0)
        assert sums.verdict(number) is not None
    assert len(sums.lost) == MOST_LOST
    assert sums.verdict(2) is None
    for owner in ("a", "b"):
        sums.say(owner, 1, ("a", "b"), 0.0)
    assert (sums.verdict(1), sums.lost) == ("", {})


@cases(
    ("said", "reason"),
    [
        ([("a", ("a",))], "1 data owners survived, of whom 0 may collude; the model owner opens sums of 2 others"),
        ([("a", ALL), ("b", ("a", "b"))], "b and a name different survivors of one sum"),
    ],
)
def test_why_a_round_is_lost(said: list[tuple[str, tuple[str, ...]]], reason: str) -> None:
    sums = learned()
    for owner, names in said:
        sums.say(owner, 1, names, 0.0)
    assert reason in (sums.verdict(1) or "")
    assert sums.opened == 0


def test_colluders_do_not_count_towards_the_cohort() -> None:
    sums = learned(colluders=2)
    sums.say("a", 1, ALL, 0.0)
    assert "3 data owners survived, of whom 2 may collude" in (sums.verdict(1) or "")


def test_no_more_sums_than_the_policy_has() -> None:
    sums = learned(rounds=1)
    for owner in ALL:
        sums.say(owner, 1, ALL, 0.0)
    with pytest.raises(RemoteProtocolError, match="opens 1 rounds, and all of them are open") as refused:
        sums.check_begin("a", 2, 1)
    assert refused.value.code is Code.POLICY
    started_again = RoundSums(policy(rounds=1), sums.opened, sums.current, sums.survivors, sums.owners)
    started_again.begin("a", 2)
    started_again.keep("a", 2)
    started_again.begin("b", 2)
    started_again.keep("b", 2)
    started_again.say("a", 2, ("a", "b"), 0.0)
    assert "all of them are open" in (started_again.verdict(2) or "")
    assert started_again.none_for("b", 1, ALL) is started_again.none_for("b", 1, ()) is None


@cases(("number", "based", "words"), [(1, 1, "round 1 is over"), (2, 0, "those of round 1 are the")])
def test_a_round_that_is_over_and_parameters_that_are_old_are_refused(number: int, based: int, words: str) -> None:
    sums = RoundSums(policy(), opened=1, current=1, survivors=ALL)
    with pytest.raises(RemoteProtocolError, match=words) as refused:
        sums.check_begin("a", number, based)
    assert refused.value.code is Code.SESSION
    sums.check_begin("a", 2, 1)


def test_owners_beyond_the_policy_neither_learn_nor_are_told() -> None:
    sums = learned()
    for ask in (lambda: sums.check_begin("d", 1, 0), lambda: sums.check_ask("d", ())):
        with pytest.raises(RemoteProtocolError, match="lets 3 data owners learn, and as many do") as refused:
            ask()
        assert refused.value.code is Code.POLICY
    few = learned(owners=("a", "b"))
    few.check_ask("d", ())
    few.say("d", 1, (), 0.0)
    with pytest.raises(RemoteProtocolError, match="as many do"):
        few.check_begin("c", 1, 0)


@cases("names", [("b", "a"), ("a", "a"), ("b", "c"), ("a", "c", "b")])
def test_lists_that_are_none_are_refused(names: tuple[str, ...]) -> None:
    with pytest.raises(RemoteProtocolError, match="in no order, or without itself") as refused:
        learned().check_ask("a", names)
    assert refused.value.code is Code.MEMBERS
