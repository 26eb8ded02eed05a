"""Parties of private inference that cheat; tests/protocol/inference/test_cheating.py has many more of them."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tacit.protocol.core.errors import Code
from tacit.protocol.inference.data_owner import Wish
from tacit.protocol.inference.messages import Opening, StartPass
from tacit.protocol.inference.results import Deal, KeysDealt, MaterialArrived, PassBegun
from tacit.simulate.world.inference import DEALER, MODEL_OWNER, MemoryInference, data_owner_names
from tacit.simulate.world.network import Parcel, altered

(DATA_OWNER,) = data_owner_names(1)
OTHER = b"\xff" * 32
WISH = Wish(images=3, batch=2, channels=1, side=4)


def world() -> MemoryInference:
    return MemoryInference({DATA_OWNER: WISH})


def saying(**fields: Any) -> Callable[[Parcel], list[Parcel]]:
    return lambda parcel: [altered(parcel, message=msgspec.structs.replace(parcel.message, **fields))]


@pytest.mark.threat("data-owner/wants-more")
@pytest.mark.parametrize("more", [{"images": 4}, {"batch": 3}])
def test_a_data_owner_cannot_agree_to_more_than_is_offered(more: dict[str, int]) -> None:
    run = world()
    run.say_instead("agree-terms", DATA_OWNER, saying(**more))
    assert run.run().verdicts() == {(Code.POLICY, DATA_OWNER)}
    assert not run.outcome(KeysDealt)


@pytest.mark.threat("data-owner/wants-more")
def test_a_data_owner_gets_no_pass_beyond_those_agreed_on() -> None:
    run = world()
    third = StartPass(weights=run.terms.weights)
    run.say_instead("close-inference", DATA_OWNER, lambda parcel: [altered(parcel, message=third, round=3)])
    assert (Code.POLICY, DATA_OWNER) in run.run().verdicts()
    assert [begun.number for begun in run.outcome(PassBegun, MODEL_OWNER)] == [1, 2]


@pytest.mark.threat("model-owner/other-model")
@pytest.mark.parametrize("number", [1, 2])
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
@pytest.mark.parametrize("owner", [MODEL_OWNER, DATA_OWNER])
@pytest.mark.parametrize("change", [{"requests": b"other"}, {"first": 0}])
def test_the_dealer_deals_nothing_that_does_not_fit(owner: str, change: dict[str, Any]) -> None:
    run, deals = world(), []
    deal = run.deal

    def noted(dealer: Any, order: Deal) -> None:
        deals.append(order)
        deal(dealer, order)

    run.deal = noted  # type: ignore[method-assign]
    run.say_instead("order-material", owner, saying(**change), at=1)
    ((code, _),) = run.run().verdicts()
    assert code in (Code.POLICY, Code.SEQUENCE)
    assert [order.first for order in deals] == [0]
    assert {each.number for each in run.outcome(MaterialArrived)} <= set(range(deals[0].count))


@pytest.mark.threat("dealer/hears-inference")
def test_the_dealer_is_told_of_shapes_alone() -> None:
    run = world().run()
    told = [parcel for parcel in run.log if parcel.receiver == DEALER]
    assert {parcel.packet.kind.TYPE for parcel in told} == {"material-hello", "order-material", "material-over"}
    assert not any(parcel.packet.kind.PAYLOAD for parcel in told)
    fields = {name for parcel in told for name in type(parcel.message).__struct_fields__}
    assert fields == {"roster", "peer", "terms", "contribution", "first", "count", "requests"}
