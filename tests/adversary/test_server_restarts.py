"""A server that begins again: in the middle of a round, in a session it has had, or without the client it is after."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from tacit.protocol.core.errors import Code
from tacit.protocol.core.messages import Abort, Chunk, Message
from tacit.protocol.session.messages import EndRound, StartRound, Welcome
from tacit.protocol.session.rounds import RoundDone, RoundOver, Train
from tacit.protocol.sum.messages import (
    AdvertiseKeys,
    ConfirmSurvivors,
    MaskedInput,
    PeerKeys,
    PeerShares,
    ShareKeys,
    Survivors,
    UnmaskRequest,
    UnmaskShares,
)
from tacit.simulate.world.federation import SERVER
from tacit.simulate.world.world import Parcel, altered, written
from tests.cases import cases

VICTIM = "client-0"
Deceived = Callable[..., Any]
CELLS: dict[str, dict[str, Any]] = {
    "active": {},
    "semi-honest": {"mode": "semi-honest"},
    "no secure sum": {"mode": "none"},
    "group key": {"group_key": True},
}
every_cell = cases("cell", CELLS)


def sent(one: Any, kind: type[Message], name: str) -> int:
    return sum(parcel.sender == name and parcel.packet.kind is kind for parcel in one.log)


def check_nothing_entered_twice(one: Any) -> None:
    """Whatever a client said in a sum, it said once in each round; and its journal has each round once."""
    once = (AdvertiseKeys, ShareKeys, MaskedInput, ConfirmSurvivors, UnmaskShares)
    said = Counter(
        (parcel.sender, parcel.packet.kind, parcel.packet.envelope.session, parcel.packet.envelope.round)
        for parcel in one.log
        if parcel.packet.kind in once
    )
    assert max(said.values(), default=0) <= 1
    for name, journal in one.journals.items():
        assert len(journal) == len({(entry.session, entry.round) for entry in journal}), name


def last_said(one: Any, kind: type[Message] | None = None) -> Parcel:
    """The last message, or the last of that kind, that reached the victim."""
    return next(p for p in reversed(one.log) if p.receiver == VICTIM and kind in (None, p.packet.kind))


def the_round_again(one: Any, parcel: Parcel) -> Parcel:
    return altered(parcel, message=last_said(one, StartRound).message)


def the_next_round(one: Any, parcel: Parcel) -> Parcel:
    return altered(parcel, message=last_said(one, StartRound).message, round=2)


def the_session_again(one: Any, parcel: Parcel) -> Parcel:
    return altered(parcel, message=last_said(one, Welcome).message, round=0)


def the_last_message_again(one: Any, parcel: Parcel) -> Parcel:
    return last_said(one)


def the_keys_again(one: Any, parcel: Parcel) -> Parcel:
    return altered(parcel, message=last_said(one, PeerKeys).message)


RESTARTS: dict[Callable[[Any, Parcel], Parcel], Code] = {
    the_round_again: Code.SESSION,
    the_next_round: Code.UNEXPECTED,
    the_session_again: Code.UNEXPECTED,
    the_last_message_again: Code.SEQUENCE,
    the_keys_again: Code.UNEXPECTED,
}
MOMENTS = (Chunk, PeerKeys, PeerShares, Survivors, UnmaskRequest, EndRound)
"""What the server says next where it begins again instead, in every phase of a round."""


@pytest.mark.threat("server/restarts-midway")
@cases(
    ("moment", "restart"),
    [
        (moment, restart)
        for restart in RESTARTS
        for moment in MOMENTS
        if (restart is not the_keys_again or moment not in (Chunk, PeerKeys))
        # After the last word of a round the next one is none too early.
        and (restart is not the_next_round or moment is not EndRound)
    ],
)
def test_nothing_is_begun_again_in_a_session(
    deceived: Deceived, moment: type[Message], restart: Callable[[Any, Parcel], Parcel]
) -> None:
    one = deceived()
    told: list[Parcel] = []

    def hook(parcel: Parcel) -> list[Parcel]:
        if parcel.receiver != VICTIM or (not told and parcel.packet.kind is not moment):
            return [parcel]
        told.append(parcel)
        return [restart(one, parcel)] if len(told) == 1 else []

    one.hook = hook
    one.paused = moment is not EndRound
    one.start()
    one.settle(until=1000.0)
    aborts = [parcel.message.code for parcel in one.log if parcel.sender == VICTIM and parcel.packet.kind is Abort]
    if moment is EndRound and restart is the_keys_again:
        assert (aborts, one.clients[VICTIM].ignored) == ([], 1)
    else:
        assert aborts == [RESTARTS[restart]]
    assert sent(one, AdvertiseKeys, VICTIM) == 1
    assert sent(one, MaskedInput, VICTIM) == (moment in (Survivors, UnmaskRequest, EndRound))
    assert sent(one, UnmaskShares, VICTIM) == (moment is EndRound)
    (done,) = one.outcome(RoundDone)
    if done.total is not None:
        assert (done.total == one.plain_sum(done)).all()
    if moment is EndRound:
        one.restart()
    one.check_honest_round()
    check_nothing_entered_twice(one)


def moments(deceived: Deceived, cell: str) -> list[tuple[type[Message], int]]:
    """What the victim says in a round: the message, and how many of its kind it has said by then."""
    one = deceived(**CELLS[cell])
    one.run()
    kinds = [parcel.packet.kind for parcel in one.log if parcel.sender == VICTIM and parcel.packet.envelope.round]
    return [(kind, kinds[: place + 1].count(kind)) for place, kind in enumerate(kinds)]


@pytest.mark.threat("server/restarts-midway")
@every_cell
def test_a_client_that_restarts_in_the_middle_does_not_answer_again(deceived: Deceived, cell: str) -> None:
    """The server goes back to the beginning of the round with it, after each of its messages."""
    for kind, nth in moments(deceived, cell):
        one = deceived(**CELLS[cell])
        said = Counter[type[Message]]()

        def hook(
            parcel: Parcel, one: Any = one, said: Counter[type[Message]] = said, last: Any = (kind, nth)
        ) -> list[Parcel]:
            if parcel.sender == VICTIM and VICTIM in one.clients:
                said[parcel.packet.kind] += 1
                if (parcel.packet.kind, said[parcel.packet.kind]) == last:
                    one.kill(VICTIM)
            return [parcel]

        one.hook = hook
        one.paused = True
        one.start()
        one.hook = lambda parcel: [parcel]
        start = last_said(one, StartRound).message
        one.start_client(VICTIM)
        one.advance()
        before = len(one.log)
        outputs = one.put(one.forge(SERVER, VICTIM, start, round=1))
        one.advance()
        overs = [output.code for output in outputs if isinstance(output, RoundOver)]
        assert overs == [Code.SESSION], (kind, nth)
        told = {parcel.packet.kind for parcel in one.log[before:] if parcel.sender == VICTIM}
        assert told == {Abort}
        assert {entry.round for entry in one.journals[VICTIM]} <= {1}
        check_nothing_entered_twice(one)
    one.restart()
    one.check_honest_round()
    check_nothing_entered_twice(one)


@pytest.mark.threat("server/restarts-midway")
@cases("cell", [name for name in CELLS if name != "group key"])
def test_a_session_cannot_be_used_a_second_time(deceived: Deceived, cell: str) -> None:
    """A server that takes the name of its former session, and counts from its beginning, gets no second answer."""
    one = deceived(**CELLS[cell])
    one.run()
    session = one.server.session
    one.start_server()
    one.server.presence.session = session
    one.rounds_left = 1
    one.start()
    one.settle()
    assert one.outcome(RoundDone)[-1].code is Code.THRESHOLD
    overs = one.outcome(RoundOver)[5:]
    assert [(over.code, over.detail) for over in overs] == [
        (Code.SESSION, "this client was in round 1 of this session before")
    ] * 5
    one.restart()
    one.check_honest_round()
    check_nothing_entered_twice(one)


@pytest.mark.threat("server/restarts-midway")
def test_a_session_cannot_be_used_again_by_a_client_that_was_in_another_meanwhile(deceived: Deceived) -> None:
    """It goes by its journal also where its link no longer knows the session."""
    one = deceived()
    one.run()
    welcome, start = last_said(one, Welcome), last_said(one, StartRound)
    one = deceived()
    one.rounds_left = 2
    one.paused = True
    one.start()
    gone = Abort(code=Code.LEFT, detail="", culprit=VICTIM)
    one.put(one.forge(SERVER, VICTIM, gone, round=0))
    first = welcome.packet.envelope.link
    other = {"session": bytes(range(32)), "link": first + 1}
    session = {"session": one.server.session, "link": first + 2}
    one.put(written(SERVER, VICTIM, welcome.message, round=0, sequence=0, **other))
    one.put(written(SERVER, VICTIM, gone, round=0, sequence=1, **other))
    one.put(written(SERVER, VICTIM, welcome.message, round=0, sequence=0, **session))
    outputs = one.put(written(SERVER, VICTIM, start.message, round=1, sequence=1, **session))
    overs = [(output.code, output.detail) for output in outputs if isinstance(output, RoundOver)]
    assert overs == [(Code.SESSION, "this client was in round 1 of this session before")]
    assert len(one.journals[VICTIM]) == 1
    one.restart()
    one.check_honest_round()
    check_nothing_entered_twice(one)


@pytest.mark.threat("server/restarts-midway")
@every_cell
def test_a_server_that_dies_in_any_phase_repeats_the_round_without_one_client(deceived: Deceived, cell: str) -> None:
    """That is no cheat: who is gone is not waited for. Whatever was said, the four who are there complete it."""
    one = deceived(**CELLS[cell])
    one.run()
    for moment in dict.fromkeys(parcel.packet.kind for parcel in one.log if parcel.packet.envelope.round):
        one = deceived(**CELLS[cell])
        lost: list[Parcel] = []

        def hook(parcel: Parcel, moment: type[Message] = moment, lost: list[Parcel] = lost) -> list[Parcel]:
            if parcel.packet.kind is moment or lost:
                lost.append(parcel)
                return []
            return [parcel]

        one.hook = hook
        one.paused = moment is not EndRound
        one.start()
        one.hook = lambda parcel: [parcel]
        one.kill(VICTIM)
        one.paused, one.rounds_left = True, 1
        one.start_server()
        one.outputs.clear()
        others = one.roster.clients[1:]
        one.start(*others)
        one.settle(until=one.now + 1000.0)
        (done,) = one.outcome(RoundDone)
        assert (done.survivors, len(one.outcome(Train))) == (others, 4), moment
        assert (done.total == one.plain_sum(done)).all()
        check_nothing_entered_twice(one)
    one.restart()
    one.check_honest_round()
    check_nothing_entered_twice(one)


@pytest.mark.threat("server/subtraction")
@cases("cell", ["active", "semi-honest"])
def test_a_round_repeated_without_the_victim_gives_its_update_as_a_difference(deceived: Deceived, cell: str) -> None:
    """What nothing prevents: clients compute the same from the same model. Each sum alone is of all who were asked; no
    mask serves twice, so that the vectors tell nothing that the sums do not."""
    one = deceived(**CELLS[cell])
    packing = one.configuration.packing()
    updates = {name: one.draw(name, 0) for name in one.roster.clients}

    def draw(name: str, round: int) -> Any:
        one.vectors[name, round] = updates[name]
        return updates[name]

    one.draw = draw
    one.run()
    one.start_server()
    one.rounds_left = 1
    others = one.roster.clients[1:]
    one.start(*others)
    one.settle()
    first, second = one.outcome(RoundDone)
    assert (first.survivors, second.survivors) == (one.roster.clients, others)
    np.testing.assert_array_equal((first.total - second.total).astype(packing.ring.word), updates[VICTIM])
    masked = [bytes(parcel.packet.payload) for parcel in one.log if parcel.packet.kind is MaskedInput]
    assert len(masked) == len(set(masked)) == 9
    keys = [
        key
        for parcel in one.log
        if isinstance(advert := parcel.message, AdvertiseKeys)
        for key in (advert.channel_key, advert.mask_key)
    ]
    assert len(keys) == len(set(keys)) == 18
    one.restart()
    one.check_honest_round()
    check_nothing_entered_twice(one)


@pytest.mark.threat("server/subtraction")
def test_a_sum_of_fewer_than_the_smallest_cohort_is_never_opened(deceived: Deceived) -> None:
    one = deceived()
    one.run()
    one.start_server()
    one.server._smallest_cohort, one.server._configuration = 2, replace(one.configuration, colluders=0)
    one.outputs.clear()
    one.rounds_left = 1
    one.start(*one.roster.clients[3:])
    one.settle()
    assert [(over.round, over.code) for over in one.outcome(RoundOver)] == [(1, Code.POLICY)] * 2
    assert [done.total for done in one.outcome(RoundDone)] == [None]
    one.restart()
    one.check_honest_round()


def check_an_old_round_is_not_started_again(deceived: Deceived, round: int) -> None:
    one = deceived()
    one.rounds_left = 2

    def hook(parcel: Parcel) -> list[Parcel]:
        again = parcel.receiver == VICTIM and parcel.packet.kind is StartRound and parcel.packet.envelope.round == 2
        return [altered(parcel, round=round)] if again else [parcel]

    one.hook = hook
    one.run()
    assert one.victim_ended.code is Code.SESSION
    assert f"round {round} is started a second time" in one.victim_ended.detail
    one.restart()
    one.check_honest_round()


@pytest.mark.threat("server/restarts-midway")
def test_a_round_is_not_started_a_second_time(deceived: Deceived) -> None:
    for round in [0, 1]:
        check_an_old_round_is_not_started_again(deceived, round)

    one = deceived()
    one.idle = {VICTIM}
    one.start()
    one.put(one.forge(SERVER, VICTIM, last_said(one, StartRound).message, round=1))
    assert one.victim_ended.code is Code.SESSION
    one.idle = set()
    one.check_honest_round()
