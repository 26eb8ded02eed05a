"""Clients that say that their long vector is ready, and do not send it: they cost the others one phase, and no sum."""

from collections import Counter

import numpy as np
import pytest

from tacit.protocol.core.errors import Code
from tacit.protocol.session.messages import Hello
from tacit.protocol.session.rounds import RoundDone
from tacit.protocol.sum import agreement as agreement_module
from tacit.protocol.sum.agreement import UPLOADS
from tacit.protocol.sum.messages import VectorChunk
from tacit.simulate.world.federation import MemoryFederation, small_configuration
from tacit.simulate.world.world import Parcel, altered

CLIENTS = 13
CHEATS = tuple(f"client-{number}" for number in range(UPLOADS))


@pytest.mark.threat("client/stalled-uploads")
def test_four_of_thirteen_that_stall_stop_nobody_in_any_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement_module, "CHUNK_BYTES", 64)
    one = MemoryFederation(small_configuration(CLIENTS, parameters=200), CLIENTS, rounds=4)
    said: Counter[str] = Counter()

    def hook(parcel: Parcel) -> list[Parcel]:
        """Well numbered, and without a chunk in the first two rounds."""
        if parcel.sender not in CHEATS or parcel.packet.kind is Hello:
            return [parcel]
        if parcel.packet.kind is VectorChunk and parcel.packet.envelope.round < 3:
            return []
        said[parcel.sender] += 1
        return [altered(parcel, sequence=said[parcel.sender] - 1)]

    one.hook = hook
    one.run()
    stalled, again, without, honest = one.outcome(RoundDone)
    for done in (stalled, again):
        assert done.survivors == one.roster.clients[UPLOADS:]
        assert [(drop.member, drop.code) for drop in done.dropped] == [(name, Code.TIMEOUT) for name in CHEATS]
    assert (without.cohort, without.dropped) == (one.roster.clients[UPLOADS:], ())
    assert again.began - stalled.began == one.configuration.phase_seconds
    assert (honest.survivors, honest.dropped) == (one.roster.clients, ())
    for done in (stalled, again, without, honest):
        np.testing.assert_array_equal(done.total, one.plain_sum(done))
