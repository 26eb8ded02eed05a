"""Whatever the bytes: a message that our encoder would have written the same way, or a refusal with a code."""

import time
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tacit.protocol.core.codec import Envelope, decode, encode
from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.messages import Abort, Chunk, Fetch, Resume
from tacit.protocol.group_key.messages import EndKey, KeyComplaint
from tacit.protocol.session.messages import MESSAGES, FetchFixed, NewRoster
from tacit.protocol.sum.messages import AnswerComplaints, FetchVector, PeerComplaints, VectorChunk
from tacit.protocol.sum.states import VERSION
from tacit.simulate.bench.ends import Peak
from tacit.simulate.world.federation import MemoryFederation, small_configuration

FRAMES_PER_EXAMPLE = 100
MOST_BYTES = 64 << 20
"""Above what a run starts with. A message of the samples has a few kilobytes; a claim of 2**32 items that was believed,
or a trace of every message that was kept, would exceed this."""


def samples() -> list[list[Any]]:
    """Valid messages of every type: of a whole round under a group key, and those that need a fault or more."""
    configuration = small_configuration(3, encrypted=True, group_key=True)
    federation = MemoryFederation(configuration, 3).run()
    rare = (
        KeyComplaint(epoch=0, accused=1, channel_private=bytes(32)),
        Abort(code=Code.LOCAL, detail="the disk is full", culprit=""),
        NewRoster(roster=federation.roster.encoded, signature=bytes(64)),
        FetchVector(chunk=1),
        VectorChunk(chunk=1),
        PeerComplaints(holders=b"\x02", signatures=bytes(64)),
        AnswerComplaints(shares=bytes(72)),
        Fetch(chunk=1),
        FetchFixed(chunk=1),
        Chunk(chunk=1),
        EndKey(epoch=0, code=Code.LEFT, detail="", culprit="client-1"),
        Resume(),
    )
    envelope = {"version": VERSION, "session": bytes(32), "round": 1, "sender": "client-0", "sequence": 3}
    messages = [list(parcel.frames) for parcel in federation.log]
    messages += [encode(message, Envelope(type=message.TYPE, **envelope)) for message in rare]
    assert {decode(frames, MESSAGES).envelope.type for frames in messages} == set(MESSAGES)
    return messages


def outcome(frames: list[Any]) -> str:
    try:
        packet = decode(frames, MESSAGES)
        message = packet.parse()
    except RemoteProtocolError as error:
        return Code(error.code).name
    assert encode(message, packet.envelope, packet.payload) == frames
    return "accepted"


def test_mutated_frames(mutate: Callable, budget: Callable, tell: Callable) -> None:
    messages = samples()
    outcomes: Counter[str] = Counter()
    peak, began = Peak(), time.perf_counter()

    @budget(30, 10_000)
    @given(st.integers(0, 2**64 - 1))
    def check(seed: int) -> None:
        random = Random(seed)
        for _ in range(FRAMES_PER_EXAMPLE):
            outcomes[outcome(mutate(random, random.choice(messages), messages))] += 1

    check()
    assert outcomes.keys() == {"accepted", Code.MALFORMED.name, Code.VERSION.name}
    tell("messages through the codec", outcomes, time.perf_counter() - began, peak.bytes())
    assert peak.bytes() < MOST_BYTES
