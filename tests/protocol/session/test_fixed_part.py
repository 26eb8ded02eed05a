"""The part of a model that no client trains: sent to each client once, and bound to the configuration."""

from __future__ import annotations

from msgspec.structs import replace

from tacit.protocol.core.blob import announce
from tacit.protocol.core.messages import CHUNK_BYTES
from tacit.protocol.session.messages import FetchFixed
from tacit.protocol.session.rounds import FixedPart, RoundOver, Train
from tacit.protocol.sum.states import SumLabel
from tacit.simulate.world.federation import MemoryFederation, small_configuration
from tacit.simulate.world.world import Parcel, altered
from tests.cases import cases

FIXED = bytes(range(256)) * (5 * CHUNK_BYTES // 256) + b"the end"
CHUNKS = 6


def federation(*, rounds: int = 1) -> MemoryFederation:
    return MemoryFederation(
        small_configuration(3, fixed=announce(FIXED, SumLabel.FIXED)), 3, rounds=rounds, fixed=FIXED
    )


def fetched(one: MemoryFederation) -> list[str]:
    return [parcel.sender for parcel in one.log if parcel.packet.kind is FetchFixed]


def test_each_client_fetches_it_once_and_before_it_trains() -> None:
    one = federation(rounds=3).run()
    assert [done.code for done in one.outcome(RoundOver, "client-0")] == [None] * 3
    assert {name: fetched(one).count(name) for name in one.roster.clients} == dict.fromkeys(one.roster.clients, CHUNKS)
    (part,) = one.outcome(FixedPart, "client-0")
    assert part.data == FIXED
    assert len(one.outcome(Train, "client-0")) == 3


def test_who_has_it_of_an_earlier_session_does_not_fetch_it_again() -> None:
    one = federation()
    one.start("client-1", "client-2")
    one.start_client("client-0").hold(one.configuration.fixed.digest)
    one.settle()
    assert [done.code for done in one.outcome(RoundOver, "client-0")] == [None]
    assert set(fetched(one)) == {"client-1", "client-2"}


@cases(("chunk", "round"), [(1, 1), (CHUNKS, 1), (0, 0)])
def test_a_server_hands_out_each_chunk_once_in_a_round(chunk: int, round: int) -> None:
    """Another than the next, and any outside of rounds, costs the one that asks its part in the session."""
    one = federation()
    one.start("client-1", "client-2")
    one.start_client("client-0")

    def hook(parcel: Parcel) -> list[Parcel]:
        if parcel.packet.kind is not FetchFixed or parcel.sender != "client-0":
            return [parcel]
        one.hook = lambda parcel: [parcel]
        return [altered(parcel, message=replace(parcel.message, chunk=chunk), round=round)]

    one.hook = hook
    one.advance()
    one.settle()
    assert "client-0" in one.server.presence.barred
