"""Parties of private inference that cheat; many more do in tests/protocol/inference and in the conformance kit."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.inference.data_owner import InferencePolicy, InferenceRequest
from tacit.protocol.inference.messages import Opening, StartPass
from tacit.protocol.inference.quota import Quota, Spent
from tacit.protocol.inference.results import Deal, KeysDealt, MaterialArrived, PassBegun
from tacit.protocol.inference.schedule import RANGE, pass_rounds
from tacit.simulate.world.inference import DEALER, MODEL_OWNER, MemoryInference, data_owner_names
from tacit.simulate.world.world import Parcel, altered
from tests.cases import cases

(DATA_OWNER,) = data_owner_names(1)
OTHER = b"\xff" * 32
REQUEST = InferenceRequest(images=3, batch=2, channels=1, side=4)


def world() -> MemoryInference:
    return MemoryInference({DATA_OWNER: REQUEST})


def saying(**fields: Any) -> Callable[[Parcel], list[Parcel]]:
    return lambda parcel: [altered(parcel, message=msgspec.structs.replace(parcel.message, **fields))]


@pytest.mark.threat("data-owner/wants-more")
def test_a_data_owner_gets_no_more_than_was_agreed_on() -> None:
    for more in [{"images": 4}, {"batch": 3}]:
        run = world()
        run.say_instead("agree-terms", DATA_OWNER, saying(**more))
        assert run.run().verdicts() == {(Code.POLICY, DATA_OWNER)}
        assert not run.outcome(KeysDealt)

    run = world()
    third = StartPass(weights=run.terms.weights)
    run.say_instead("close-inference", DATA_OWNER, lambda parcel: [altered(parcel, message=third, round=3)])
    assert (Code.POLICY, DATA_OWNER) in run.run().verdicts()
    assert [begun.number for begun in run.outcome(PassBegun, MODEL_OWNER)] == [1, 2]


@pytest.mark.threat("data-owner/searches-bounds")
def test_a_quota_holds_over_sessions_and_days_and_verdicts_that_are_kept_back() -> None:
    """Three images: two in the first pass, one in the second; the first is always out of range."""
    run = world()
    run.quota = Quota(used=7, refused=4)
    run.out_of_range.add((DATA_OWNER, 1))
    run.clock = 86400.0
    assert run.run().verdicts() == {(None, "")}
    assert run.spent[MODEL_OWNER, DATA_OWNER] == Spent(day=1, used=3, refused=2)
    # In the next session it keeps its word about the range to itself, and leaves.
    run.told.clear()
    run.start(DATA_OWNER)
    last = len(pass_rounds(run.terms.sizes, 2)) - 2
    assert run.advance(lambda: last in run.served[DATA_OWNER].given or last in run.owners[DATA_OWNER].given)
    owner = run.owners[DATA_OWNER]
    owner.tell("owners", owner.machine.give_up(RemoteProtocolError(Code.LOCAL, "it leaves"), run.now))
    run.network.forget(lambda link: link[0] == DATA_OWNER)
    run.start(DATA_OWNER)
    run.settle()
    assert run.spent[MODEL_OWNER, DATA_OWNER] == Spent(day=1, used=5, refused=4)
    over = run.ended(MODEL_OWNER)
    assert over is not None
    assert (over.code, over.culprit) == (Code.POLICY, DATA_OWNER)
    assert "4 images a day of a data owner may be refused, 0 are left until 1970-01-03T00:00:00Z" in over.detail
    # A clock that goes back renews nothing; the next day does.
    for at, code in ((0.0, Code.POLICY), (2 * 86400.0, None)):
        run.clock = at
        run.start(DATA_OWNER)
        run.settle()
        over = run.ended(MODEL_OWNER)
        assert over is not None
        assert over.code is code
    assert run.spent[MODEL_OWNER, DATA_OWNER] == Spent(day=2, used=3, refused=2)


@pytest.mark.threat("model-owner/asks-by-bounds")
def test_a_data_owner_limits_verdicts_over_sessions_and_days() -> None:
    """Three images in two passes, of which the first is always out of range."""
    policy = InferencePolicy(quota=Quota(used=4, refused=2))
    run = MemoryInference({DATA_OWNER: REQUEST}, policies={DATA_OWNER: policy})
    run.out_of_range.add((DATA_OWNER, 1))
    run.clock = 86400.0
    assert run.run().verdicts() == {(None, "")}
    assert run.spent[DATA_OWNER, MODEL_OWNER] == Spent(day=1, used=2, refused=1)
    # The model owner keeps its word about the range of the next first pass to itself, and leaves.
    run.told.clear()
    run.start(DATA_OWNER)
    last = len(pass_rounds(run.terms.sizes, 2)) - 2
    assert run.advance(lambda: last in run.owners[DATA_OWNER].given or last in run.served[DATA_OWNER].given)
    owner = run.served[DATA_OWNER]
    owner.tell("owners", owner.machine.give_up(RemoteProtocolError(Code.LOCAL, "it leaves"), run.now))
    run.network.forget(lambda link: link[0] == MODEL_OWNER)
    run.settle()
    assert run.spent[DATA_OWNER, MODEL_OWNER] == Spent(day=1, used=3, refused=2)
    # Nothing of a pass leaves then, whatever the clock says, until the next day.
    for at, code in ((86400.0, Code.POLICY), (0.0, Code.POLICY), (2 * 86400.0, None)):
        run.clock = at
        begun = len(run.outcome(PassBegun, DATA_OWNER))
        run.start(DATA_OWNER)
        run.settle()
        over = run.ended(DATA_OWNER)
        assert over is not None
        assert (over.code, over.culprit) == (code, DATA_OWNER if code else "")
        assert len(run.outcome(PassBegun, DATA_OWNER)) == begun + (0 if code else 2)
        if code:
            assert "its limit of 2 refused passes a day with model-owner is reached until 1970-01-03" in over.detail
            assert "raise refused_a_day" in over.detail
    assert run.spent[DATA_OWNER, MODEL_OWNER] == Spent(day=2, used=2, refused=1)


@pytest.mark.threat("data-owner/searches-bounds")
@pytest.mark.threat("model-owner/asks-by-bounds")
def test_a_pass_that_ends_before_anybody_can_know_a_verdict_is_no_refusal() -> None:
    """Whoever has failed: here the data owner leaves, in every round up to the verdict."""
    verdict = [each.operation for each in pass_rounds(world().terms.sizes, 2)].index(RANGE)
    kept = 0
    for step in range(verdict + 1):
        run = world()
        run.clock = 86400.0
        run.start(DATA_OWNER)

        def has_given(side: str, wanted: int, run: MemoryInference = run) -> bool:
            found = getattr(run, side).get(DATA_OWNER)
            return found is not None and wanted in found.given

        def either(step: int = step, has_given: Callable[[str, int], bool] = has_given) -> bool:
            return has_given("served", step) or has_given("owners", step)

        run.advance(either)
        owner = run.owners[DATA_OWNER]
        owner.tell("owners", owner.machine.give_up(RemoteProtocolError(Code.LOCAL, "it leaves"), run.now))
        run.settle()
        told = {side: has_given(side, verdict) for side in ("served", "owners")}
        assert run.spent[MODEL_OWNER, DATA_OWNER] == Spent(day=1, used=2, refused=2 * told["served"])
        assert run.spent[DATA_OWNER, MODEL_OWNER] == Spent(day=1, used=1, refused=1 * told["owners"])
        kept += any(told.values())
    assert 0 < kept < verdict


@pytest.mark.threat("data-owner/asks-out-of-range")
def test_nothing_is_told_of_a_pass_out_of_range() -> None:
    run = world()
    run.out_of_range.add((DATA_OWNER, 2))
    assert run.run().verdicts() == {(None, "")}
    last = len(pass_rounds(run.terms.sizes, 1)) - 1
    told = {
        parcel.packet.envelope.round
        for parcel in run.log
        if isinstance(parcel.message, Opening) and parcel.message.step == last
    }
    assert told == {1}


@pytest.mark.threat("data-owner/wrong-shares")
@cases("operation", ["gelu", "count"])
def test_a_data_owner_that_opens_wrong_words_is_counted_and_not_found_out(operation: str) -> None:
    run, changed = world(), []
    run.quota = Quota(used=3, refused=3)
    step = [each.operation for each in pass_rounds(run.terms.sizes, 2)].index(operation)

    def wrong(parcel: Parcel) -> list[Parcel]:
        message = parcel.message
        assert isinstance(message, Opening)
        if (parcel.packet.envelope.round, message.step) != (1, step):
            return [parcel]
        octets = bytes(parcel.packet.payload or b"")
        changed.append(octets)
        return [altered(parcel, payload=bytes([octets[0] ^ 1]) + octets[1:])]

    run.say_instead("opening", DATA_OWNER, wrong, at=None)
    assert run.run().verdicts() == {(None, "")}
    assert len(changed) == 1
    assert run.spent[MODEL_OWNER, DATA_OWNER].used == 3


@pytest.mark.threat("model-owner/other-model")
@cases("number", [1, 2])
def test_a_model_owner_cannot_change_its_model(number: int) -> None:
    run = world()
    run.say_instead("pass-started", MODEL_OWNER, saying(weights=OTHER), at=number - 1)
    assert run.run().verdicts() == {(Code.MODEL, MODEL_OWNER)}
    opened = {
        parcel.packet.envelope.round
        for parcel in run.log
        if parcel.packet.kind is Opening and parcel.sender == DATA_OWNER
    }
    assert opened == set(range(1, number))


@pytest.mark.threat("owner/other-material")
@cases("owner", [MODEL_OWNER, DATA_OWNER])
@cases("change", [{"requests": b"other"}, {"first": 0}])
def test_the_dealer_deals_nothing_that_does_not_fit(owner: str, change: dict[str, Any]) -> None:
    run, deals = world(), []
    deal = run.deal

    def noted(dealer: Any, order: Deal) -> None:
        deals.append(order)
        deal(dealer, order)

    run.deal = noted  # type: ignore[method-assign]
    run.say_instead("order-randomness", owner, saying(**change), at=1)
    ((code, _),) = run.run().verdicts()
    assert code in (Code.POLICY, Code.SEQUENCE)
    assert [order.first for order in deals] == [0]
    assert {each.number for each in run.outcome(MaterialArrived)} <= set(range(deals[0].count))


@pytest.mark.threat("dealer/hears-inference")
def test_the_dealer_is_told_of_shapes_alone() -> None:
    run = world().run()
    told = [parcel for parcel in run.log if parcel.receiver == DEALER]
    assert {parcel.packet.kind.TYPE for parcel in told} == {"dealer-hello", "order-randomness", "dealing-over"}
    assert not any(parcel.packet.kind.PAYLOAD for parcel in told)
    fields = {name for parcel in told for name in type(parcel.message).__struct_fields__}
    assert fields == {"roster", "peer", "terms", "contribution", "first", "count", "requests"}
