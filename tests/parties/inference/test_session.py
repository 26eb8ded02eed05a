"""Two owners and a dealer over real links: weights, material, a block, and what the dealer refuses."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
import torch

from tacit.parties.inference.costs import declared
from tacit.parties.inference.material import Fixed, Narrow
from tacit.parties.inference.operations import DATA, MODEL
from tacit.parties.inference.session import InferenceSession, known_input
from tacit.parties.inference.shell import Record
from tacit.parties.inference.supply import ORDER, BlockSupply, Order, deal
from tacit.parties.inference.weights import integer_weights
from tacit.parties.keys import PartyKeys, generate
from tacit.parties.mpc.errors import MpcError
from tacit.parties.mpc.link import Link, connect, listen
from tacit.parties.mpc.material import Weight
from tacit.protocol.roster import Roster

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(Path(__file__).parent)
    from conftest import Example

NAMES = ("model-owner", "data-owner")
LOOPBACK = "tcp://127.0.0.1:*"
NARROW = Narrow((3,), 16, 1)
LARGE = Narrow((1 << 26,), 16, 16)


@pytest.fixture(scope="module")
def keys() -> dict[str, PartyKeys]:
    return {name: generate(name) for name in ("dealer", *NAMES)}


Act = Callable[[int, Link, Link], Any]


@pytest.fixture
def play(keys: dict[str, PartyKeys]) -> Callable[[Act], list[Any]]:
    """play(act): act(rank, peer, dealer) for both owners, and the dealer, each in a thread; what each of the three
    returned, or the MpcError that it raised, the dealer's last."""
    roster = Roster((keys["dealer"].member("server"), *(keys[name].member("client") for name in NAMES)))
    common: dict[str, Any] = {"roster": roster, "session": b"a test", "patience": 20.0}

    def caught(run: Callable[[], Any]) -> Any:
        try:
            return run()
        except MpcError as error:
            return error

    def play(act: Act) -> list[Any]:
        addresses = {name: SimpleQueue[str]() for name in ("dealer", NAMES[MODEL])}

        def dealer() -> Any:
            with listen(LOOPBACK, keys=keys["dealer"], peers=NAMES, **common) as listener:
                for _ in NAMES:
                    addresses["dealer"].put(listener.address)
                return caught(lambda: deal(listener, NAMES))

        def owner(rank: int) -> Any:
            own = keys[NAMES[rank]]
            if rank == MODEL:
                with listen(LOOPBACK, keys=own, peers=[NAMES[DATA]], **common) as listener:
                    addresses[NAMES[MODEL]].put(listener.address)
                    return with_dealer(rank, listener.accept()[NAMES[DATA]])
            with connect(addresses[NAMES[MODEL]].get(), keys=own, server=NAMES[MODEL], **common) as peer:
                return with_dealer(rank, peer)

        def with_dealer(rank: int, peer: Link) -> Any:
            with connect(addresses["dealer"].get(), keys=keys[NAMES[rank]], server="dealer", **common) as link:
                return caught(lambda: act(rank, peer, link))

        with ThreadPoolExecutor(3) as pool:
            futures = [pool.submit(owner, rank) for rank in (MODEL, DATA)] + [pool.submit(dealer)]
            return [future.result() for future in futures]

    return play


@pytest.mark.parametrize("known", [True, False])
def test_blocks_over_links(example: Example, play: Callable[[Act], list[Any]], known: bool) -> None:
    weights = integer_weights(example.block, example.scales)

    def act(rank: int, peer: Link, dealer: Link) -> tuple[torch.Tensor | None, Record]:
        session = InferenceSession(rank, peer, dealer)
        layers = session.mask(weights if rank == MODEL else None, example.shape)
        x = example.x if rank == DATA else None
        # The second pass has other material, and the same weights.
        for _ in range(2):
            block = session.prepare(example.shape, example.scales, layers, known=known)
            session.wait()
            record = Record()
            if known:
                share, normalised = known_input(x, example.shape, example.scales)
            else:
                share, normalised = session.share(x, example.shape, example.scales), None
            share = session.run(block, share, normalised, record)
            output = session.result(share, example.scales, record)
        session.finish()
        return output, record

    (nothing, model_record), (output, data_record), requests = play(act)
    assert nothing is None
    assert (output - example.expected).norm() / example.expected.norm() < 2e-3
    assert requests > 20
    costs = declared(example.shape, known=known)
    result = model_record.operations.pop("result")
    assert (result.rounds, result.bytes_sent) == (1, example.x.numel() * 6)
    assert data_record.operations.pop("result").bytes_sent == 0
    for record, place in ((model_record, "model_owner_bytes"), (data_record, "data_owner_bytes")):
        assert {name: cost.bytes_sent for name, cost in record.operations.items()} == {
            name: getattr(cost, place) for name, cost in costs.items()
        }
        assert record.rounds == sum(cost.rounds for cost in costs.values())
        assert all(cost.seconds > 0 for cost in record.operations.values())


def order_again(supply: BlockSupply, dealer: Link, rank: int) -> None:
    supply.fetch([NARROW])
    dealer.send_fields(ORDER, Order(first=0, requests=(NARROW,)))


def order_other_material(supply: BlockSupply, dealer: Link, rank: int) -> None:
    supply.fetch([Narrow((3 + rank,), 16, 1)])


def order_an_unknown_weight(supply: BlockSupply, dealer: Link, rank: int) -> None:
    supply.fetch([Weight(MODEL, (4, 4)), Fixed(MODEL, (2,), 0, (4, 5))])


def order_too_much(supply: BlockSupply, dealer: Link, rank: int) -> None:
    with pytest.raises(ValueError, match="take a smaller batch"):
        supply.fetch([LARGE])
    dealer.send_fields(ORDER, Order(first=0, requests=(LARGE,)))


@pytest.mark.parametrize(
    ("misbehave", "party", "reason"),
    [
        (order_again, "model-owner", "it orders request 0 where 1 is next: material is used once"),
        (order_other_material, "data-owner", "it orders other material than 'model-owner'"),
        (order_an_unknown_weight, "model-owner", "there is no mask of such a weight"),
        (order_too_much, "model-owner", "take a smaller batch"),
    ],
)
def test_orders_that_the_dealer_refuses(
    play: Callable[[Act], list[Any]], misbehave: Callable[..., None], party: str, reason: str
) -> None:
    def act(rank: int, peer: Link, dealer: Link) -> None:
        supply = BlockSupply(rank, dealer)
        misbehave(supply, dealer, rank)
        # What the dealer has to say is the next message of whoever expects one.
        dealer.receive("anything", [])

    one, other, dealer = play(act)
    assert isinstance(dealer, MpcError)
    assert dealer.party == party
    assert reason in str(dealer)
    assert reason in str(one) or reason in str(other)


def test_a_program_gets_no_material_that_it_did_not_order(play: Callable[[Act], list[Any]]) -> None:
    def act(rank: int, peer: Link, dealer: Link) -> None:
        supply = BlockSupply(rank, dealer)
        supply.fetch([NARROW])
        with pytest.raises(RuntimeError, match="the material at hand is for Narrow"):
            supply.party.take(Narrow((4,), 16, 1))
        with pytest.raises(RuntimeError, match="the material at hand is for None"):
            supply.party.take(NARROW)
        supply.finish()

    assert play(act) == [None, None, 1]


def test_weights_of_another_shape_are_refused(example: Example, play: Callable[[Act], list[Any]]) -> None:
    weights = integer_weights(example.block, example.scales)
    wider = replace(example.shape, hidden=example.shape.hidden + 1)

    def act(rank: int, peer: Link, dealer: Link) -> None:
        session = InferenceSession(rank, peer, dealer)
        if rank == MODEL:
            with pytest.raises(ValueError, match="fc1 is a weight of"):
                session.mask(weights, wider)
            return
        session.mask(None, wider)

    _, data_owner, _ = play(act)
    assert isinstance(data_owner, MpcError)
    assert data_owner.party == NAMES[MODEL]
