"""What a server may say late or early without a lie: the end of an old round, and of the federation."""

import pytest

from tacit.protocol.core.errors import Code, LocalProtocolError
from tacit.protocol.core.outputs import Ended
from tacit.protocol.session.messages import EndRound, Finish
from tacit.protocol.session.tables import TrainingState
from tacit.simulate.world.federation import SERVER, MemoryFederation, small_configuration

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
    assert (client.state, client.ignored) == (TrainingState.TRAINING, 1)


def test_a_hello_belongs_to_no_round() -> None:
    one = MemoryFederation(small_configuration(5), 5).run()
    assert {parcel.packet.envelope.round for parcel in one.log if parcel.kind in ("hello", "welcome", "finish")} == {0}


def test_there_is_no_configuration_before_one_is_accepted() -> None:
    one = MemoryFederation(small_configuration(5), 5)
    with pytest.raises(LocalProtocolError, match="'client-0' has accepted no configuration"):
        _ = one.start_client(CLIENT).configuration


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
