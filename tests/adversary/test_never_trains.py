"""A client that is in every round and never has a vector: it costs the others little, and is not excluded."""

import pytest

from tacit.protocol.core.machine import Ended
from tacit.protocol.session.rounds import RoundDone
from tacit.simulate.world.federation import MemoryFederation, small_configuration

CHEAT = "client-4"
TRAINING, TRAIN, PHASE = 5.0, 600.0, 60.0


@pytest.mark.threat("client/never-trains")
def test_who_never_trains_holds_up_fewer_and_fewer_rounds() -> None:
    one = MemoryFederation(small_configuration(5, train_seconds=TRAIN, phase_seconds=PHASE), 5, rounds=60)
    one.training_seconds, one.idle = lambda: TRAINING, {CHEAT}
    one.run()
    rounds = one.outcome(RoundDone)
    assert all(round.survivors == one.roster.clients[:4] for round in rounds)
    assert [round.round for round in rounds if CHEAT in round.cohort] == [1, 2, 4, 7, 12, 21, 38]
    assert one.now <= 2 * (TRAIN + PHASE) + 58 * 2 * TRAINING
    assert one.ended(CHEAT) == Ended(None, "the federation is finished")
