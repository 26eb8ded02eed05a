"""Material that is laid by: which sessions take it, and that a piece serves once, whoever dies or is restored."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.protocol.core.errors import Code
from tacit.protocol.inference.data_owner import Wish
from tacit.protocol.inference.messages import NOTHING, LayBy, Stock
from tacit.protocol.inference.results import Agreed, Deal, LayByAnswered, MaterialArrived, MaterialKey, PassBegun
from tacit.protocol.inference.stock import fitting, joint, serves
from tacit.simulate.world.inference import DEALER, MODEL_OWNER, MemoryInference, data_owner_names
from tacit.simulate.world.network import Parcel, altered

(DATA_OWNER,) = data_owner_names(1)
BOTH = (MODEL_OWNER, DATA_OWNER)
OWN = (MODEL_OWNER, DATA_OWNER), (DATA_OWNER, DATA_OWNER)


def world(images: int = 2, batch: int = 1, ahead: int = 4) -> MemoryInference:
    return MemoryInference({DATA_OWNER: Wish(images=images, batch=batch, channels=1, side=4)}, ahead=ahead)


def again(run: MemoryInference) -> MemoryInference:
    run.start()
    return run.settle()


def stocks(run: MemoryInference) -> list[Stock]:
    return [run.held[key].stock for key in OWN]


def last(run: MemoryInference) -> Agreed:
    """What the last session has agreed on."""
    found = [run.outcome(Agreed, party)[-1] for party in BOTH]
    assert [(each.stock, each.piece, each.images, each.batch) for each in found[:1]] == [
        (each.stock, each.piece, each.images, each.batch) for each in found[1:]
    ]
    return found[0]


def check_used_once(run: MemoryInference) -> None:
    for party in BOTH:
        pieces = [piece for piece in run.used if piece[0] == party]
        assert len(set(pieces)) == len(pieces)


def test_a_dealer_that_deals_ahead_leaves_both_owners_a_stock_that_serves_without_it() -> None:
    run = world().run()
    assert run.verdicts() == {(None, "")}
    assert [(each.batch, each.next, each.end) for each in stocks(run)] == [(1, 0, 4)] * 2
    assert stocks(run)[0] == stocks(run)[1]
    run.kill(DEALER)
    for expected in (2, 4):
        again(run)
        assert (last(run).piece, last(run).images) == (expected - 2, 2)
        assert [each.next for each in stocks(run)] == [expected] * 2
    assert len(run.outcome(MaterialKey, DATA_OWNER)) == 1
    assert len(run.outcome(PassBegun, DATA_OWNER)) == 6
    check_used_once(run)


def test_a_stock_that_is_used_up_is_followed_by_another() -> None:
    run = world(ahead=2).run()
    first = stocks(run)[0]
    again(run)
    assert last(run).piece == 0
    again(run)
    assert last(run).stock is None
    assert {each.id for each in stocks(run)} == {last(run).session}
    assert first.id != last(run).session


def test_a_session_takes_as_many_images_as_the_stock_serves() -> None:
    run = world(images=3, batch=2, ahead=4).run()
    assert [(each.batch, each.end) for each in stocks(run)] == [(2, 2)] * 2
    again(run)
    assert (last(run).images, last(run).batch, last(run).piece) == (2, 2, 0)
    # One image is less than a piece: the dealer is asked, and what is laid by stays.
    run.wishes[DATA_OWNER] = Wish(images=1, batch=2, channels=1, side=4)  # type: ignore[index]
    again(run)
    assert (last(run).images, last(run).piece) == (1, None)
    assert [(each.next, each.end) for each in stocks(run)] == [(1, 2)] * 2


@pytest.mark.parametrize("restored", OWN)
def test_who_is_restored_from_a_copy_uses_no_piece_again(restored: tuple[str, str]) -> None:
    run = world(images=1, ahead=3).run()
    copy = run.held[restored]
    again(run)
    run.held[restored] = copy
    again(run)
    assert last(run).piece == 1
    assert [each.next for each in stocks(run)] == [2, 2]
    check_used_once(run)


@pytest.mark.parametrize("restored", OWN)
def test_a_copy_of_a_former_stock_voids_what_both_have(restored: tuple[str, str]) -> None:
    run = world(images=1, ahead=1).run()
    copy = run.held[restored]
    again(again(run))
    run.held[restored] = copy
    assert stocks(run)[0].id != stocks(run)[1].id
    again(run)
    assert (last(run).stock, last(run).piece) == (None, None)
    assert {each.id for each in stocks(run)} == {last(run).session}
    check_used_once(run)


def test_a_changed_model_voids_all_of_its_material() -> None:
    run = world().run()
    run.terms = msgspec.structs.replace(run.terms, weights=bytes(32))
    run.weights = run.terms.weights
    again(run)
    assert last(run).stock is None
    assert {each.id for each in stocks(run)} == {last(run).session}
    assert run.ended(DATA_OWNER).code is None  # type: ignore[union-attr]


def test_nothing_is_laid_by_while_something_is_left() -> None:
    run = world(images=1, ahead=3).run()
    run.say_instead("close-inference", DATA_OWNER, lambda parcel: [altered(parcel, message=LayBy())])
    again(run)
    assert (Code.POLICY, DATA_OWNER) in {(ended.code, ended.culprit) for ended in [run.ended(MODEL_OWNER)] if ended}


def test_a_model_owner_lays_by_no_more_than_the_dealer_told_it() -> None:
    run = world(images=1, ahead=2)

    def more(parcel: Parcel) -> list[Parcel]:
        ahead = 9 if parcel.receiver == DATA_OWNER else 2
        return [altered(parcel, message=msgspec.structs.replace(parcel.message, ahead=ahead))]

    run.say_instead("material-welcome", DEALER, more, at=None)
    assert run.run().verdicts() == {(None, "")}
    assert [(each.next, each.end) for each in stocks(run)] == [(0, 2)] * 2
    assert [each.kept for each in run.outcome(LayByAnswered)] == [True, True, False]


@pytest.mark.parametrize("sizes", [(24, 0), (0, 16), (8, 2**20 + 8)])
def test_corrections_of_a_request_go_to_either_owner_or_to_both(sizes: tuple[int, int]) -> None:
    """In passes, and in what is laid by after them."""
    wish = Wish(images=2, batch=1, channels=1, side=4)
    run = MemoryInference({DATA_OWNER: wish}, requests=[sizes] * 2, ahead=2).run()
    assert run.verdicts() == {(None, "")}
    first = run.outcome(Deal)[0].count
    for party, size in zip(BOTH, sizes, strict=True):
        arrived = [(each.number, len(each.data)) for each in run.outcome(MaterialArrived, party)]
        assert arrived == [(number, size) for number in range(first, first + 8) if size]


STOCK = st.builds(
    Stock,
    id=st.sampled_from([bytes(32), bytes([1] * 32)]),
    batch=st.integers(1, 3),
    next=st.integers(0, 5),
    end=st.integers(0, 5),
)


@given(st.just(NOTHING) | STOCK, st.just(NOTHING) | STOCK, st.integers(1, 9), st.integers(1, 4))
def test_what_both_take_of_a_stock(own: Stock, peers: Stock, images: int, batch: int) -> None:
    found = joint(own, peers)
    assert found == joint(peers, own)
    taken, together = fitting(found, images=images, batch=batch)
    assert 1 <= taken <= images
    assert 1 <= together <= min(batch, taken)
    if found is None:
        assert (taken, together) == (images, min(batch, images))
        return
    assert max(own.next, peers.next) == found.next < found.end == min(own.end, peers.end)
    if serves(found, images=taken, batch=together):
        assert (together, taken % together) == (found.batch, 0)
        assert taken // together <= found.end - found.next
    else:
        assert found.batch > min(batch, images)
