"""A round in two stages: first a secure sum of who contributes to what, then of the updates within the limits."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tacit.protocol.core.blob import announce
from tacit.protocol.core.errors import Code
from tacit.protocol.core.machine import Report
from tacit.protocol.core.members import encode_members
from tacit.protocol.core.messages import CHUNK_BYTES, Abort, Blob, Chunk, Fetch, Message
from tacit.protocol.core.primitives import Label
from tacit.protocol.session.messages import StartSecondStage
from tacit.protocol.session.rounds import Journal, RoundDone, RoundOver, agree
from tacit.protocol.sum.counting import (
    counting_agreement,
    derive_limits,
    packing,
    second_agreement,
    spare,
)
from tacit.protocol.sum.messages import AdvertiseKeys, MaskedInput, UnmaskShares
from tacit.secagg.counting import COUNTING_RING
from tacit.secagg.packing import WeightForm
from tacit.simulate.world.federation import SERVER, MemoryFederation, small_configuration
from tacit.simulate.world.network import Parcel, altered

CLIENTS, FEWEST = 6, 2
ALL = tuple(f"client-{number}" for number in range(CLIENTS))


def federation(clients: int = CLIENTS, *, rounds: int = 1, parameters: int = 60, **changes: Any) -> MemoryFederation:
    """With a third of the clients as tolerated dropouts."""
    settings: dict[str, Any] = {
        "enforce": "clients", "min_contributors": FEWEST,
        "form": WeightForm.COORDINATE, "max_weight": 1, "value_bits": 12, "dropout": 0.34,
    }  # fmt: skip
    return MemoryFederation(
        small_configuration(clients, parameters=parameters, **(settings | changes)), clients, rounds=rounds
    )


def counts(one: MemoryFederation, names: tuple[str, ...], round: int = 1) -> Any:
    """To how many coordinates these clients wanted to contribute, by plain addition."""
    return sum(one.wanted[name, round].astype(int) for name in names)


def weights(one: MemoryFederation, done: RoundDone) -> Any:
    """The counts in the sum of the updates."""
    assert done.total is not None
    return one.configuration.packing().decode(done.total, contributors=len(done.survivors)).weights


def on_message(one: MemoryFederation, sender: str, kind: type[Message], *, nth: int, act: Callable[[], None]) -> None:
    """Do something when a party says a message of that kind for the nth time, before it is delivered."""
    seen = 0

    def hook(parcel: Parcel) -> list[Parcel]:
        nonlocal seen
        if (parcel.sender, parcel.packet.kind) == (sender, kind):
            seen += 1
            if seen == nth:
                act()
        return [parcel]

    one.hook = hook


def kill(one: MemoryFederation, *names: str) -> None:
    for name in names:
        one.kill(name)


@pytest.mark.parametrize("mode", ["active", "semi-honest"])
@pytest.mark.parametrize("clients", [3, 6, 9])
def test_what_is_summed_is_what_enough_clients_contribute(mode: str, clients: int) -> None:
    one = federation(clients, rounds=2, mode=mode).run()
    spared = spare(one.configuration, clients)
    assert spared == clients * 34 // 100
    for done in one.outcome(RoundDone):
        wanted = counts(one, done.survivors, done.round)
        np.testing.assert_array_equal(weights(one, done), np.where(wanted >= FEWEST + spared, wanted, 0))
        assert (done.total == one.plain_sum(done)).all()
    assert len(one.outcome(RoundDone)) == 2
    ended = one.ended(SERVER)
    assert ended is not None
    assert ended.code is None
    for name in one.roster.clients:
        entered = [(told.entry.round, told.entry.stage) for told in one.outcome(Journal, name)]
        assert entered == [(1, 1), (1, 2), (2, 1), (2, 2)], name


@pytest.mark.parametrize("kind", [Fetch, AdvertiseKeys, MaskedInput])
def test_as_many_as_are_tolerated_may_be_lost_in_the_second_stage(kind: type[Message]) -> None:
    """And still no coordinate of the sum has fewer contributors than it must have."""
    one = federation(mode="semi-honest")
    on_message(one, ALL[0], kind, nth=2, act=lambda: kill(one, *ALL[1:3]))
    one.run()
    (done,) = one.outcome(RoundDone)
    assert done.survivors == (ALL[0], *ALL[3:])
    left = weights(one, done)
    wanted = counts(one, ALL)
    np.testing.assert_array_equal(left, np.where(wanted >= FEWEST + 2, counts(one, done.survivors), 0))
    assert left[left > 0].min() >= FEWEST


@pytest.mark.parametrize("kind", [AdvertiseKeys, MaskedInput])
def test_nobody_opens_a_sum_of_fewer_than_are_tolerated(kind: type[Message]) -> None:
    """Five of nine are enough for the secure sum, but six must be left of the nine that were counted."""
    one = federation(9, mode="semi-honest")
    assert one.configuration.parameters(9).threshold == 5
    on_message(one, ALL[0], kind, nth=2, act=lambda: kill(one, *ALL[1:5]))
    one.run()
    (done,) = one.outcome(RoundDone)
    assert (done.total, done.code) == (None, Code.THRESHOLD)
    assert {drop.member for drop in done.dropped} == set(ALL[1:5])
    # Once of the counts; never of the updates.
    assert sum(parcel.packet.kind is UnmaskShares for parcel in one.log) == 9


@pytest.mark.parametrize("kind", [AdvertiseKeys, MaskedInput])
def test_who_is_lost_in_the_first_stage_is_not_in_the_second(kind: type[Message]) -> None:
    one = federation(rounds=2)
    on_message(one, ALL[0], kind, nth=1, act=lambda: one.kill("client-4"))
    one.run()
    first, second = one.outcome(RoundDone)
    assert first.cohort == ALL
    assert first.survivors == second.survivors == (*ALL[:4], ALL[5])
    assert [(drop.member, drop.included) for drop in first.dropped] == [("client-4", False)]
    wanted = counts(one, first.survivors)
    np.testing.assert_array_equal(weights(one, first), np.where(wanted >= FEWEST + 1, wanted, 0))


def test_who_was_counted_and_left_before_the_second_stage_is_not_waited_for() -> None:
    one = federation()
    on_message(one, ALL[0], UnmaskShares, nth=1, act=lambda: one.kill("client-5"))
    one.run()
    (done,) = one.outcome(RoundDone)
    assert done.survivors == ALL[:5]
    assert [(drop.member, drop.included) for drop in done.dropped] == [("client-5", True)]
    wanted = counts(one, ALL)
    np.testing.assert_array_equal(weights(one, done), np.where(wanted >= FEWEST + 2, counts(one, ALL[:5]), 0))


def test_no_second_stage_is_begun_with_fewer_than_may_open_it() -> None:
    """Three of nine are tolerated, and four are lost when the counts are open."""
    one = federation(9, mode="semi-honest")
    on_message(one, ALL[0], UnmaskShares, nth=1, act=lambda: kill(one, *ALL[1:5]))
    one.run()
    (done,) = one.outcome(RoundDone)
    assert (done.total, done.code) == (None, Code.THRESHOLD)
    assert "5 of the 9 clients that were counted are left; not more than 3 may be lost" in done.detail
    assert StartSecondStage not in {parcel.packet.kind for parcel in one.log}


def test_no_second_stage_is_begun_that_nothing_protects() -> None:
    """Two fifths may be corrupt: eleven clients have a threshold, ten have none."""
    one = federation(11, corrupt=0.4, dropout=0.1)
    on_message(one, ALL[0], UnmaskShares, nth=1, act=lambda: one.kill("client-5"))
    one.run()
    (done,) = one.outcome(RoundDone)
    assert (done.total, done.code) == (None, Code.THRESHOLD)
    assert done.detail.startswith("after the sum of counts: no threshold protects 10 clients against 4 corrupt ones")
    assert StartSecondStage not in {parcel.packet.kind for parcel in one.log}


def test_what_a_late_client_says_in_the_first_stage_bars_nobody() -> None:
    """Its training ended after the others had gone on to the second stage."""
    one = federation(rounds=2)
    one.idle = {"client-2"}

    def late() -> None:
        one.idle.clear()
        one.emit("client-2", one.clients["client-2"].contribute(1, one.train("client-2", 1), one.now))

    on_message(one, SERVER, Chunk, nth=7, act=late)  # The first chunk of the limits.
    one.run()
    first, second = one.outcome(RoundDone)
    assert "client-2" not in first.survivors
    assert second.survivors == ALL


def test_a_late_client_that_gives_up_the_first_stage_is_in_the_next_round() -> None:
    """It is out of this one anyway, and stays in the session."""
    one = federation(rounds=2)
    one.idle = {"client-2"}

    def late() -> None:
        one.idle.clear()
        one.put(one.forge("client-2", SERVER, Abort(code=Code.LOCAL, detail="", culprit=""), round=1))

    on_message(one, SERVER, Chunk, nth=7, act=late)
    one.run()
    assert "client-2" not in one.outcome(RoundDone)[0].survivors
    _, second = (report for report in one.outcome(Report, SERVER) if report.event == "round")
    assert second.fields["cohort"] == list(ALL)


def second_stage(one: MemoryFederation) -> bool:
    return any(parcel.packet.kind is StartSecondStage for parcel in one.log)


def test_who_still_fetches_the_model_in_the_second_stage_is_late_and_not_barred() -> None:
    one = federation(rounds=2)

    def hook(parcel: Parcel) -> list[Parcel]:
        if (parcel.receiver, parcel.packet.kind) == (ALL[2], Chunk) and not one.outcome(RoundDone):
            held.append(parcel)
            return []
        if (parcel.receiver, parcel.packet.kind) == (SERVER, Fetch) and len(held) == 1 and second_stage(one):
            held.append(parcel)
            one.put(one.forge(ALL[2], SERVER, Fetch(chunk=1), round=1))
        return [parcel]

    held: list[Parcel] = []
    one.hook = hook
    one.run()
    first, second = one.outcome(RoundDone)
    assert len(held) == 2
    assert first.survivors == second.survivors == (*ALL[:2], *ALL[3:])
    assert not [report for report in one.outcome(Report, SERVER) if report.event == "refused"]


@pytest.mark.parametrize(
    ("change", "code", "fetches"),
    [
        (lambda start: StartSecondStage(cohort=encode_members(range(1, 6), 6), limits=start.limits), Code.MEMBERS, 0),
        (lambda start: StartSecondStage(cohort=encode_members(range(3), 6), limits=start.limits), Code.THRESHOLD, 0),
        # An honest server finds that its advert is signed for other limits, before they are fetched.
        (lambda start: StartSecondStage(cohort=start.cohort, limits=Blob(digest=bytes(32), size=8)), Code.SIGNATURE, 1),
        (
            lambda start: StartSecondStage(cohort=start.cohort, limits=Blob(digest=start.limits.digest, size=9)),
            Code.MODEL,
            0,
        ),
    ],
    ids=["without itself", "too few", "other limits", "limits of another length"],
)
def test_a_client_refuses(change: Callable[[StartSecondStage], Message], code: Code, fetches: int) -> None:
    one = federation()

    def hook(parcel: Parcel) -> list[Parcel]:
        if (parcel.receiver, parcel.packet.kind) == (ALL[0], StartSecondStage):
            return [altered(parcel, message=change(parcel.message))]  # type: ignore[arg-type]
        return [parcel]

    one.hook = hook
    one.run()
    assert [over.code for over in one.outcome(RoundOver, ALL[0])] == [code]
    (done,) = one.outcome(RoundDone)
    assert done.survivors == ALL[1:]
    # It has asked for the model, and for no limits but such as it could use.
    asked = [parcel for parcel in one.log if (parcel.sender, parcel.kind) == (ALL[0], "fetch")]
    assert len(asked) == 1 + fetches


def test_a_client_that_was_not_counted_is_no_member_of_the_second_stage() -> None:
    """The server takes somebody in whose contributions were not counted."""
    one = federation()
    on_message(one, ALL[0], MaskedInput, nth=1, act=lambda: one.kill("client-4"))
    cheated = one.hook

    def hook(parcel: Parcel) -> list[Parcel]:
        if (parcel.receiver, parcel.packet.kind) == (ALL[0], StartSecondStage):
            start = parcel.message
            assert isinstance(start, StartSecondStage)
            parcel = altered(parcel, message=StartSecondStage(cohort=encode_members(range(6), 6), limits=start.limits))
        return cheated(parcel)  # type: ignore[return-value]

    one.hook = hook
    one.run()
    assert [over.code for over in one.outcome(RoundOver, ALL[0])] == [Code.MEMBERS]


def test_clients_with_different_limits_make_noise_and_open_nothing() -> None:
    """A server that tells one client wider limits: it is in another sum than the others, who miss it."""
    one = federation()
    wide = b"\xff" * 7 + b"\xf0"

    def hook(parcel: Parcel) -> list[Parcel]:
        if parcel.receiver != ALL[0]:
            return [parcel]
        message = parcel.message
        if isinstance(message, StartSecondStage):
            return [
                altered(parcel, message=StartSecondStage(cohort=message.cohort, limits=announce(wide, Label.LIMITS)))
            ]
        return (
            [altered(parcel, payload=wide)]
            if parcel.packet.payload and len(parcel.packet.payload) == len(wide)
            else [parcel]
        )

    one.hook = hook
    one.run()
    (done,) = one.outcome(RoundDone)
    # Its advert is signed for another sum, so that the server itself must drop it.
    assert done.survivors == ALL[1:]
    assert [(drop.member, drop.code) for drop in done.dropped] == [(ALL[0], Code.SIGNATURE)]


def test_limits_come_in_chunks() -> None:
    """And every chunk of them once."""
    parameters = 8 * (1 << 20) + 5
    one = federation(3, parameters=parameters, mode="semi-honest")
    one.run()
    (done,) = one.outcome(RoundDone)
    wanted = counts(one, done.survivors)
    np.testing.assert_array_equal(weights(one, done), np.where(wanted >= FEWEST + 1, wanted, 0))
    asked = [parcel.message for parcel in one.log if parcel.sender == ALL[0] and parcel.packet.kind is Fetch]
    assert asked[4 * parameters // CHUNK_BYTES + 1 :] == [Fetch(chunk=0), Fetch(chunk=1)]


def test_who_asks_for_limits_twice_or_too_early_is_out() -> None:
    for nth, code in ((1, Code.UNEXPECTED), (2, Code.UNEXPECTED)):
        one = federation()

        def forged(one: MemoryFederation = one) -> None:
            one.put(one.forge(ALL[0], SERVER, Fetch(chunk=0), round=1))

        on_message(one, ALL[1], AdvertiseKeys, nth=nth, act=forged)
        one.run()
        refused = [report for report in one.outputs if getattr(report[1], "event", "") == "refused"]
        assert [report[1].fields["code"] for report in refused] == [code.name]


def test_the_context_of_either_stage_is_its_own() -> None:
    one = federation()
    agreement = agree(
        session=bytes(32), round=1, roster=one.roster, configuration=one.configuration, cohort=ALL, model=bytes(32)
    )
    first = counting_agreement(agreement, one.configuration)
    second = second_agreement(agreement, one.configuration, counted=6, limits=bytes(32))
    other = second_agreement(agreement, one.configuration, counted=6, limits=bytes(31) + b"1")
    assert len({agreement.context, first.context, second.context, other.context}) == 4
    assert (second.fewest_survivors, first.ring, first.length) == (4, COUNTING_RING, 3)


def test_a_sum_that_is_none_of_counts_gives_no_limits() -> None:
    one = federation()
    total = packing(one.configuration).encode(np.ones(60, np.bool_)) * np.uint64(5)
    assert derive_limits(total, one.configuration, counted=5)
    with pytest.raises(ValueError, match="counts 5 of 4 contributors"):
        derive_limits(total, one.configuration, counted=4)


def test_a_client_that_counts_wrongly_ends_the_round_for_all() -> None:
    """Nobody can tell who it was; the round is given up, and the next one begins anew."""
    one = federation(4, rounds=2)
    honest = one.train

    def train(name: str, round: int) -> Any:
        counts = honest(name, round)
        return counts * np.uint64(3) if (name, round) == (ALL[0], 1) else counts

    one.train = train  # type: ignore[method-assign]
    one.run()
    first, second = one.outcome(RoundDone)
    assert first.total is None
    assert (first.code, first.culprit) == (Code.VECTOR, "")
    assert second.survivors == ALL[:4]


def test_counting_costs_little() -> None:
    """What it costs exactly is declared in costs.py, and held to the links by the tests of that."""
    one = federation(5, parameters=30_000, dropout=0.2).run()
    first, second = (
        sum(len(frame) for frame in parcel.frames)
        for parcel in one.log
        if (parcel.sender, parcel.packet.kind) == (ALL[0], MaskedInput)
    )
    assert first < 0.1 * second


def test_nothing_is_transmitted_of_the_update_before_the_limits_are_known() -> None:
    """A client masks its counts only; the update is encoded after the limits came."""
    one = federation().run()
    order = [parcel.packet.kind for parcel in one.log if ALL[0] in (parcel.sender, parcel.receiver)]
    start = order.index(StartSecondStage)
    assert start < order.index(Fetch, start) < order.index(Chunk, start)
    first_vector = order.index(MaskedInput)
    assert first_vector < order.index(StartSecondStage) < order.index(MaskedInput, first_vector + 1)
