"""A server that uses what clients keep: it announces models that this client, or another one, has."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec import structs

from tacit.protocol.core.blob import announce
from tacit.protocol.core.messages import Fetch
from tacit.protocol.session.messages import StartRound
from tacit.protocol.session.rounds import RoundDone, Train
from tacit.protocol.sum.states import SumLabel
from tacit.simulate.world.federation import MemoryFederation, small_configuration
from tacit.simulate.world.world import Parcel, altered

pytestmark = pytest.mark.threat("server/announces-held-models")

VICTIM = "client-0"
FIRST = np.arange(10, dtype="<f4").tobytes()


def told_of(model: bytes, *, round: int = 2) -> MemoryFederation:
    """A server that announces this model to the victim, in the place of the one that the others are told of."""
    one = MemoryFederation(small_configuration(5), 5, rounds=2)

    def hook(parcel: Parcel) -> list[Parcel]:
        if (parcel.receiver, parcel.packet.kind, parcel.packet.envelope.round) != (VICTIM, StartRound, round):
            return [parcel]
        return [altered(parcel, message=structs.replace(parcel.message, model=announce(model, SumLabel.MODEL)))]

    one.hook = hook
    return one


def asked(one: MemoryFederation) -> list[int]:
    return [
        parcel.packet.envelope.round for parcel in one.log if (parcel.sender, parcel.packet.kind) == (VICTIM, Fetch)
    ]


def sums_with(one: MemoryFederation, name: str) -> list[int]:
    return [done.round for done in one.outcome(RoundDone) if done.total is not None and name in done.survivors]


def test_a_model_that_only_others_were_sent_has_to_come() -> None:
    one = told_of(FIRST)
    one.paused = True
    one.start(*one.roster.clients[1:])
    one.settle(until=600.0)
    assert {train.model for train in one.outcome(Train)} == {FIRST}
    one.paused = False
    one.start_client(VICTIM)
    one.settle(until=1200.0)
    assert asked(one) == [2]
    assert not one.outcome(Train, VICTIM)
    assert sums_with(one, VICTIM) == []


def test_who_is_sent_back_to_its_last_model_alone_is_in_no_sum() -> None:
    one = told_of(FIRST)
    one.start()
    one.settle(until=600.0)
    assert asked(one) == [1], "it has just these bytes"
    assert {train.model for train in one.outcome(Train, VICTIM)} == {FIRST}
    assert sums_with(one, VICTIM) == [1]
