"""How many one-way delays a round takes beyond the training of its slowest client, on links of a constant delay.

A vector of several chunks; the first message of the way is start-round, the last one a client's unmask-shares.
"""

from typing import Any

import numpy as np
import pytest

from tacit.protocol.core.blob import WINDOW
from tacit.protocol.session.messages import StartRound
from tacit.protocol.session.rounds import RoundDone
from tacit.protocol.sum.messages import FetchVector, UnmaskShares
from tacit.simulate.world.federation import SERVER, MemoryFederation, small_configuration
from tacit.simulate.world.world import Conduct, Parcel
from tests.cases import cases

DELAY = 0.25
"""Seconds; a number of which multiples are exact."""
SLOWEST = 10.0
CHUNK_WORDS = 16
PARAMETERS = WINDOW * CHUNK_WORDS - 5

pytestmark = pytest.mark.usefixtures("small_chunks")


def delays(clients: int, *, together: bool = False, slowest: float = SLOWEST, **changes: Any) -> float:
    """One-way delays of a round beyond the slowest training, of so many seconds; together: all train equally long."""
    configuration = small_configuration(clients, **{"parameters": PARAMETERS, **changes})
    one = MemoryFederation(configuration, clients)
    one.network.conduct = Conduct(least_delay=DELAY, most_delay=DELAY)
    times: list[tuple[float, Parcel]] = []
    begun = 0

    def seconds() -> float:
        nonlocal begun
        begun += 1
        return slowest if together else slowest * begun / clients

    def hook(parcel: Parcel) -> list[Parcel]:
        times.append((one.now, parcel))
        return [parcel]

    one.training_seconds = seconds
    one.hook = hook
    one.run()
    (done,) = one.outcome(RoundDone)
    assert done.survivors == one.roster.clients
    np.testing.assert_array_equal(done.total, one.plain_sum(done))
    assert len({parcel.receiver for _, parcel in times if parcel.packet.kind is FetchVector}) == clients
    # What arrives has left one delay before.
    first = min(time for time, parcel in times if parcel.packet.kind is StartRound) - DELAY
    ends = [time for time, parcel in times if parcel.packet.kind is UnmaskShares and parcel.receiver == SERVER]
    last = max(ends or [time for time, parcel in times if parcel.kind == "vector-chunk"])
    return (last - first - slowest) / DELAY


@cases(("mode", "expected"), [("active", 8), ("semi-honest", 6), ("none", 4)])
@cases("clients", [3, 8, 30])
def test_beyond_the_slowest_training(clients: int, mode: str, expected: int) -> None:
    assert delays(clients, mode=mode) == expected


@cases(("mode", "less"), [("active", 0), ("semi-honest", 2), ("none", 4)])
@cases(("clients", "expected"), [(3, 8), (8, 10), (30, 22)])
def test_where_all_have_trained_at_the_same_time(clients: int, expected: int, mode: str, less: int) -> None:
    """Some are invited and the others wait for their turn, which takes a round trip for every few of them."""
    assert delays(clients, mode=mode, together=True) == expected - less


@cases(("training", "more"), [(0.0, 2), (2 * DELAY, 0), (4 * DELAY, 0)])
@cases(("clients", "expected"), [(3, 8), (8, 10)])
def test_keys_and_shares_take_a_round_trip_where_nobody_trains_as_long(
    clients: int, expected: int, training: float, more: int
) -> None:
    assert delays(clients, mode="active", together=True, slowest=training) == expected + more
