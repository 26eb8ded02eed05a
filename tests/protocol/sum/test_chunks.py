"""Vectors of several chunks: fetched from few clients at a time, in order, and counted whole or not at all."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tacit.protocol.core.blob import WINDOW
from tacit.protocol.core.errors import Code
from tacit.protocol.core.messages import CHUNK_BYTES
from tacit.protocol.sum import agreement as agreement_module
from tacit.protocol.sum.agreement import UPLOADS
from tacit.protocol.sum.client import AggregationClient
from tacit.protocol.sum.exchange import ClientAborted, Summed
from tacit.protocol.sum.messages import FetchVector, VectorChunk
from tacit.protocol.sum.states import ClientState
from tests.cases import cases
from tests.world.exchange import Delivery
from tests.world.sums import MemorySum, memory_sum

ExactSum = Callable[[MemorySum], Summed]
CHUNK_WORDS = 16
LENGTH = 6 * CHUNK_WORDS + 5
CHUNKS = 7
"""More than a WINDOW."""


def code_of_drop(run: MemorySum, name: str) -> Code:
    return next(drop.code for drop in run.server.drops if drop.member == name)


@cases("length", [0, 1, 15, 16, 17, 32, 100])
@cases("ring_bits", [8, 20, 32, 64])
def test_every_width_and_length(ring_bits: int, length: int, summed: ExactSum, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement_module, "CHUNK_BYTES", 128)
    run = memory_sum(3, active=False, length=length, ring_bits=ring_bits)
    run.run()
    assert summed(run).survivors == ("c0", "c1", "c2")
    words_in_chunk = {8: 128, 20: 32, 32: 32, 64: 16}[ring_bits]
    chunks = max(1, -(-length // words_in_chunk))
    assert sum(delivery.kind == "vector-chunk" for delivery in run.log) == (3 * chunks if chunks > 1 else 0)


@cases("ring_bits", [24, 32])
def test_the_real_size_of_chunks(ring_bits: int, summed: ExactSum) -> None:
    run = memory_sum(3, active=True, length=2 * (CHUNK_BYTES // (ring_bits // 8)) + 1, ring_bits=ring_bits)
    run.run()
    summed(run)
    payloads = [delivery.payload for delivery in run.log if delivery.payload is not None]
    assert len(payloads) == 3 * 3
    assert all(len(payload) <= CHUNK_BYTES for payload in payloads)


@pytest.mark.usefixtures("small_chunks")
@cases("noticed", [True, False])
@cases("sent", range(CHUNKS + 1))
def test_a_client_that_vanishes_in_the_middle_leaves_no_trace(sent: int, noticed: bool, summed: ExactSum) -> None:
    run = memory_sum(4, active=False, length=LENGTH)

    def hook(delivery: Delivery) -> list[Delivery]:
        if (delivery.sender, delivery.message) == ("c1", VectorChunk(chunk=sent)) or (
            sent == CHUNKS and delivery.sender == "c1" and delivery.kind == "unmask-shares"
        ):
            if noticed:
                run.kill("c1")
            else:
                run.dead.add("c1")
            return []
        return [delivery]

    run.hook = hook
    run.run()
    assert summed(run).survivors == (("c0", "c1", "c2", "c3") if sent == CHUNKS else ("c0", "c2", "c3"))
    assert [drop.included for drop in run.server.drops] == [sent == CHUNKS]


@pytest.mark.usefixtures("small_chunks")
def test_few_upload_at_a_time_and_each_within_its_window(summed: ExactSum) -> None:
    """However many are ready, and whoever was asked before it was."""
    run = memory_sum(2 * UPLOADS + 3, active=False, length=LENGTH)
    most, widest = 0, 0
    pending: dict[str, set[int]] = {}
    received: dict[str, int] = {}

    def hook(delivery: Delivery) -> list[Delivery]:
        nonlocal most, widest
        if isinstance(delivery.message, FetchVector):
            pending.setdefault(delivery.receiver, set()).add(delivery.message.chunk)
        elif isinstance(delivery.message, VectorChunk):
            pending[delivery.sender].remove(delivery.message.chunk)
            received[delivery.sender] = received.get(delivery.sender, 0) + 1
        uploading = [name for name in pending if received.get(name, 0) < CHUNKS]
        most = max(most, len(uploading))
        widest = max([widest, *(len(chunks) for chunks in pending.values())])
        return [delivery]

    run.hook = hook
    run.run()
    assert len(summed(run).survivors) == 2 * UPLOADS + 3
    assert most == UPLOADS
    assert widest == WINDOW
    assert received == dict.fromkeys(run.agreement.cohort, CHUNKS)


@pytest.mark.usefixtures("small_chunks")
@cases("waiting", [True, False])
def test_who_leaves_gives_its_turn_to_the_next(waiting: bool, summed: ExactSum) -> None:
    # Ten clients, of whom six are enough; four leave in the middle, and with them all who upload or all but two of
    # those who wait.
    run = memory_sum(2 * UPLOADS + 2, active=False, length=LENGTH)
    leaving = {f"c{member}" for member in (range(UPLOADS, 2 * UPLOADS) if waiting else range(UPLOADS))}

    def hook(delivery: Delivery) -> list[Delivery]:
        if (delivery.sender, delivery.message) == ("c3", VectorChunk(chunk=1)):
            for name in leaving:
                run.kill(name)
        return [delivery]

    run.hook = hook
    run.run()
    assert set(summed(run).survivors) == set(run.agreement.cohort) - leaving
    assert {drop.member for drop in run.server.drops} == leaving
    asked = {delivery.receiver for delivery in run.log if delivery.kind == "fetch-vector"}
    assert leaving & asked == (set() if waiting else leaving)


@pytest.mark.usefixtures("small_chunks")
@cases("name", ["c0", f"c{UPLOADS}"])
def test_a_vector_announced_twice_is_fetched_once(name: str, summed: ExactSum) -> None:
    run = memory_sum(UPLOADS + 3, active=False, length=LENGTH)
    run.hook = lambda d: [d, d] if (d.sender, d.kind) == (name, "masked-input") else [d]
    run.run()
    assert summed(run).survivors == run.agreement.cohort
    assert run.server.ignored == 1
    asked = [delivery.message for delivery in run.log if (delivery.receiver, delivery.kind) == (name, "fetch-vector")]
    assert asked == [FetchVector(chunk=chunk) for chunk in range(CHUNKS)]


@pytest.mark.usefixtures("small_chunks")
def test_everybody_who_stands_still_had_a_turn_and_is_asked_once() -> None:
    run = memory_sum(UPLOADS + 3, active=False, length=LENGTH)
    run.hook = lambda delivery: [] if delivery.kind == "vector-chunk" else [delivery]
    run.run()
    assert len(run.server.drops) == UPLOADS + 3
    asked = [(d.receiver, d.message) for d in run.log if d.kind == "fetch-vector"]
    assert asked == [(name, FetchVector(chunk=chunk)) for name in run.agreement.cohort for chunk in range(WINDOW)]


@pytest.mark.usefixtures("small_chunks")
@cases("length", [5, 40])
def test_a_word_outside_the_ring_excludes_its_sender(length: int, summed: ExactSum) -> None:
    run = memory_sum(4, active=False, length=length, ring_bits=20)

    def hook(delivery: Delivery) -> list[Delivery]:
        if delivery.sender != "c1" or delivery.payload is None:
            return [delivery]
        # 2^20 as three little-endian bytes is the smallest word outside.
        return [replace(delivery, payload=b"\x00\x00\x10" + bytes(delivery.payload)[3:])]

    run.hook = hook
    run.run()
    assert summed(run).survivors == ("c0", "c2", "c3")
    assert code_of_drop(run, "c1") is Code.VECTOR


def masking_client(run: MemorySum) -> AggregationClient:
    client = run.clients["c0"]
    run.start()
    assert run.advance(lambda: client.state is ClientState.AWAIT_SURVIVORS)
    return client


@pytest.mark.usefixtures("small_chunks")
@cases(("length", "chunk"), [(LENGTH, CHUNKS), (LENGTH, 2**31), (5, 0), (5, 1), (16, 0)])
def test_a_client_refuses_to_send_what_its_vector_does_not_have(length: int, chunk: int) -> None:
    run = memory_sum(3, active=False, length=length)
    client = masking_client(run)
    run.hook = lambda delivery: [replace(delivery, message=FetchVector(chunk=chunk))] * (delivery.receiver == "c0")
    run.emit("server", run.server.drop("c2", Code.LEFT, "", run.now))
    assert run.server.agreement.chunks == (CHUNKS if length == LENGTH else 1)
    run.deliver(Delivery("server", "c0", FetchVector(chunk=chunk), None))
    assert client.state is ClientState.ABORTED
    (aborted,) = run.outcome(ClientAborted, "c0")
    assert (aborted.code, aborted.culprit) == (Code.VECTOR, "server")


@pytest.mark.usefixtures("small_chunks")
def test_chunks_are_the_vector_under_one_continuous_mask() -> None:
    # The same vector and secrets, sent whole and in chunks, are the same masked words.
    def masked(length_of_chunk: int, monkeypatch: pytest.MonkeyPatch) -> bytes:
        monkeypatch.setattr(agreement_module, "CHUNK_BYTES", length_of_chunk)
        run = memory_sum(3, active=False, length=LENGTH)
        run.run()
        return b"".join(
            bytes(delivery.payload) for delivery in run.log if delivery.sender == "c1" and delivery.payload is not None
        )

    with pytest.MonkeyPatch.context() as monkeypatch:
        whole, parts = masked(CHUNK_BYTES, monkeypatch), masked(4 * CHUNK_WORDS, monkeypatch)
    assert whole == parts
    assert len(np.frombuffer(whole, "<u4")) == LENGTH
