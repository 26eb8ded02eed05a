"""Clients that send nonsense where no secure aggregation hides it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tacit.protocol.core.errors import Code
from tacit.protocol.session.rounds import RoundDone
from tacit.simulate.world.federation import MemoryFederation, added, small_configuration
from tacit.simulate.world.world import Parcel, altered
from tests.cases import cases

pytestmark = pytest.mark.threat("client/plain-nonsense")

CHEAT = "client-1"
HONEST = np.ones(10, "<f4").tobytes() + b"\1\0\0\0" + bytes(8)
"""Ten values of weight 1, and a metric."""
NONSENSE: dict[str, bytes] = {
    "too short": HONEST[:-4],
    "too long": HONEST + bytes(4),
    "NaN": np.float32(np.nan).tobytes() + HONEST[4:],
    "infinity": HONEST[:36] + np.float32(np.inf).tobytes() + HONEST[40:],
    "a weight beyond the largest": HONEST[:40] + b"\x65\0\0\0" + HONEST[44:],
    "a second weight": HONEST[:40] + b"\1\0\0\1" + HONEST[44:],
    "a metric of 49 bits": HONEST[:-2] + b"\1\0",
}


def federation(payload: bytes, **changes: Any) -> MemoryFederation:
    configuration = small_configuration(4, mode="none", metrics=("samples",), **changes)
    one = MemoryFederation(configuration, 4, rounds=2)

    def hook(parcel: Parcel) -> list[Parcel]:
        if (parcel.sender, parcel.kind) != (CHEAT, "masked-input"):
            return [parcel]
        return [altered(parcel, payload=payload)]

    one.hook = hook
    one.run()
    return one


@cases("nonsense", NONSENSE)
def test_nonsense_excludes_and_names_its_sender_and_the_others_go_on(nonsense: str) -> None:
    one = federation(NONSENSE[nonsense])
    left = tuple(name for name in one.roster.clients if name != CHEAT)
    first, second = one.outcome(RoundDone)
    (drop,) = first.dropped
    assert (drop.member, drop.code, drop.included) == (CHEAT, Code.VECTOR, False)
    for done in (first, second):
        assert (done.code, done.survivors) == (None, left)
        assert (done.total == one.plain_sum(done)).all()


def test_what_could_be_honest_is_summed() -> None:
    one = federation(HONEST)
    first, _ = one.outcome(RoundDone)
    packing = one.configuration.packing()
    others = [one.vectors[name, 1] for name in one.roster.clients if name != CHEAT]
    vectors = [others[0], packing.ring.unpack(HONEST), *others[1:]]
    assert first.survivors == one.roster.clients
    assert (first.total == added(packing, vectors)).all()
