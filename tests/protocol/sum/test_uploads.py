"""Who uploads a long vector holds up those who wait: who stands still goes, and nobody is late for having waited."""

from collections.abc import Callable

import pytest

from tacit.protocol.core.blob import WINDOW
from tacit.protocol.core.errors import Code
from tacit.protocol.sum.agreement import TRANSFER_LIMIT, UPLOADS
from tacit.protocol.sum.exchange import Summed
from tacit.protocol.sum.states import ServerState
from tests.cases import cases
from tests.world.exchange import Delivery
from tests.world.sums import MemorySum, memory_sum

ExactSum = Callable[[MemorySum], Summed]
CHUNK_WORDS = 16
CHUNKS = 5
CLIENTS = 13
PHASE, TRAIN = 10.0, 100.0
"""Seconds that memory_sum allows."""
FIRST = tuple(f"c{member}" for member in range(UPLOADS))

pytestmark = pytest.mark.usefixtures("small_chunks")


def long_sum(clients: int = CLIENTS, *, mode: str = "active", chunks: int = CHUNKS) -> MemorySum:
    return memory_sum(clients, active=mode == "active", secure=mode != "none", length=chunks * CHUNK_WORDS)


def delayed(run: MemorySum, seconds: Callable[[Delivery], float]) -> None:
    """Let every chunk come so much later; those of a window travel together."""

    def hook(delivery: Delivery) -> list[Delivery]:
        if delivery.kind != "vector-chunk":
            return [delivery]
        run.at(run.now + seconds(delivery), lambda: run.put(delivery))
        return []

    run.hook = hook


@cases("mode", ["active", "semi-honest", "none"])
@cases("sent", range(CHUNKS))
def test_of_thirteen_four_stand_still_and_nine_are_in_the_sum(mode: str, sent: int, summed: ExactSum) -> None:
    run = long_sum(mode=mode)
    chunks = dict.fromkeys(FIRST, 0)

    def hook(delivery: Delivery) -> list[Delivery]:
        if delivery.kind == "vector-chunk" and delivery.sender in chunks:
            chunks[delivery.sender] += 1
            return [delivery] if chunks[delivery.sender] <= sent else []
        return [delivery]

    run.hook = hook
    run.run()
    assert summed(run).survivors == run.agreement.cohort[UPLOADS:]
    assert [(drop.member, drop.code, drop.included) for drop in run.server.drops] == [
        (name, Code.TIMEOUT, False) for name in FIRST
    ]
    assert {drop.detail for drop in run.server.drops} == {"its vector did not come in time"}
    # One phase for those who stand still, and none for the others. Who did not send is not asked again.
    assert run.now == PHASE
    told = [delivery.receiver for delivery in run.log if delivery.kind == "abort"]
    assert told == list(FIRST)


def test_a_slot_that_is_free_again_is_the_next_ones_with_a_time_of_its_own(summed: ExactSum) -> None:
    # Eight of thirteen stand still, in two waves; the waiting of the second one costs it nothing.
    run = memory_sum(CLIENTS, active=False, secure=False, length=CHUNKS * CHUNK_WORDS)
    still = {f"c{member}" for member in range(2 * UPLOADS)}
    run.hook = lambda delivery: [] if delivery.sender in still and delivery.kind == "vector-chunk" else [delivery]
    run.run()
    assert summed(run).survivors == run.agreement.cohort[2 * UPLOADS :]
    assert run.now == 2 * PHASE


def test_nobody_is_late_for_having_waited(summed: ExactSum) -> None:
    """Thirteen uploads of nine phases each last many times as long as one may, and no client gives up meanwhile."""
    run = long_sum(chunks=12 * WINDOW)
    delayed(run, lambda delivery: 0.75 * PHASE)
    run.run()
    assert run.server.drops == []
    assert summed(run).survivors == run.agreement.cohort
    turns = -(-CLIENTS // UPLOADS)
    assert run.now == turns * 12 * 0.75 * PHASE > TRANSFER_LIMIT * PHASE


def test_who_crawls_has_its_own_end_and_holds_up_nobody_beyond_it(summed: ExactSum) -> None:
    """Each chunk is in time, but they are too many."""
    run = long_sum(chunks=12 * WINDOW)
    delayed(run, lambda delivery: 0.9 * PHASE if delivery.sender in FIRST else 0.0)
    run.start()
    run.settle(until=TRANSFER_LIMIT * PHASE)
    assert run.server.state is ServerState.MASKED_INPUT
    run.settle(until=TRANSFER_LIMIT * PHASE + 1)
    assert summed(run).survivors == run.agreement.cohort[UPLOADS:]
    assert {(drop.member, drop.code) for drop in run.server.drops} == {(name, Code.TIMEOUT) for name in FIRST}


@cases("mode", ["active", "none"])
def test_who_says_nothing_is_late_while_others_upload(mode: str, summed: ExactSum) -> None:
    run = long_sum(5, mode=mode, chunks=3 * WINDOW)
    delayed(run, lambda delivery: 0.9 * PHASE)
    run.training = {"c4"}
    run.start()
    run.settle(until=2 * PHASE)
    assert run.server.drops == []
    assert run.server.state is ServerState.MASKED_INPUT
    run.settle()
    assert summed(run).survivors == ("c0", "c1", "c2", "c3")
    assert [(drop.member, drop.phase, drop.code) for drop in run.server.drops] == [("c4", "MASKED_INPUT", Code.TIMEOUT)]
    assert run.now == TRAIN + PHASE
