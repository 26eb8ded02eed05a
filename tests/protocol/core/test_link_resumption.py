"""What a link keeps and says again, and the numbers that it refuses when somebody goes on."""

import pytest

from tacit.protocol.core import link as module
from tacit.protocol.core.codec import Envelope, Packet, decode, encode_structure
from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.link import MOST_KEPT, MOST_KEPT_BYTES, NO_SESSION, Link, Traffic
from tacit.protocol.core.machine import Transmit
from tacit.protocol.core.messages import CHUNK_BYTES, Chunk, Fetch, Resume
from tacit.protocol.inference.messages import INFERENCE_MESSAGES
from tacit.protocol.session.messages import MESSAGES
from tests.cases import cases

SESSION = bytes(range(32))


def ends() -> tuple[Link, Link]:
    return Link("alice", "server", SESSION, Traffic(), MESSAGES), Link("server", "alice", SESSION, Traffic(), MESSAGES)


def packet(said: Transmit, **changes: int | bytes) -> Packet:
    fields = {name: getattr(decode(said.frames, MESSAGES).envelope, name) for name in Envelope.__struct_fields__}
    return decode([encode_structure(Envelope(**fields | changes)), *said.frames[1:]], MESSAGES)  # type: ignore[operator]


def numbers(said: list[Transmit] | None) -> list[tuple[str, int, int, int]]:
    envelopes = [decode(one.frames, MESSAGES).envelope for one in said or ()]
    return [(envelope.type, envelope.sequence, envelope.link, envelope.received) for envelope in envelopes]


def test_both_say_again_what_the_other_has_not_received() -> None:
    alice, server = ends()
    asked = [alice.transmit(Fetch(chunk=number), round=1) for number in range(4)]
    for said in asked[:2]:
        server.packet(said.frames)
    payload = memoryview(bytes(1000))
    answers = [server.transmit(Chunk(chunk=number), round=1, payload=payload) for number in range(2)]
    alice.packet(answers[0].frames)
    server.asked(packet(alice.ask()))
    resumed = server.answer()
    assert numbers(resumed) == [("resume", 1, 1, 2), ("chunk", 1, 1, 2)]
    assert resumed is not None
    assert resumed[1].frames[2] is payload
    alice.answered(packet(resumed[0]))
    assert numbers(alice.rest()) == [("fetch", 2, 1, 1), ("fetch", 3, 1, 1)]
    alice.packet(resumed[1].frames)
    for said in alice.rest() or ():
        server.packet(said.frames)
    assert numbers([alice.transmit(Fetch(chunk=4), round=1)]) == [("fetch", 4, 1, 2)]
    # What came over the former connection is late, at either end.
    assert server.late(packet(asked[2]))
    assert alice.late(packet(answers[0]))


@cases(
    ("changes", "code"),
    [
        ({"link": 0}, Code.SEQUENCE),
        ({"sequence": 1}, Code.SEQUENCE),
        ({"received": 1}, Code.SEQUENCE),
        ({"sender": "bob"}, Code.SENDER),
        ({"session": bytes(range(1, 33))}, Code.SESSION),
    ],
)
def test_what_nobody_can_ask(changes: dict[str, int | bytes], code: Code) -> None:
    alice, server = ends()
    for number in range(2):
        server.packet(alice.transmit(Fetch(chunk=number), round=1).frames)
    asked = alice.ask()
    with pytest.raises(RemoteProtocolError) as caught:
        server.asked(packet(asked, **changes))
    assert (caught.value.code, caught.value.culprit) == (code, "alice")
    server.asked(packet(asked))  # The refused one has changed nothing.


def test_who_goes_on_has_received_what_it_says() -> None:
    alice, server = ends()
    server.asked(packet(alice.ask()))
    early = packet(server.transmit(Chunk(chunk=0), round=1), link=1)
    with pytest.raises(RemoteProtocolError, match="link 1 is not agreed on") as caught:
        alice.accept(early)
    assert caught.value.code is Code.SEQUENCE
    alice, server = ends()
    with pytest.raises(RemoteProtocolError, match="it has received 1 messages where 0 were said"):
        server.accept(packet(alice.transmit(Fetch(chunk=0), round=1), received=1))
    alice, server = ends()
    for round in (0, 1, 2):
        server.transmit(Chunk(chunk=0), round=round)
    server.accept(packet(alice.transmit(Fetch(chunk=0), round=2), received=1))
    server.check_heard(1)
    with pytest.raises(RemoteProtocolError, match="in round 2 it has not received message 1, of round 1"):
        server.check_heard(2)


@cases("payload", [1, CHUNK_BYTES])
def test_what_is_kept_is_bounded_and_beyond_that_nobody_goes_on(payload: int) -> None:
    alice, server = ends()
    fits = MOST_KEPT if payload == 1 else MOST_KEPT_BYTES // CHUNK_BYTES - 1
    for number in range(fits):
        server.transmit(Chunk(chunk=number), round=1, payload=bytes(payload))
    server.asked(packet(alice.ask()))
    assert len(server.answer() or ()) == 1 + fits
    server.transmit(Chunk(chunk=fits), round=1, payload=bytes(payload))
    assert len(server._kept) == fits
    server.asked(packet(alice.ask()))
    assert server.answer() is None


def test_who_may_go_on_and_what_is_kept_for_it() -> None:
    alice, server = ends()
    asked = packet(alice.ask(), session=NO_SESSION)
    assert server.may_be_asked(asked.envelope)
    server.packet(Link("alice", "server", SESSION, Traffic(), MESSAGES).frames(Fetch(chunk=0), round=1))
    assert not server.may_be_asked(asked.envelope)
    assert Resume.TYPE not in INFERENCE_MESSAGES
    link = Link("clinic", "hospital", SESSION, Traffic(), INFERENCE_MESSAGES)
    for _ in range(3):
        link.frames(module.Abort(code=Code.LEFT, detail="", culprit=""), round=0)
    assert not link._kept
