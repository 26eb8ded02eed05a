"""Rounds of learning in memory: what a whole one says, what is lost and what goes on, and several owners at once."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.protocol.adaptation.messages import AskSum, KeepRound, OwnSum
from tacit.protocol.adaptation.schedule import adaptation_rounds, parameter_count, sum_words
from tacit.protocol.adaptation.states import RoundAnswered, RoundAsked, RoundKept, SumTold
from tacit.protocol.core.errors import Code
from tacit.protocol.inference.data_owner import InferenceRequest
from tacit.protocol.inference.messages import Opening
from tacit.protocol.inference.results import Opened, PassRefused
from tacit.protocol.inference.schedule import backbone_rounds
from tacit.simulate.world.adaptation import (
    OPENING_PATIENCE,
    PASS,
    MemoryAdaptation,
    learning_terms,
    round_plan,
    whole_round,
)
from tacit.simulate.world.inference import MODEL_OWNER, data_owner_names

NAMES = data_owner_names(3)
FIRST, SECOND, THIRD = NAMES


def told(run: MemoryAdaptation, name: str) -> list[tuple[int, bytes | None, str]]:
    return [
        (each.number, None if each.data is None else bytes(each.data), each.reason)
        for each in run.outcome(SumTold, name)
    ]


def test_what_a_round_says() -> None:
    run = whole_round(2).run()
    assert run.verdicts() == {(None, "")}
    between = [
        parcel.kind
        for parcel in run.log
        if {parcel.sender, parcel.receiver} == {FIRST, MODEL_OWNER} and parcel.kind not in ("opening", "masked-weights")
    ]
    assert between == [
        "inference-hello", "inference-terms", "agree-terms", "compare-kept", "kept-compared", "start-pass",
        "pass-started", "begin-round", "round-begun", "choose-images", "start-pass", "pass-started", "keep-round",
        "ask-sum", "own-sum", "close-inference", "inference-closed",
    ]  # fmt: skip
    terms = run.learning
    assert sum_words(terms.sizes, terms.learning) == parameter_count(terms.sizes, terms.learning) + 4 == 33
    expected = [(1, run.sum_of(1), "")]
    assert told(run, FIRST) == told(run, SECOND) == expected
    assert len(expected[0][1]) == 8 * 33


def test_images_pass_the_blocks_once_and_a_step_tells_nothing() -> None:
    run = whole_round(1).run()
    passes = [backbone_rounds(run.learning.sizes, 1), adaptation_rounds(run.learning, 1)]
    for party, place in ((MODEL_OWNER, 0), (FIRST, 1)):
        said = [parcel for parcel in run.log if isinstance(parcel.message, Opening) and parcel.sender == party]
        assert [parcel.message.step for parcel in said] == [
            step
            for rounds in passes
            for step, each in enumerate(rounds)
            if (each.model_owner_bytes, each.data_owner_bytes)[place]
        ]
    assert not {"range", "result"} & {each.operation for rounds in passes for each in rounds}


def test_no_pass_of_learning_counts_as_refused_and_each_image_counts_once() -> None:
    """A model owner charges images when they pass the blocks; it learns nothing that a data owner would limit."""
    run = MemoryAdaptation({FIRST: round_plan(1, (FIRST,), batches=3)}).run()
    assert run.verdicts() == {(None, "")}
    spent = {owner: (each.used, each.refused) for (owner, _), each in run.spent.items()}
    assert spent == {MODEL_OWNER: (1, 0), FIRST: (0, 0)}
    assert not run.outcome(PassRefused)


def test_each_secret_of_zeros_is_fresh_and_goes_to_the_model_owner_alone() -> None:
    names = (FIRST, SECOND)
    plans = {name: (*round_plan(1, names), *round_plan(2, names, based=1)) for name in names}
    run = MemoryAdaptation(plans).run()
    secrets = [parcel.message.secret for parcel in run.log if isinstance(parcel.message, KeepRound)]
    assert len(set(secrets)) == 4
    assert {len(secret) for secret in secrets} == {32}
    assert sorted(secrets) == sorted(each.secret for each in run.outcome(RoundKept, MODEL_OWNER))
    assert {parcel.receiver for parcel in run.log if isinstance(parcel.message, KeepRound)} == {MODEL_OWNER}


def test_who_was_not_in_a_round_is_told_its_sum_and_goes_on_with_it() -> None:
    names = (FIRST, SECOND)
    plans: dict[str, Any] = {name: (*round_plan(1, names), *round_plan(2, NAMES, based=1)) for name in names}
    plans[THIRD] = (("begin_round", (1, 0, 0)), PASS, ("ask_sum", (1, ())), *round_plan(2, NAMES, based=1))
    run = MemoryAdaptation(plans).run()
    assert run.verdicts() == {(None, "")}
    assert [number for number, data, _ in told(run, THIRD) if data] == [1, 2]
    assert run.sums.survivors == NAMES


def test_a_survivor_that_is_gone_costs_the_round_and_the_next_is_opened() -> None:
    two = (FIRST, SECOND)
    plans: dict[str, Any] = {name: (*round_plan(1, NAMES), *round_plan(2, two, done=1, batches=0)) for name in two}
    plans[THIRD] = round_plan(1, NAMES)[:-1]
    run = MemoryAdaptation(plans).run()
    assert run.now >= OPENING_PATIENCE
    assert [each[:2] for each in told(run, FIRST)] == [(1, None), (2, run.sum_of(2))]
    assert told(run, FIRST)[0][2] == f"no word on who survived from {THIRD}"
    # What was learned in the round that is lost is not: the next one goes on behind it.
    assert [each.done for each in run.outcome(RoundAnswered, FIRST)] == [0, 1]
    secrets = [each.secret for each in run.outcome(RoundKept)]
    assert len(set(secrets)) == len(secrets) == 5


@pytest.mark.parametrize("behind", [0, 1, 2])
def test_a_session_that_is_lost_in_a_round_goes_on_behind_what_both_have(behind: int) -> None:
    run = MemoryAdaptation({FIRST: (("begin_round", (1, 0, 0)), PASS, PASS)})
    run.start()
    assert run.advance(lambda: run.owners[FIRST].machine.number == 3)
    run.kill(FIRST)
    run.settle()
    assert run.ended(MODEL_OWNER).code is Code.LEFT  # type: ignore[union-attr]
    run.dead.clear()
    run.plans[FIRST] = round_plan(1, (FIRST,), done=2)
    run.behind[FIRST] = behind
    run.start(FIRST)
    run.settle()
    assert [(each.number, each.done) for each in run.outcome(RoundAsked)] == [(1, 0), (1, 2)]
    assert [each.done for each in run.outcome(RoundAnswered, FIRST)] == [0, behind]
    assert run.ended(FIRST).code is None  # type: ignore[union-attr]


def test_two_lists_cost_the_round_and_name_who_said_them() -> None:
    plans: dict[str, Any] = dict.fromkeys(NAMES, round_plan(1, NAMES))
    plans[THIRD] = round_plan(1, (FIRST, THIRD))
    run = MemoryAdaptation(plans).run()
    assert {data for name in NAMES for _, data, _ in told(run, name)} == {None}
    assert {reason for _, _, reason in told(run, FIRST)} == {f"{THIRD} and {FIRST} name different survivors of one sum"}
    assert run.verdicts() == {(None, "")}


@settings(max_examples=10, deadline=None)
@given(choices=st.data())
def test_any_interleaving_of_the_links_leads_to_the_same(choices: st.DataObject) -> None:
    run = whole_round(3)
    run.network.choose = lambda links: choices.draw(st.sampled_from(sorted(links)))
    run.run()
    assert run.verdicts() == {(None, "")}
    assert run.sums.survivors == NAMES
    for name in NAMES:
        assert told(run, name) == [(1, run.sum_of(1), "")]


@pytest.mark.parametrize("kind", ["begin-round", "keep-round", "ask-sum", "opening"])
@pytest.mark.parametrize("fault", ["unreadable", "gone"])
def test_a_fault_in_one_session_leaves_the_others_alone(kind: str, fault: str) -> None:
    two = (FIRST, SECOND)
    plans: dict[str, Any] = dict.fromkeys(two, round_plan(1, two)) | {THIRD: round_plan(1, ())}
    run = MemoryAdaptation(plans)

    def spoil(parcel: Any) -> list[Any]:
        if fault == "gone":
            run.kill(THIRD)
            return []
        return [type(parcel)(parcel.sender, parcel.receiver, (b"\xc1", *parcel.frames[1:]), parcel.kinds)]

    run.say_instead(kind, THIRD, spoil)
    run.run()
    for name in two:
        assert run.ended(MODEL_OWNER, data_owner=name).code is None  # type: ignore[union-attr]
        assert told(run, name) == [(1, run.sum_of(1), "")]
    late = run.ended(MODEL_OWNER, data_owner=THIRD)
    assert late is not None
    assert late.code is {"unreadable": Code.MALFORMED, "gone": Code.LEFT}[fault]


def test_the_sum_of_one_round_is_the_same_for_whoever_asks_again() -> None:
    names = (FIRST, SECOND)
    again = ("ask_sum", (1, names))
    run = MemoryAdaptation({name: (*round_plan(1, names), again, again) for name in names}).run()
    assert told(run, FIRST) == [(1, run.sum_of(1), "")] * 3
    assert sum(isinstance(parcel.message, AskSum) for parcel in run.log) == 6
    assert len({bytes(parcel.frames[2]) for parcel in run.log if isinstance(parcel.message, OwnSum)}) == 1
    assert run.sums.opened == 1


def test_predictions_are_passes_without_rounds() -> None:
    run = MemoryAdaptation(
        {FIRST: (PASS, PASS)},
        terms=learning_terms(purpose="prediction"),
        purposes={FIRST: "prediction"},
        request=InferenceRequest(images=2, batch=1, channels=1, side=4),
    ).run()
    assert run.verdicts() == {(None, "")}
    assert run.outcome(Opened, FIRST)


def test_survivors_stay_in_the_order_of_their_names() -> None:
    """So that two honest owners cannot name the same ones in two ways."""
    run = MemoryAdaptation({name: round_plan(1, (SECOND, FIRST)) for name in (FIRST, SECOND)}).run()
    assert {parcel.message.survivors for parcel in run.log if isinstance(parcel.message, AskSum)} == {(FIRST, SECOND)}
    assert told(run, FIRST) == [(1, run.sum_of(1), "")]
