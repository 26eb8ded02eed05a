"""A client that says hello without end: the server's work for it is bounded, and the others lose nothing."""

import numpy as np
import pytest

from tacit.protocol.core.events import MessageRefused
from tacit.protocol.core.messages import Abort, Message, Resume
from tacit.protocol.core.rate_limit import HELLO_SECONDS, HELLOS
from tacit.protocol.session.events import ClientJoined
from tacit.protocol.session.messages import Hello
from tacit.protocol.session.rounds import RoundDone
from tacit.simulate.world.federation import SERVER, MemoryFederation, small_configuration
from tacit.simulate.world.world import Parcel
from tests.cases import cases

CHEAT, TIMES = "client-4", 500


@pytest.mark.threat("client/endless-hellos")
def test_five_hundred_hellos_in_every_phase_are_answered_a_few_times() -> None:
    one = MemoryFederation(small_configuration(5), 5, rounds=6)
    one.training_seconds = lambda: 1.0
    flooding = True

    def hook(parcel: Parcel) -> list[Parcel]:
        if CHEAT not in (parcel.sender, parcel.receiver) or not flooding or parcel.kind == "hello":
            return [parcel]
        return []

    one.hook = hook
    one.start()
    hello = next(parcel for parcel in one.log if parcel.packet.kind is Hello and parcel.sender == CHEAT)
    for number in range(TIMES):
        one.at(one.now + number * 3.0 / TIMES, lambda: one.put(hello))
    one.settle(until=3.0)
    joined = [event.member for event in one.outcome(ClientJoined)]
    assert joined.count(CHEAT) == HELLOS
    # It comes to its senses, is answered when its turn comes, and is in the rounds that follow.
    flooding = False
    one.start_client(CHEAT)
    one.training_seconds = lambda: float(HELLO_SECONDS)
    one.settle()
    rounds = one.outcome(RoundDone)
    assert len(rounds) == 6
    assert all(set(one.roster.clients[:4]) <= set(done.survivors) for done in rounds)
    assert CHEAT not in rounds[0].survivors
    assert CHEAT in rounds[-1].survivors
    for done in rounds:
        np.testing.assert_array_equal(done.total, one.plain_sum(done))
    assert one.outcome(MessageRefused, SERVER) == []


@pytest.mark.threat("client/endless-hellos", "client/endless-resumptions")
@cases("kind", [Hello, Resume])
def test_what_is_said_outside_of_rounds_names_none(kind: type[Message]) -> None:
    """Each round that a hello named was an entry of the server's traffic, and a line of its log; it bars its sender."""
    one = MemoryFederation(small_configuration(5), 5, rounds=2)
    one.training_seconds = lambda: 60.0
    one.start()
    one.settle(until=one.now + 1.0)
    message = kind(roster=one.roster.hash) if kind is Hello else kind()
    for number in range(1, 50):
        one.put(one.forge(CHEAT, SERVER, message, round=1000 + number))
    one.settle()
    assert max(round for round, _ in one.server.traffic.received) <= 2
    assert CHEAT in one.server.presence.barred
    assert [set(done.survivors) for done in one.outcome(RoundDone)] == [set(one.roster.clients[:4])] * 2


@pytest.mark.threat("client/endless-resumptions")
def test_five_hundred_resumptions_of_nothing_are_answered_a_few_times() -> None:
    one = MemoryFederation(small_configuration(5), 5, rounds=1)
    one.training_seconds = lambda: 60.0
    one.start()
    for number in range(TIMES):
        one.at(
            one.now + number * 3.0 / TIMES,
            lambda: one.put(one.forge(CHEAT, SERVER, Resume(), round=0, session=b"\x07" * 32)),
        )
    one.settle(until=one.now + 3.0)
    answers = [parcel for parcel in one.log if parcel.receiver == CHEAT and parcel.packet.kind is Abort]
    assert len(answers) <= HELLOS
    one.settle()
    (done,) = one.outcome(RoundDone)
    assert set(one.roster.clients[:4]) <= set(done.survivors)
