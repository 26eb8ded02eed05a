"""The dealer and the parties' supply, on real links: material fits, and whatever is out of step is named."""

import copy
import threading
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest
import torch

from tacit.parties.correlated.material import (
    AnyRequest,
    Bit,
    Linear,
    Permutation,
    Product,
    Square,
    Truncation,
    Weight,
)
from tacit.parties.crypten import supply as supply_module
from tacit.parties.crypten.dealer import Dealer
from tacit.parties.crypten.errors import MpcError
from tacit.parties.crypten.link import Listener, PeerLink
from tacit.parties.crypten.supply import JOIN, ComputationStreams, Join, Supply, agree_on_streams

TWO = ("model", "data")
THREE = (*TWO, "third")
Program = Callable[[Supply, ComputationStreams], object]


def program(act: Program) -> Callable[[Any], object]:
    """A party that makes its streams, joins the dealer and does this."""

    def run(seat: Any) -> object:
        streams = agree_on_streams(seat.rank, seat.links)
        return act(Supply(seat.rank, seat.parties, seat.dealer, streams), streams)

    return run


def take_all(requests: Sequence[AnyRequest], *, planned: bool = False) -> Program:
    def act(supply: Supply, _: ComputationStreams) -> list[list[torch.Tensor]]:
        if planned:
            supply.announce(requests)
        taken = [supply.take(request)[1] for request in requests]
        supply.finish()
        return taken

    return act


def squares(count: int, *, planned: bool) -> Program:
    return take_all([Square((size % 3 + 1,)) for size in range(count)], planned=planned)


def are_squares(results: dict[str, Any], parties: Sequence[str]) -> bool:
    return all(
        torch.equal(sum(a) ** 2, sum(c))
        for a, c in (zip(*shares, strict=True) for shares in zip(*(results[name] for name in parties), strict=True))
    )


@pytest.mark.parametrize("planned", [False, True])
@pytest.mark.parametrize("parties", [TWO, THREE])
def test_every_request_is_met(play: Any, parties: tuple[str, ...], planned: bool) -> None:
    results = play(parties, program(squares(20, planned=planned)))
    assert results["dealer"] == 20
    assert are_squares(results, parties)


def test_a_plan_of_many_segments_with_corrections_for_both_parties(play: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """More segments than may be under way, large and small, and one whose corrections go to the data owner."""
    monkeypatch.setattr(supply_module, "SEGMENT_WORDS", 1 << 10)
    large = Product("mul", ((1 << 9) + 1,), (1,))
    # A weight is masked before the plan that uses it.
    mask = Weight(0, (2, 3))
    linear, rows = Linear(0, (4,), 0, (2, 3)), Permutation(1, (3, 2))
    small: list[AnyRequest] = [Square((2,))] * (supply_module.SEGMENT_REQUESTS + 1)
    plan = [*small, linear, rows, *[large] * (supply_module.AHEAD + 3), rows]

    def act(supply: Supply, _: ComputationStreams) -> list[torch.Tensor]:
        number, masks = supply.take(mask)
        assert number == 0
        supply.announce(plan)
        assert len(supply._segments) == supply_module.AHEAD
        taken = [supply.take(request)[1] for request in plan]
        supply.finish()
        return [*masks, *(words for request, held in zip(plan, taken, strict=True) for words in held)]

    results = play(TWO, program(act))
    assert results["dealer"] == 1 + len(plan)
    model, data = iter(results["model"]), iter(results["data"])
    mask_words = next(model)
    for request in plan:
        if request == linear:
            z_model, r, z_data = next(model), next(data), next(data)
            assert torch.equal(z_model + z_data, r @ mask_words)
        elif request == rows:
            a, b, words, difference = next(model), next(model), next(data), next(data)
            assert torch.equal(b + difference, a[torch.argsort(words)])
        elif request == large:
            a, b, c = (next(model) + next(data) for _ in range(3))
            assert torch.equal(c, a * b)
        else:
            a, c = (next(model) + next(data) for _ in range(2))
            assert torch.equal(c, a * a)


def test_a_recorded_program_finds_its_material_although_the_dealer_has_gone(play: Any) -> None:
    """Nobody waits for the dealer when a plan was announced: here it ends before the plan is used."""

    def act(supply: Supply, _: ComputationStreams) -> list[list[torch.Tensor]]:
        requests = [Weight(0, (1, 1)), *(Square((1 << 10,)) for _ in range(30))]
        with supply.recorded() as plan:
            for request in requests:
                supply.take(request)
        assert plan == requests[1:]
        supply.announce(plan)
        supply._send(())  # The last announcement, sent early: the dealer ends when it has met the plan.
        link = supply._dealer
        while link.peer not in link._end._lost:  # Until the party knows that the dealer has gone.
            link._end.wait(["nobody"], 0.05)
        return [supply.take(request)[1] for request in plan]

    results = play(TWO, program(act))
    assert results["dealer"] == 61
    assert are_squares(results, TWO)


def differ(supply: Supply, first: AnyRequest, second: AnyRequest) -> None:
    supply.take(first if supply.rank == 0 else second)


def skip(supply: Supply) -> None:
    """The data owner goes back to an earlier state of its supply, as a restored snapshot would."""
    earlier = copy.copy(supply.__dict__)
    supply.take(Square((1,)))
    if supply.rank == 1:
        supply.__dict__.update(earlier)
    supply.take(Square((1,)))


def zero_sharing_out_of_step(supply: Supply, streams: ComputationStreams) -> None:
    if supply.rank == 1:
        streams.previous.draw((3,))
    supply.take(Square((1,)))


OUT_OF_STEP = {
    "other shapes": (
        lambda supply, _: differ(supply, Square((2,)), Square((3,))),
        "'data', announce requests: it asks for Square(shape=(3,)) as request 0, 'model' for Square(shape=(2,))",
    ),
    "another kind": (lambda supply, _: differ(supply, Square((2,)), Bit((2,))), "it asks for Bit(shape=(2,))"),
    "restored": (
        lambda supply, _: skip(supply),
        "'data', announce requests: it announces request 0 where 1 is next: it has missed a call, or was restored",
    ),
    "zero sharing": (
        zero_sharing_out_of_step,
        "'model', announce requests: it has drawn 0 words of the zero sharing with 'data', which has drawn 3",
    ),
    "no such weight": (
        lambda supply, _: supply.take(Linear(0, (1,), 5, (1, 1))),
        "'model', request 0: Linear(owner=0, rows=(1,), weight=5, weight_shape=(1, 1)): request 5 was not for the mask",
    ),
    "too large": (
        # A party that does not check what it asks for.
        lambda supply, _: supply._send((Square((1 << 14, 1 << 15)),)),
        "'model', request 0: Square(shape=(16384, 32768)): 1073741824 words are more than 268435456",
    ),
    "impossible": (
        lambda supply, _: supply._send((Product("matmul", (1, 2), (1, 2)),)),
        "there is no such product of these shapes",
    ),
    "unknown operation": (
        lambda supply, _: supply._send((Product("svd", (1, 2), (1, 2)),)),  # type: ignore[arg-type]
        "'model', announce requests: ",
    ),
    "negative divisor": (
        lambda supply, _: supply._send((Truncation((1,), -2),)),
        "'model', announce requests: ",
    ),
}


@pytest.mark.parametrize("case", OUT_OF_STEP)
def test_what_is_out_of_step_is_named_and_everybody_is_told(play: Any, case: str) -> None:
    act, reason = OUT_OF_STEP[case]

    def then_wait(supply: Supply, streams: ComputationStreams) -> None:
        act(supply, streams)
        supply._dealer.receive("what comes next", [(torch.int64, ())])

    results = play(TWO, program(then_wait))
    assert isinstance(results["dealer"], MpcError)
    assert reason in str(results["dealer"])
    for name in TWO:
        assert isinstance(results[name], MpcError)
        assert results[name].party == "dealer"
        assert f"it has given up: {results['dealer']}"[:200] in str(results[name])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"rank": 0}, "'data', join the dealer: it is rank 0 of 2, here 1 of 2"),
        ({"parties": 3}, "'data', join the dealer: it is rank 1 of 3, here 1 of 2"),
        ({"computation": bytes(32)}, "'data', join the dealer: it is in computation 0000000000000000, 'model' in "),
    ],
)
def test_a_party_of_another_computation_is_refused(play: Any, change: dict[str, Any], reason: str) -> None:
    def act(seat: Any) -> None:
        join = Join(rank=seat.rank, parties=2, computation=b"\x01" * 32)
        seat.dealer.send_fields(JOIN, msgspec.structs.replace(join, **change) if seat.rank == 1 else join)
        seat.dealer.receive("what comes next", [])

    results = play(TWO, act)
    assert reason in str(results["dealer"])
    for name in TWO:
        assert f"it has given up: {results['dealer']}" in str(results[name])


class Reordering(Dealer):
    """Sends the corrections of every request as those of the one before or after it."""

    def serve(self) -> None:
        link = self._links[0]
        send, waiting = link.send, []

        def send_in_pairs(operation: str, arrays: list[torch.Tensor]) -> None:
            waiting.append((operation, arrays))
            if len(waiting) == 2:
                while waiting:
                    send(*waiting.pop())

        link.send = send_in_pairs  # type: ignore[method-assign]
        super().serve()


class Cut(Dealer):
    """Sends the corrections of tensors of another shape."""

    def _correct(self, request: AnyRequest) -> list[torch.Tensor]:
        return [words[:-1] for words in super()._correct(request)]


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (
            Reordering,
            "it sent corrections of requests 64 to 65 (int64[2], int64[2]) where corrections of requests 0 to 63",
        ),
        (Cut, "it sent corrections of requests 0 to 63 (int64[1]"),
    ],
)
def test_reordered_and_misshapen_corrections_are_refused(play: Any, kind: type[Dealer], reason: str) -> None:
    def deal(listener: Listener, parties: Sequence[str]) -> None:
        kind(listener, parties).serve()

    def act(supply: Supply, _: ComputationStreams) -> None:
        supply.announce([Square((2,))] * 66)
        supply.take(Square((2,)))

    error = play(TWO, program(act), dealer=deal)["model"]
    assert isinstance(error, MpcError)
    assert error.party == "dealer"
    assert reason in str(error)


def test_a_dealer_that_ends_is_named(play: Any) -> None:
    def deal(listener: Listener, parties: Sequence[str]) -> None:
        Dealer(listener, parties)._next_segment()

    results = play(TWO, program(lambda supply, _: supply.take(Square((2,)))), dealer=deal)
    assert "'dealer', corrections of requests 0 to 0: its link is lost" in str(results["model"])


def test_a_dealer_that_is_late_is_named(play: Any, hurry: Callable[[PeerLink, float], None]) -> None:
    given_up = threading.Event()

    def deal(listener: Listener, parties: Sequence[str]) -> None:
        Dealer(listener, parties)
        assert given_up.wait(60)

    def act(supply: Supply, _: ComputationStreams) -> None:
        if supply.rank == 0:
            hurry(supply._dealer, 0.3)
        try:
            supply.take(Square((2,)))
        finally:
            if supply.rank == 0:
                given_up.set()

    results = play(TWO, program(act), dealer=deal)
    assert "'dealer', corrections of requests 0 to 0: nothing came for 0.3 s" in str(results["model"])


def test_a_party_that_is_late_is_named(play: Any, hurry: Callable[[PeerLink, float], None]) -> None:
    given_up = threading.Event()

    def deal(listener: Listener, parties: Sequence[str]) -> None:
        dealer = Dealer(listener, parties)
        for link in dealer._links:
            hurry(link, 0.3)
        try:
            dealer.serve()
        finally:
            given_up.set()

    def act(supply: Supply, _: ComputationStreams) -> None:
        if supply.rank == 0:
            supply.take(Square((2,)))
        else:
            assert given_up.wait(60)

    results = play(TWO, program(act), dealer=deal)
    assert "'data', announce requests: nothing came for 0.3 s" in str(results["dealer"])


def other_than_planned(supply: Supply) -> None:
    supply.announce([Square((2,))])
    supply.take(Square((3,)))


def less_than_planned(supply: Supply) -> None:
    supply.announce([Square((2,))])
    supply.finish()


@pytest.mark.parametrize(
    ("act", "reason"),
    [
        (other_than_planned, "the program asks for Square(shape=(3,)) where the announced plan has Square(shape=(2,))"),
        (less_than_planned, "the program has ended before the announced plan"),
    ],
)
def test_a_program_that_leaves_its_plan_is_refused(play: Any, act: Callable[[Supply], None], reason: str) -> None:
    results = play(TWO, program(lambda supply, _: act(supply)))
    assert reason in str(results["model"])
    assert reason in str(results["data"])


def test_what_cannot_be_met_is_refused_before_it_is_announced(play: Any) -> None:
    def act(supply: Supply, _: ComputationStreams) -> None:
        with pytest.raises(ValueError, match="take a smaller batch"):
            supply.take(Square((1 << 14, 1 << 14)))
        with pytest.raises(ValueError, match="no such product"):
            supply.announce([Product("matmul", (1, 2), (1, 2))])
        supply.finish()

    results = play(TWO, program(act))
    assert results == {"model": None, "data": None, "dealer": 0}
