"""Uploads of long vectors: who is asked in advance, who stands still and goes, and nobody is late for having waited."""

from collections import Counter
from collections.abc import Callable

import pytest

from tacit.protocol.core.blob import WINDOW
from tacit.protocol.core.errors import Code
from tacit.protocol.core.messages import Abort
from tacit.protocol.sum.agreement import TRANSFER_LIMIT, UPLOADS
from tacit.protocol.sum.exchange import ClientAborted, Summed
from tacit.protocol.sum.messages import FetchVector, MaskedInput, VectorChunk
from tacit.protocol.sum.states import ClientState, ServerState
from tests.cases import cases
from tests.world.exchange import Delivery
from tests.world.sums import MemorySum, memory_sum

ExactSum = Callable[[MemorySum], Summed]
CHUNK_WORDS = 16
UPLOAD_CHUNKS = 5
CLIENTS = 13
PHASE, TRAIN = 10.0, 100.0
"""Seconds that memory_sum allows."""
FIRST = tuple(f"c{member}" for member in range(UPLOADS))

pytestmark = pytest.mark.usefixtures("small_chunks")


def long_sum(clients: int = CLIENTS, *, mode: str = "active", chunks: int = UPLOAD_CHUNKS) -> MemorySum:
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
@cases("sent", range(UPLOAD_CHUNKS))
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
    run = memory_sum(CLIENTS, active=False, secure=False, length=UPLOAD_CHUNKS * CHUNK_WORDS)
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


CHUNKS = 7
modes = cases("mode", ["active", "semi-honest", "none"])


def training_sum(
    clients: int, mode: str = "active", *, chunks: int = CHUNKS, groups: tuple[tuple[int, ...], ...] = ()
) -> MemorySum:
    """A sum of which everything has happened that can happen before anybody has trained."""
    run = memory_sum(
        clients, active=mode == "active", secure=mode != "none", length=chunks * CHUNK_WORDS, groups=groups,
        fewest_survivors=clients - 3 if groups else 0,
    )  # fmt: skip
    run.contribute()
    run.advance()
    assert run.server.state is ServerState.MASKED_INPUT
    return run


def asked(run: MemorySum) -> dict[str, int]:
    """For how many chunks each client was asked."""
    return Counter(delivery.receiver for delivery in run.log if delivery.kind == "fetch-vector")


@modes
def test_keys_and_shares_need_no_vector_and_some_are_asked_in_advance(mode: str, summed: ExactSum) -> None:
    run = training_sum(UPLOADS + 2, mode)
    assert {client.state for client in run.clients.values()} == {ClientState.AWAIT_VECTOR}
    assert run.server.training
    first = run.agreement.cohort[:UPLOADS]
    assert asked(run) == dict.fromkeys(first, WINDOW)
    # The announcement and all that was asked for leave together.
    outputs = run.clients["c0"].contribute(run.vectors["c0"], run.now)
    said = [output.message for output in outputs]  # type: ignore[attr-defined]
    assert isinstance(said[0], MaskedInput)
    assert said[1:] == [VectorChunk(chunk=chunk) for chunk in range(WINDOW)]
    run.emit("c0", outputs)
    run.advance()
    assert run.server.training
    assert asked(run) == {**dict.fromkeys(first, WINDOW), "c0": CHUNKS, f"c{UPLOADS}": WINDOW}
    run.contribute(*run.agreement.cohort[1:])
    assert run.advance(lambda: not run.server.training)
    run.settle()
    assert summed(run).survivors == run.agreement.cohort
    assert asked(run) == dict.fromkeys(run.agreement.cohort, CHUNKS)


@modes
def test_a_vector_of_one_chunk_is_never_asked_for(mode: str, summed: ExactSum) -> None:
    run = training_sum(3, mode, chunks=1)
    assert asked(run) == {}
    run.contribute("c0", "c1", "c2")
    run.settle()
    assert summed(run).survivors == run.agreement.cohort
    assert asked(run) == {}


@modes
def test_who_is_invited_and_does_not_come_holds_up_nobody_who_is_ready(mode: str, summed: ExactSum) -> None:
    run = training_sum(3 * UPLOADS, mode)
    run.contribute(*run.agreement.cohort[UPLOADS:])
    run.advance()
    assert run.now == 0
    assert run.server.waiting == set(range(UPLOADS))
    # Nobody is late before the training is: then they are, and not before.
    run.settle(until=TRAIN + PHASE - 1)
    assert run.server.drops == []
    run.contribute("c0", "c1")
    run.settle()
    assert summed(run).survivors == tuple(name for name in run.agreement.cohort if name not in ("c2", "c3"))
    assert {(drop.member, drop.phase, drop.code) for drop in run.server.drops} == {
        ("c2", "MASKED_INPUT", Code.TIMEOUT), ("c3", "MASKED_INPUT", Code.TIMEOUT)
    }  # fmt: skip
    assert run.now == TRAIN + PHASE


@modes
def test_an_upload_has_its_deadline_from_its_announcement_on(mode: str, summed: ExactSum) -> None:
    run = training_sum(4, mode)
    run.hook = lambda delivery: [] if (delivery.sender, delivery.kind) == ("c0", "vector-chunk") else [delivery]
    run.now = 5 * PHASE
    run.contribute(*run.agreement.cohort)
    run.settle()
    assert summed(run).survivors == ("c1", "c2", "c3")
    assert run.now == 6 * PHASE


@modes
def test_who_goes_while_it_is_invited_leaves_the_invitation_to_the_next(mode: str, summed: ExactSum) -> None:
    run = training_sum(3 * UPLOADS, mode)
    run.kill("c1")
    run.advance()
    assert set(asked(run)) == set(run.agreement.cohort[: UPLOADS + 1])
    run.contribute(*run.agreement.cohort)
    run.settle()
    assert summed(run).survivors == tuple(name for name in run.agreement.cohort if name != "c1")


def test_of_a_group_the_last_one_is_invited_and_the_others_do_not_wait_for_it(summed: ExactSum) -> None:
    groups = tuple(tuple(range(first, first + 3)) for first in range(0, 12, 3))
    run = training_sum(12, groups=groups)
    run.contribute("c0")
    run.advance()
    assert asked(run) == {}
    run.contribute("c1")
    run.advance()
    assert asked(run) == {"c0": CHUNKS, "c1": CHUNKS, "c2": WINDOW}
    assert run.server._vectors.included == set()
    run.contribute(*run.agreement.cohort[3:])
    run.advance()
    run.contribute("c2")
    run.settle()
    assert summed(run).survivors == run.agreement.cohort


@modes
@cases("ready", [True, False])
@cases("chunks", [[1], [0, 0], [0, 1, 3], [0, 1, 2, 3, 4, 5, 5], [CHUNKS], [2**31]])
def test_a_client_is_asked_for_every_chunk_once_and_in_order(chunks: list[int], ready: bool, mode: str) -> None:
    run = memory_sum(5, active=mode == "active", secure=mode != "none", length=CHUNKS * CHUNK_WORDS)
    run.hook = lambda delivery: [] if delivery.kind == "fetch-vector" else [delivery]
    run.contribute(*["c0"] * ready)
    run.advance()
    client = run.clients["c0"]
    for chunk in chunks[:-1] if ready else chunks[: min(len(chunks) - 1, WINDOW)]:
        run.put(Delivery("server", "c0", FetchVector(chunk=chunk), None))
        assert client.state is (ClientState.AWAIT_SURVIVORS if ready else ClientState.AWAIT_VECTOR)
    run.put(Delivery("server", "c0", FetchVector(chunk=chunks[-1]), None))
    assert client.state is ClientState.ABORTED
    (aborted,) = run.outcome(ClientAborted, "c0")
    expected = Code.VECTOR if chunks[-1] >= CHUNKS else Code.UNEXPECTED
    assert (aborted.code, aborted.culprit) == (expected, "server")


@modes
def test_a_server_that_invites_beyond_the_window_is_refused(mode: str) -> None:
    run = training_sum(UPLOADS + 2, mode)
    client = run.clients["c0"]
    assert client.state is ClientState.AWAIT_VECTOR
    (abort, aborted) = run.put(Delivery("server", "c0", FetchVector(chunk=WINDOW), None))
    assert isinstance(aborted, ClientAborted)
    assert (aborted.code, aborted.culprit) == (Code.UNEXPECTED, "server")
    assert isinstance(abort.message, Abort)  # type: ignore[attr-defined]


@modes
@cases("name", ["c0", f"c{UPLOADS}"])
def test_a_chunk_before_its_announcement_excludes_its_sender(name: str, mode: str, summed: ExactSum) -> None:
    run = training_sum(UPLOADS + 2, mode)
    run.put(Delivery(name, "server", VectorChunk(chunk=0), bytes(4 * CHUNK_WORDS)))
    run.contribute(*run.agreement.cohort)
    run.settle()
    assert summed(run).survivors == tuple(other for other in run.agreement.cohort if other != name)
    assert [(drop.member, drop.code) for drop in run.server.drops] == [(name, Code.UNEXPECTED)]
