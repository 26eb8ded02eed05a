"""The sum without secure aggregation: the plain vectors in the same chunks, and every fault named."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tacit.protocol.core.codec import Frame
from tacit.protocol.core.errors import Code, LocalProtocolError
from tacit.protocol.core.messages import Abort, Message
from tacit.protocol.core.roster import encode_members
from tacit.protocol.sum.agreement import UPLOADS
from tacit.protocol.sum.exchange import ServerAborted, Summed
from tacit.protocol.sum.messages import FetchVector, MaskedInput, VectorChunk
from tacit.protocol.sum.plain import PlainSumClient
from tacit.protocol.sum.states import ClientState
from tests.cases import cases
from tests.world.exchange import Delivery
from tests.world.sums import MemorySum, memory_sum

ExactSum = Callable[[MemorySum], Summed]
Audit = Callable[[MemorySum], Summed | ServerAborted]
Expected = dict[str, dict[str, str | set[str]]]

CHUNK_WORDS = 16
LENGTH = 6 * CHUNK_WORDS + 5
CHUNKS = 7
"""More than a WINDOW."""
WORDS = 4 * CHUNK_WORDS
"""Bytes of a chunk."""
TRAINED, PHASE = 100.0, 10.0
"""Seconds that memory_sum allows for training and for a phase."""

pytestmark = pytest.mark.usefixtures("small_chunks")


def plain_sum(clients: int, *, length: int = LENGTH, fewest: int = 0) -> MemorySum:
    """A sum of random vectors that the server sees: length - 1 floats, and their weight."""
    return memory_sum(clients, active=False, secure=False, length=length, fewest_survivors=fewest)


def let_time_pass(run: MemorySum, seconds: float) -> None:
    run.now += seconds
    run.emit("server", run.server.expire(run.now))


@cases("length", [2, 16, 17, LENGTH])
def test_the_server_gets_the_very_words_and_their_sum(length: int, summed: ExactSum) -> None:
    run = plain_sum(3, length=length)
    run.run()
    assert summed(run).survivors == ("c0", "c1", "c2")
    assert {delivery.kind for delivery in run.log} <= {"masked-input", "fetch-vector", "vector-chunk"}
    for name, vector in run.vectors.items():
        sent = [delivery.payload for delivery in run.log if delivery.sender == name and delivery.payload is not None]
        assert b"".join(bytes(payload) for payload in sent) == bytes(run.agreement.ring.pack(vector))
        assert len(sent) == run.agreement.chunks
    of_server = [type(output) for name, output in run.outputs if name == run.agreement.server]
    assert of_server == [Summed]
    assert {client.state for client in run.clients.values()} == {ClientState.DONE}
    assert not any(isinstance(value, np.ndarray) for client in run.clients.values() for value in vars(client).values())
    assert {machine.deadline for machine in (run.server, *run.clients.values())} == {None}


@cases("length", [5, LENGTH])
@cases("order", [(0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)])
def test_the_sum_does_not_depend_on_the_order_in_which_vectors_come(
    order: tuple[int, ...], length: int, summed: ExactSum
) -> None:
    """Nor on one client that is gone: floats are added in the order of the roster."""
    run = plain_sum(5, length=length)
    # In another order these add up to something else.
    for name, factor in zip(run.vectors, (1.0, 1e12, -1e12, 3.0, 5.0), strict=True):
        run.vectors[name][:-1].view("<f4")[:] *= factor
    for place in order:
        run.contribute(f"c{place}")
        run.advance()
    run.kill("c4")
    run.settle()
    layout, result = run.agreement.plain, summed(run)
    assert layout is not None
    alone = [layout.decode(run.vectors[name], contributors=1).values for name in result.survivors]
    assert result.survivors == ("c0", "c1", "c2", "c3")
    expected = ((alone[0] + alone[1]) + alone[2]) + alone[3]
    assert np.array_equal(layout.decode(result.total, contributors=4).values, expected)
    assert not np.array_equal(((alone[3] + alone[2]) + alone[1]) + alone[0], expected)


def test_the_client_of_a_secure_sum_does_not_send_its_vector_plain() -> None:
    run = memory_sum(3, active=False)
    with pytest.raises(LocalProtocolError, match="must not leave without masks"):
        PlainSumClient(run.agreement, "c0", signing=run.signing["c0"], entropy=run.streams.of("x"))


NOBODY, SOMEBODY = encode_members((), 4), encode_members((2,), 4)


def said(complaints: bytes, signatures: bytes = b"") -> MaskedInput:
    return MaskedInput(complaints=complaints, signatures=signatures)


NAN, INFINITE = np.float32(np.nan).tobytes(), np.float32(-np.inf).tobytes()


WRONG: dict[str, tuple[int, str, int | None, Message | None, Frame | None, Code]] = {
    # Length of the vector; the type and the chunk that are replaced, by which message and payload; the verdict.
    "a whole vector too short": (5, "masked-input", None, None, bytes(16), Code.VECTOR),
    "a whole vector too long": (5, "masked-input", None, None, bytes(24), Code.VECTOR),
    "a part of a word": (5, "masked-input", None, None, bytes(21), Code.VECTOR),
    "no whole vector": (5, "masked-input", None, None, None, Code.VECTOR),
    "NaN": (5, "masked-input", None, None, bytes(12) + NAN + bytes(4), Code.VECTOR),
    "infinity": (5, "masked-input", None, None, INFINITE + bytes(16), Code.VECTOR),
    "a weight above the largest": (5, "masked-input", None, None, bytes(16) + b"\x65\0\0\0", Code.VECTOR),
    "a second weight": (5, "masked-input", None, None, bytes(16) + b"\1\1\0\0", Code.VECTOR),
    "a complaint": (5, "masked-input", None, said(SOMEBODY), bytes(20), Code.MEMBERS),
    "a bitmap of more members": (5, "masked-input", None, said(b"\x10"), bytes(20), Code.MEMBERS),
    "a signature": (5, "masked-input", None, said(NOBODY, bytes(64)), bytes(20), Code.SIGNATURE),
    "a long vector at once": (LENGTH, "masked-input", None, None, bytes(4 * LENGTH), Code.VECTOR),
    "a chunk too short": (LENGTH, "vector-chunk", 3, None, bytes(WORDS - 4), Code.VECTOR),
    "a chunk too long": (LENGTH, "vector-chunk", 3, None, bytes(WORDS + 1), Code.VECTOR),
    "an empty chunk": (LENGTH, "vector-chunk", 3, None, None, Code.VECTOR),
    "a chunk with infinity": (LENGTH, "vector-chunk", 3, None, bytes(WORDS - 4) + INFINITE, Code.VECTOR),
    "a last chunk with NaN": (LENGTH, "vector-chunk", CHUNKS - 1, None, bytes(12) + NAN + bytes(4), Code.VECTOR),
    "a last chunk with a wrong weight": (LENGTH, "vector-chunk", CHUNKS - 1, None, b"\xff" * 20, Code.VECTOR),
    "a chunk once more": (LENGTH, "vector-chunk", 3, VectorChunk(chunk=2), bytes(WORDS), Code.UNEXPECTED),
    "a chunk too early": (LENGTH, "vector-chunk", 3, VectorChunk(chunk=4), bytes(WORDS), Code.UNEXPECTED),
    "a chunk that nobody asked for": (5, "masked-input", None, VectorChunk(chunk=0), bytes(20), Code.UNEXPECTED),
}  # fmt: skip


@cases("wrong", WRONG)
def test_who_sends_something_wrong_is_excluded_and_named(wrong: str, summed: ExactSum) -> None:
    length, kind, chunk, message, payload, code = WRONG[wrong]
    run = plain_sum(4, length=length)

    def hook(delivery: Delivery) -> list[Delivery]:
        if (delivery.sender, delivery.kind, getattr(delivery.message, "chunk", None)) != ("c1", kind, chunk):
            return [delivery]
        return [replace(delivery, message=message or delivery.message, payload=payload)]

    run.hook = hook
    run.run()
    assert summed(run).survivors == ("c0", "c2", "c3")
    (drop,) = run.server.drops
    assert (drop.member, drop.phase, drop.code, drop.included) == ("c1", "MASKED_INPUT", code, False)
    (told,) = [delivery for delivery in run.log if delivery.kind == "abort" and delivery.sender == "server"]
    assert isinstance(told.message, Abort)
    assert (told.receiver, told.message.code, told.message.culprit) == ("c1", code, "c1")


@cases("noticed", [True, False])
@cases("sent", [0, 1, CHUNKS - 1, CHUNKS])
def test_a_vector_counts_whole_or_not_at_all(sent: int, noticed: bool, summed: ExactSum) -> None:
    run = plain_sum(UPLOADS + 2)
    chunks = 0

    def hook(delivery: Delivery) -> list[Delivery]:
        nonlocal chunks
        if delivery.sender == "c1" and delivery.kind == "vector-chunk":
            if chunks == sent:
                run.kill("c1") if noticed else run.dead.add("c1")
                return []
            chunks += 1
        elif chunks == CHUNKS and noticed and "c1" not in run.dead:
            run.kill("c1")
        return [delivery]

    run.hook = hook
    run.run()
    whole = sent == CHUNKS
    assert summed(run).survivors == tuple(name for name in run.agreement.cohort if whole or name != "c1")
    assert [(drop.member, drop.code, drop.included) for drop in run.server.drops] == (
        [] if whole and not noticed else [("c1", Code.LEFT if noticed else Code.TIMEOUT, whole)]
    )


def test_who_gives_up_is_out_and_its_turn_is_the_next_ones(summed: ExactSum) -> None:
    run = plain_sum(UPLOADS + 1)
    abort = Abort(code=Code.LOCAL, detail="the disk is full", culprit="c0")

    def hook(delivery: Delivery) -> list[Delivery]:
        if (delivery.sender, delivery.message) != ("c0", VectorChunk(chunk=1)):
            return [delivery]
        return [replace(delivery, message=abort, payload=None)]

    run.hook = hook
    run.run()
    assert summed(run).survivors == ("c1", "c2", "c3", "c4")
    (drop,) = run.server.drops
    assert (drop.member, drop.code, drop.detail) == ("c0", Code.LEFT, "it gave up: the disk is full")


def test_messages_said_twice_count_once(summed: ExactSum) -> None:
    run = plain_sum(UPLOADS + 2)
    run.hook = lambda delivery: [delivery] * (2 if delivery.kind == "masked-input" else 1)
    run.run()
    assert summed(run).survivors == run.agreement.cohort
    assert run.server.ignored == UPLOADS + 2
    asked = [delivery.message for delivery in run.log if delivery.receiver == "c0"]
    assert asked == [FetchVector(chunk=chunk) for chunk in range(CHUNKS)]


@cases("length", [5, LENGTH])
def test_who_trains_too_long_is_left_out(length: int, summed: ExactSum) -> None:
    run = plain_sum(3, length=length)
    run.contribute("c0")
    run.advance()
    assert run.server.waiting == {1, 2}
    # The transfer of c0 is over; c1 may train till the end.
    let_time_pass(run, np.nextafter(TRAINED + PHASE, 0))
    run.contribute("c1")
    run.advance()
    assert run.server.waiting == {2}
    run.settle()
    assert summed(run).survivors == ("c0", "c1")
    (drop,) = run.server.drops
    assert (drop.member, drop.phase, drop.code) == ("c2", "MASKED_INPUT", Code.TIMEOUT)
    hard_limit = TRAINED + (PHASE if length == 5 else 10 * PHASE)
    assert TRAINED + PHASE <= run.now <= min(TRAINED + 2 * PHASE, hard_limit)


@cases(("seconds", "included"), [(9.0, False), (7.0, True)])
def test_a_transfer_that_moves_is_waited_for_up_to_the_hard_limit(
    seconds: float, included: bool, summed: ExactSum
) -> None:
    # c1 begins when the training should be over; its 14 chunks at 9 seconds are more than ten phases of 10 seconds.
    run = plain_sum(2, length=14 * CHUNK_WORDS)
    run.contribute("c0")
    run.advance()
    let_time_pass(run, TRAINED)

    def hook(delivery: Delivery) -> list[Delivery]:
        if delivery.kind == "vector-chunk" and run.server.waiting:
            let_time_pass(run, seconds)
        return [delivery]

    run.hook = hook
    run.contribute("c1")
    run.settle()
    assert summed(run).survivors == (("c0", "c1") if included else ("c0",))
    assert [drop.code for drop in run.server.drops] == ([] if included else [Code.TIMEOUT])
    # The first step beyond the limit, or the last chunk.
    assert run.now == (TRAINED + 14 * 7.0 if included else TRAINED + 12 * 9.0)


@cases(("fewest", "there"), [(0, 0), (0, 1), (2, 1), (2, 2), (4, 3), (4, 4)])
def test_the_sum_needs_as_many_vectors_as_the_agreement_says(fewest: int, there: int, audit: Audit) -> None:
    run = plain_sum(4, length=5, fewest=fewest)
    run.contribute(*run.agreement.cohort[:there])
    run.advance()
    for name in run.agreement.cohort[there:]:
        run.kill(name)
    outcome = audit(run)
    if there >= max(fewest, 1):
        assert isinstance(outcome, Summed)
        assert outcome.survivors == run.agreement.cohort[:there]
    else:
        assert isinstance(outcome, ServerAborted)
        assert outcome.code is Code.THRESHOLD
        assert outcome.detail.startswith(f"only {there} clients sent a vector; {max(fewest, 1)} are needed; ")
        run.advance()
        told = [delivery.receiver for delivery in run.log if delivery.kind == "abort"]
        assert told == list(run.agreement.cohort[:there])


@cases("asked", [True, False])
@cases("length", [CHUNK_WORDS, LENGTH])
def test_single_vectors_are_kept_and_handed_out_only_where_asked_for(
    length: int, asked: bool, summed: ExactSum
) -> None:
    """Those in the sum, whole: one client goes after its vector, another in the middle of it."""
    made = plain_sum(4, length=length)
    run = MemorySum(replace(made.agreement, single_vectors=asked), made.signing, made.vectors, made.streams)
    run.contribute("c0")
    run.advance()
    run.kill("c0")
    run.contribute("c1")
    assert run.advance(lambda: length == CHUNK_WORDS or any(isinstance(d.message, VectorChunk) for d in run.log[-1:]))
    run.kill("c1")
    run.contribute("c2", "c3")
    run.settle()
    result = summed(run)
    assert set(result.survivors) == {"c0", "c2", "c3"}
    assert list(result.vectors) == (list(result.survivors) if asked else [])
    for name, words in result.vectors.items():
        assert np.array_equal(words, run.vectors[name])
    assert len(run.server._vectors.vectors) == len(result.vectors), "no memory is spent on what nobody asked for"
