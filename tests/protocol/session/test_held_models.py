"""A model that a client has from the same server is not fetched again: its digest is what is announced."""

from __future__ import annotations

import numpy as np

from tacit.protocol.core.messages import Chunk, Fetch
from tacit.protocol.session.rounds import RoundDone, RoundOver, Train
from tacit.simulate.world.federation import MemoryFederation, small_configuration
from tests.cases import cases

MODE = cases("mode", ["active", "none"])


class StandingFederation(MemoryFederation):
    standing = 1

    def apply(self, done: RoundDone) -> str:
        if done.round <= self.standing:
            return "the sum is not used"
        return super().apply(done)


def fetched(one: MemoryFederation, name: str) -> list[int]:
    return [parcel.packet.envelope.round for parcel in one.log if parcel.sender == name and parcel.packet.kind is Fetch]


def received(one: MemoryFederation, name: str) -> int:
    chunks = [parcel.packet for parcel in one.log if parcel.receiver == name and parcel.packet.kind is Chunk]
    return sum(len(packet.payload or b"") for packet in chunks)


@MODE
def test_a_round_from_the_same_model_costs_no_second_fetch(mode: str) -> None:
    one = StandingFederation(small_configuration(3, mode=mode), 3, rounds=3)
    model = one.model
    one.run()
    for name in one.roster.clients:
        assert fetched(one, name) == [1, 3]
        assert received(one, name) == 2 * len(model)
        assert [train.model for train in one.outcome(Train, name)] == [model, model, one.outcome(Train, name)[2].model]
        assert one.outcome(Train, name)[2].model == (np.frombuffer(model, "<f4") + 1).astype("<f4").tobytes()
    for done in one.outcome(RoundDone):
        assert done.survivors == one.roster.clients
        assert (done.total == one.plain_sum(done)).all()


@MODE
def test_a_client_of_a_server_that_starts_again_has_the_model_still(mode: str) -> None:
    one = MemoryFederation(small_configuration(3, mode=mode), 3, rounds=1)
    one.idle |= set(one.roster.clients)
    one.start()
    one.advance()
    one.start_server()
    for name in one.roster.clients:
        one.lose_link(name)
        one.restore_link(name)
    one.idle.clear()
    one.settle()
    assert [over.code for over in one.outcome(RoundOver, "client-0")][-1] is None
    assert {name: len(fetched(one, name)) for name in one.roster.clients} == dict.fromkeys(one.roster.clients, 1)


def test_another_process_of_the_client_has_nothing() -> None:
    one = StandingFederation(small_configuration(3), 3, rounds=2)
    one.paused = True
    one.run()
    one.start_client("client-0")
    one.advance()
    one.paused = False
    one.settle()
    assert fetched(one, "client-0") == [1, 2]
    assert fetched(one, "client-1") == [1]


def test_only_the_last_model_is_kept() -> None:
    """A server that goes back to an earlier one sends it again."""
    one = MemoryFederation(small_configuration(3), 3, rounds=3)
    models = [bytes(40), np.ones(10, "<f4").tobytes()]
    one.model = models[0]
    one.start_server()

    def apply(done: RoundDone) -> str:
        one.model = models[done.round % 2]
        return ""

    one.apply = apply  # type: ignore[method-assign]
    one.run()
    assert fetched(one, "client-0") == [1, 2, 3]
    assert [train.model for train in one.outcome(Train, "client-0")] == [models[0], models[1], models[0]]
