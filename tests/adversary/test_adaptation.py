"""Parties of double-blind adaptation that cheat; tests/protocol/adaptation has every refusal, and every order of what
owners say of a round."""

from collections.abc import Callable
from typing import Any

import pytest

from tacit.protocol.adaptation.kept import KeptRecord
from tacit.protocol.adaptation.messages import OwnSum
from tacit.protocol.adaptation.states import RoundKept, SumTold
from tacit.protocol.adaptation.sums import OpeningPolicy, weight_of
from tacit.protocol.core.errors import Code
from tacit.protocol.inference.messages import PassStarted
from tacit.protocol.inference.results import InferenceEnded, PassBegun
from tacit.simulate.world.adaptation import (
    OPENING_PATIENCE,
    PASS,
    MemoryAdaptation,
    learning_terms,
    round_plan,
    whole_round,
)
from tacit.simulate.world.inference import MODEL_OWNER, data_owner_names
from tacit.simulate.world.world import Parcel, altered
from tests.cases import cases

FIRST, SECOND, LIAR = NAMES = data_owner_names(3)
HONEST = (FIRST, SECOND)


def told(run: MemoryAdaptation, name: str) -> list[tuple[int, bool]]:
    """The rounds that a data owner has asked about, and whether it was told a sum."""
    return [(each.number, each.data is not None) for each in run.outcome(SumTold, name)]


@pytest.mark.threat("data-owner/names-other-survivors")
@cases("names", [(FIRST, LIAR), (SECOND, LIAR), (LIAR,)])
def test_who_names_others_in_time_costs_the_round_and_is_named(names: tuple[str, ...]) -> None:
    plans: dict[str, Any] = dict.fromkeys(HONEST, round_plan(1, NAMES)) | {LIAR: round_plan(1, names)}
    run = MemoryAdaptation(plans).run()
    assert {told(run, name)[0] for name in NAMES} == {(1, False)}
    assert not [parcel for parcel in run.log if isinstance(parcel.message, OwnSum)]
    assert run.sums.opened == 0


@pytest.mark.threat("data-owner/names-other-survivors")
@cases("names", [(FIRST, LIAR), NAMES])
def test_who_names_others_late_is_told_nothing_and_changes_nothing(names: tuple[str, ...]) -> None:
    plans: dict[str, Any] = dict.fromkeys(HONEST, round_plan(1, HONEST))
    plans[LIAR] = (("begin_round", (1, 0, 0)), PASS, ("keep_round", (1,)), ("ask_sum", (1, names)))
    run = MemoryAdaptation(plans)

    def late(parcel: Parcel) -> list[Parcel]:
        run.at(run.now + 1.0, lambda: run.put(parcel))
        return []

    run.say_instead("ask-sum", LIAR, late)
    run.run()
    assert told(run, FIRST) == told(run, SECOND) == [(1, True)]
    assert told(run, LIAR) == [(1, False)]
    assert run.sums.survivors == HONEST


@pytest.mark.threat("data-owner/outside-a-round")
@cases("names", [(), (FIRST, LIAR), NAMES, (LIAR,)])
def test_who_has_not_learned_in_a_round_cannot_lose_it(names: tuple[str, ...]) -> None:
    """It asks before anybody else, and waits until it is told to give up."""
    plans: dict[str, Any] = dict.fromkeys(HONEST, round_plan(1, HONEST)) | {LIAR: (("ask_sum", (1, names)),)}
    run = MemoryAdaptation(plans)

    def late(parcel: Parcel) -> list[Parcel]:
        run.at(run.now + OPENING_PATIENCE + 1, lambda: run.put(parcel))
        return []

    for name in HONEST:
        run.say_instead("begin-round", name, late)
    run.run()
    assert told(run, LIAR) == [(1, False)]
    assert told(run, FIRST) == told(run, SECOND) == [(1, True)]


@pytest.mark.threat("data-owner/outside-a-round")
def test_who_asked_long_before_a_round_cannot_lose_it_between_two_words() -> None:
    """Its patience ends when the first survivor has said who survived, and the other one has not yet."""
    plans: dict[str, Any] = dict.fromkeys(HONEST, round_plan(1, HONEST)) | {LIAR: (("ask_sum", (1, ())),)}
    run = MemoryAdaptation(plans)

    def after(seconds: float) -> Callable[[Parcel], list[Parcel]]:
        def late(parcel: Parcel) -> list[Parcel]:
            run.at(seconds, lambda: run.put(parcel))
            return []

        return late

    run.say_instead("ask-sum", FIRST, after(OPENING_PATIENCE - 1))
    run.say_instead("ask-sum", SECOND, after(OPENING_PATIENCE + 1))
    run.run()
    assert told(run, LIAR) == [(1, False)]
    assert told(run, FIRST) == told(run, SECOND) == [(1, True)]


@pytest.mark.threat("data-owner/old-parameters")
@cases(("number", "based"), [(2, 0), (1, 1), (1, 0)])
def test_a_round_from_old_parameters_or_over_ends_the_session(number: int, based: int) -> None:
    plans: dict[str, Any] = dict.fromkeys(HONEST, round_plan(1, HONEST))
    plans[FIRST] = (*round_plan(1, HONEST), ("begin_round", (number, based, 0)), PASS)
    run = MemoryAdaptation(plans).run()
    ended = run.ended(MODEL_OWNER, data_owner=FIRST)
    assert ended is not None
    assert (ended.code, ended.culprit) == (Code.SESSION, FIRST)
    # The image passes the blocks, and the batch is learned.
    assert len(run.outcome(PassBegun, MODEL_OWNER, FIRST)) == 2


@pytest.mark.threat("data-owner/old-parameters")
def test_a_share_of_a_round_that_was_begun_too_early_is_void() -> None:
    plans: dict[str, Any] = {name: (*round_plan(1, HONEST), *round_plan(2, NAMES, based=1)) for name in HONEST}
    plans[LIAR] = round_plan(2, NAMES)
    run = MemoryAdaptation(plans)

    def late(parcel: Parcel) -> list[Parcel]:
        run.at(run.now + 1.0, lambda: run.put(parcel))
        return []

    run.say_instead("keep-round", LIAR, late)
    run.say_instead("ask-sum", LIAR, lambda parcel: [])
    run.run()
    assert told(run, FIRST) == [(1, True), (2, False)]
    assert run.sums.opened == 1


@pytest.mark.threat("data-owner/more-rounds")
def test_no_owner_and_no_session_gets_more_than_the_policy_has() -> None:
    opening = OpeningPolicy(rounds=1, owners=2, smallest_cohort=2, colluders=0)
    run = whole_round(2, opening=opening).run()
    for name in HONEST:
        run.plans[name] = (("begin_round", (2, 1, 0)), PASS)
        run.start(name)
    run.settle()
    for name in HONEST:
        ended = run.ended(MODEL_OWNER, data_owner=name)
        assert ended is not None
        assert (ended.code, ended.culprit) == (Code.POLICY, name)
    assert run.sums.opened == 1

    opening = OpeningPolicy(rounds=1, owners=2, smallest_cohort=2, colluders=0)
    plans: dict[str, Any] = dict.fromkeys(HONEST, round_plan(1, HONEST)) | {LIAR: ()}
    run = MemoryAdaptation(plans, opening=opening).run()
    run.plans[LIAR] = (("ask_sum", (1, ())),)
    run.start(LIAR)
    run.settle()
    assert told(run, LIAR) == []
    ended = run.ended(MODEL_OWNER, data_owner=LIAR)
    assert ended is not None
    assert (ended.code, ended.culprit) == (Code.POLICY, LIAR)


@pytest.mark.threat("data-owner/claims-images")
def test_claims_of_more_images_are_refused_or_bounded() -> None:
    counts = dict.fromkeys(NAMES, 9) | {LIAR: 12}
    plans: dict[str, Any] = {name: round_plan(1, NAMES) for name in NAMES}
    run = MemoryAdaptation(plans, terms=learning_terms(least_count=9), counts=counts).run()
    assert run.sums.counts == counts
    run.counts = counts | {LIAR: 90}
    run.plans[LIAR] = round_plan(2, NAMES, based=1)
    run.start(LIAR)
    run.settle()
    ended = run.ended(MODEL_OWNER, data_owner=LIAR)
    assert ended is not None
    assert (ended.code, ended.culprit) == (Code.SESSION, LIAR)
    assert ended.detail.endswith("it says that it has 90 images, and has said 12 before")

    claims = [weight_of(count, 9) for count in (1, 9, 18, 2**31)]
    assert max(claims) == 2 * min(claims)


@pytest.mark.threat("data-owner/sum-of-few")
def test_no_sum_over_fewer_than_the_cohort_and_colluders() -> None:
    for colluders, opened in [(0, True), (1, True), (2, False)]:
        opening = OpeningPolicy(rounds=2, owners=3, smallest_cohort=2, colluders=colluders)
        run = whole_round(3, opening=opening).run()
        assert {told(run, name)[0] for name in NAMES} == {(1, opened)}

    run = whole_round(2, smallest_cohort=3).run()
    assert run.verdicts() == {(Code.POLICY, MODEL_OWNER)}
    assert not run.outcome(RoundKept)


def check_a_sum_of_another_length_or_round_is_not_taken(message: OwnSum, size: int, code: Code) -> None:
    run = whole_round(2)
    run.say_instead("own-sum", MODEL_OWNER, lambda parcel: [altered(parcel, message=message, payload=bytes(size))])
    assert (code, MODEL_OWNER) in run.run().verdicts()
    assert len([each for each in run.outcome(SumTold) if each.data is not None]) == 1


@pytest.mark.threat("model-owner/other-sum")
def test_a_sum_of_another_length_or_round_or_unasked_is_not_taken() -> None:
    for message, size, code in [
        (OwnSum(number=1, chunk=0), 8, Code.VECTOR),
        (OwnSum(number=1, chunk=0), 272, Code.VECTOR),
        (OwnSum(number=2, chunk=0), 264, Code.UNEXPECTED),
    ]:
        check_a_sum_of_another_length_or_round_is_not_taken(message, size, code)

    run = whole_round(2)
    unasked = OwnSum(number=1, chunk=0)
    run.say_instead(
        "round-begun", MODEL_OWNER, lambda parcel: [altered(parcel, message=unasked, payload=bytes(264))], at=None
    )
    assert run.run().verdicts() == {(Code.UNEXPECTED, MODEL_OWNER)}
    assert not run.outcome(SumTold)


@pytest.mark.threat("model-owner/changes-while-learning")
def test_a_model_that_is_replaced_in_a_round_ends_the_session_and_not_the_round() -> None:
    run = MemoryAdaptation({FIRST: (("begin_round", (1, 0, 0)), PASS, PASS)})
    run.start()
    assert run.advance(lambda: run.owners[FIRST].machine.number == 2)
    run.weights = bytes(32)
    run.settle()
    assert {each.code for each in run.outcome(InferenceEnded, FIRST)} == {Code.MODEL}
    assert [each.number for each in run.outcome(PassBegun, FIRST)] == [1]
    assert run.sums.begun == {FIRST: 1}

    run = whole_round(2, terms=learning_terms())
    other = PassStarted(weights=b"\1" * 32)
    run.say_instead("pass-started", MODEL_OWNER, lambda parcel: [altered(parcel, message=other)])
    assert (Code.MODEL, MODEL_OWNER) in run.run().verdicts()


@pytest.mark.threat("owner/restores-kept-shares")
@cases("owner", [FIRST, MODEL_OWNER])
def test_an_owner_that_goes_on_from_an_older_state_is_noticed(owner: str) -> None:
    """Of shares of other passes, and of uses; a new owner begins anew."""
    for change in ({"last": (1, bytes(32))}, {"uses": 7}):
        run = MemoryAdaptation({FIRST: round_plan(1, (FIRST,))}, brought=True)
        for name, value in change.items():
            setattr(run.kept_of(owner, FIRST), name, value)
        run.run()
        assert {each.code for each in run.outcome(InferenceEnded)} == {Code.SESSION}
        assert not run.outcome(PassBegun)
    run = MemoryAdaptation({FIRST: round_plan(1, (FIRST,))}, brought=True)
    run.kept[owner, FIRST] = KeptRecord()
    assert run.run().verdicts() == {(None, "")}
    assert [each.number for each in run.outcome(PassBegun, FIRST)] == [1, 2]
