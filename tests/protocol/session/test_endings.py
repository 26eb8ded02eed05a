"""What a server may say late or early without a lie: the end of an old round, and of the federation."""

import pytest

from tacit.protocol.core.errors import Code, LocalProtocolError
from tacit.protocol.core.events import MessageRefused
from tacit.protocol.core.machine import Ended
from tacit.protocol.core.messages import Abort, Fetch, Message
from tacit.protocol.session.messages import EndRound, Finish
from tacit.protocol.session.rounds import RoundDone
from tacit.protocol.session.states import SessionState, TrainingState
from tacit.protocol.sum.messages import FetchVector
from tacit.simulate.world.federation import SERVER, MemoryFederation, small_configuration
from tests.cases import cases

CLIENT = "client-0"


def test_the_end_of_an_old_round_is_ignored() -> None:
    one = MemoryFederation(small_configuration(5), 5, rounds=2)
    one.paused = True
    for name in one.roster.clients:
        one.start_client(name)
    one.advance()
    one.idle = {CLIENT}
    one.paused = False
    one.settle(until=1.0)
    client = one.clients[CLIENT]
    assert (client.state, client.round) == (TrainingState.TRAINING, 2)
    assert one.put(one.forge(SERVER, CLIENT, EndRound(code=Code.THRESHOLD, detail=""), round=1)) == []
    assert one.put(one.forge(SERVER, CLIENT, FetchVector(chunk=0), round=1)) == []
    assert (client.state, client.ignored) == (TrainingState.TRAINING, 2)


@cases(
    "said",
    [Abort(code=Code.LOCAL, detail="", culprit=""), Fetch(chunk=0)],
)
def test_what_a_client_still_says_of_an_old_round_changes_nothing(said: Message) -> None:
    one = MemoryFederation(small_configuration(5), 5, rounds=2)
    one.paused = True
    one.start()
    one.idle = {CLIENT}
    one.paused = False
    one.settle(until=1.0)
    assert one.server.round == 2
    assert one.put(one.forge(CLIENT, SERVER, said, round=1)) == []
    assert CLIENT in one.server.presence
    assert one.server.sum is not None
    assert one.server.sum.dropped == {}


def test_who_is_barred_or_will_not_come_is_not_waited_for() -> None:
    one = MemoryFederation(small_configuration(4), 4)
    one.start(*one.roster.clients[:3])
    one.put(one.forge(CLIENT, SERVER, EndRound(code=None, detail=""), round=0))
    assert one.server.presence.barred == {CLIENT}
    one.start("client-3")
    (done,) = one.settle().outcome(RoundDone)
    assert (done.cohort, one.now) == (one.roster.clients[1:], 0.0)

    one = MemoryFederation(small_configuration(4), 4)
    one.start(*one.roster.clients[1:])
    assert one.server.state is SessionState.GATHERING
    one.emit(SERVER, one.server.do_without({CLIENT}, one.now))
    (done,) = one.settle().outcome(RoundDone)
    assert (done.cohort, one.now) == (one.roster.clients[1:], 0.0)

    one = MemoryFederation(small_configuration(4), 4)
    one.start(*one.roster.clients[:2])
    one.emit(SERVER, one.server.do_without(one.roster.clients[2:], one.now))
    (ended,) = one.settle().outcome(Ended, SERVER)
    assert (ended.code, one.now) == (Code.THRESHOLD, 0.0)


def test_a_model_is_fetched_in_its_round_only() -> None:
    one = MemoryFederation(small_configuration(5), 5)
    one.idle = {CLIENT}
    one.start()
    one.put(one.forge(CLIENT, SERVER, Fetch(chunk=0), round=0))
    refused = [(event.member, event.code) for event in one.outcome(MessageRefused, SERVER)]
    assert refused == [(CLIENT, "UNEXPECTED")]
    (done,) = one.settle().outcome(RoundDone)
    assert done.survivors == one.roster.clients[1:]


def test_a_client_before_and_after_its_rounds() -> None:
    one = MemoryFederation(small_configuration(5), 5)
    with pytest.raises(LocalProtocolError, match="'client-0' has accepted no configuration"):
        _ = one.start_client(CLIENT).configuration

    one = MemoryFederation(small_configuration(4), 4).run()
    assert one.ended(CLIENT) is not None
    assert not one.clients[CLIENT].untold

    one = MemoryFederation(small_configuration(5), 5).run()
    assert {parcel.packet.envelope.round for parcel in one.log if parcel.kind in ("hello", "welcome", "finish")} == {0}


def test_a_finish_in_the_middle_of_a_sum_ends_the_session() -> None:
    one = MemoryFederation(small_configuration(5), 5)
    one.idle = {CLIENT}
    for name in one.roster.clients:
        one.start_client(name)
    one.advance()
    one.emit(CLIENT, one.clients[CLIENT].contribute(1, one.draw(CLIENT, 1), one.now))
    one.put(one.forge(SERVER, CLIENT, Finish(), round=0))
    assert one.ended(CLIENT) == Ended(None, "the federation is finished")
    assert one.clients[CLIENT].next_deadline is None
