"""A client whose bodies are as large as a body may be, and full of what is expensive to read."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from tacit.protocol.core.errors import Code
from tacit.protocol.core.messages import BODY_LIMIT
from tacit.protocol.session.rounds import RoundDone
from tacit.simulate.world.federation import MemoryFederation, small_configuration
from tacit.simulate.world.world import Parcel
from tests.cases import cases

CHEAT = "client-4"
MAPS = BODY_LIMIT - 100


@pytest.mark.threat("client/expensive-bodies")
@cases("kind", ["advertise-keys", "share-keys", "masked-input", "unmask-shares"])
def test_eight_mebibytes_of_empty_maps_cost_the_server_next_to_nothing(kind: str) -> None:
    one = MemoryFederation(small_configuration(5), 5, rounds=2)
    body = b"\x84\xafseed_commitment\xdd" + MAPS.to_bytes(4, "big") + b"\x80" * MAPS
    peaks: list[int] = []

    def hook(parcel: Parcel) -> list[Parcel]:
        if (parcel.sender, parcel.kind) != (CHEAT, kind):
            return [parcel]
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        one.put(replace(parcel, frames=(parcel.frames[0], body, *parcel.frames[2:])))
        peaks.append(tracemalloc.get_traced_memory()[1] - before)
        return []

    one.hook = hook
    tracemalloc.start()
    one.run()
    tracemalloc.stop()
    assert len(peaks) == 1
    assert peaks[0] < 1 << 20
    first, second = one.outcome(RoundDone)
    included = kind == "unmask-shares"
    assert [(drop.member, drop.code, drop.included) for drop in first.dropped] == [(CHEAT, Code.MALFORMED, included)]
    assert first.survivors == one.roster.clients[: 5 if included else 4]
    assert second.survivors == one.roster.clients[:4]
    for done in (first, second):
        np.testing.assert_array_equal(done.total, one.plain_sum(done))
