"""A client that says hello without end: the server's work for it is bounded, and the others lose nothing."""

import numpy as np
import pytest

from tacit.protocol.core.machine import Report
from tacit.protocol.session.messages import Hello
from tacit.protocol.session.rounds import RoundDone
from tacit.protocol.session.server_session import HELLO_SECONDS, HELLOS
from tacit.simulate.world.federation import SERVER, MemoryFederation, small_configuration
from tacit.simulate.world.world import Parcel

CHEAT, TIMES = "client-4", 500


@pytest.mark.threat("client/endless-hellos")
def test_five_hundred_hellos_in_every_phase_are_answered_a_few_times() -> None:
    one = MemoryFederation(small_configuration(5), 5, rounds=6)
    one.training_seconds = lambda: 1.0
    flooding = True

    def hook(parcel: Parcel) -> list[Parcel]:
        """The cheat says nothing but hello, whatever it hears."""
        if CHEAT not in (parcel.sender, parcel.receiver) or not flooding or parcel.kind == "hello":
            return [parcel]
        return []

    one.hook = hook
    one.start()
    hello = next(parcel for parcel in one.log if parcel.packet.kind is Hello and parcel.sender == CHEAT)
    for number in range(TIMES):
        one.at(one.now + number * 3.0 / TIMES, lambda: one.put(hello))
    one.settle(until=3.0)
    joined = [report.fields["member"] for report in one.outcome(Report) if report.event == "joined"]
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
    refused = [report for report in one.outcome(Report, SERVER) if report.event == "refused"]
    assert refused == []
