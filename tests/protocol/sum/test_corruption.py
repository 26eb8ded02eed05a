"""Every single-field corruption of a whole transcript: an exact sum or a coded end, never a wrong sum or a crash."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import msgspec
import numpy as np

from tacit.protocol.core.errors import Code
from tacit.protocol.core.messages import Message
from tacit.protocol.sum.exchange import ClientAborted, ServerAborted, Summed
from tests.cases import cases
from tests.world.exchange import Delivery
from tests.world.sums import MemorySum, memory_sum

Audit = Callable[[MemorySum], Summed | ServerAborted]
CLIENTS = 4
SEED = b"corruption"


def corrupted(value: bytes) -> Iterator[bytes]:
    """A bit flipped at the start, in the middle and at the end; shorter, longer, empty."""
    for place, bit in {0: 1, len(value) // 2: 1, len(value) - 1: 128}.items() if value else ():
        yield value[:place] + bytes([value[place] ^ bit]) + value[place + 1 :]
    if value:
        yield value[:-1]
        yield b""
    yield value + bytes(1)
    yield value + value


def variants(message: Message) -> Iterator[Message]:
    for name in message.__struct_fields__:
        value = getattr(message, name)
        assert isinstance(value, bytes), "all fields of a sum's messages are byte strings"
        for other in corrupted(value):
            yield msgspec.structs.replace(message, **{name: other})


@cache
def transcript(active: bool) -> list[Delivery]:
    run = memory_sum(CLIENTS, active=active, seed=SEED)
    run.run()
    return run.log


def play(active: bool, position: int, changed: Delivery) -> MemorySum:
    run = memory_sum(CLIENTS, active=active, seed=SEED)

    def hook(delivery: Delivery) -> list[Delivery]:
        return [changed if len(run.log) == position else delivery]

    run.hook = hook
    run.run()
    return run


@cases("kind", ["advertise-keys", "peer-keys", "share-keys", "peer-shares", "masked-input",
                                  "survivors", "confirm-survivors", "unmask-request", "unmask-shares"])  # fmt: skip
@cases("active", [True, False])
def test_every_field_of_every_message(active: bool, kind: str, audit: Audit) -> None:
    # The first and the last member are as different as members get; who signs nothing is the same in either place.
    looked_at = {"c0", "c3"} if active else {"c0"}
    messages = [
        (position, delivery)
        for position, delivery in enumerate(transcript(active))
        if delivery.kind == kind and {delivery.sender, delivery.receiver} & looked_at
    ]
    assert bool(messages) == (active or kind not in ("survivors", "confirm-survivors"))
    for position, delivery in messages:
        client = delivery.sender if delivery.receiver == "server" else delivery.receiver
        for message in variants(delivery.message):
            run = play(active, position, replace(delivery, message=message))
            outcome = audit(run)
            codes = [drop.code for drop in run.server.drops]
            assert all(isinstance(code, Code) for code in codes)
            assert {drop.member for drop in run.server.drops} <= {client}
            # One bad message is not enough to end a sum of four; the rest of a client's say would be.
            assert isinstance(outcome, Summed) or kind == "share-keys"
            if isinstance(outcome, ServerAborted):
                assert outcome.culprit == client
            for aborted in run.outcome(ClientAborted):
                assert isinstance(aborted.code, Code)


@cases("active", [True, False])
def test_only_the_vector_itself_is_taken_as_it_is(active: bool) -> None:
    # A client may contribute what it likes; that nobody else changes it on the way is the link's part. A flipped bit
    # is in the sum as that bit, and nowhere else.
    for position, delivery in enumerate(transcript(active)):
        if delivery.payload is None:
            continue
        payload = bytearray(delivery.payload)
        payload[6] ^= 4
        run = play(active, position, replace(delivery, payload=bytes(payload)))
        (outcome,) = run.outcome(Summed)
        difference: Any = outcome.total - run.plain_sum(outcome.survivors)
        assert np.flatnonzero(difference).tolist() == [1]
        assert int(difference[1]) in (1 << 18, 2**32 - (1 << 18))
