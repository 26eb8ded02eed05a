"""A link finds what was replayed, reordered, lost or said elsewhere, counts what passes, and repeats what was lost."""

import pytest

from tacit.protocol.core import link as module
from tacit.protocol.core.codec import Envelope, Frame, Packet, decode, encode_structure
from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.link import MOST_KEPT, MOST_KEPT_BYTES, NO_SESSION, Link, Traffic
from tacit.protocol.core.machine import Transmit
from tacit.protocol.core.messages import CHUNK_BYTES, Abort, Chunk, Fetch, Message, Resume
from tacit.protocol.inference.messages import INFERENCE_MESSAGES
from tacit.protocol.session.messages import MESSAGES
from tacit.protocol.sum.states import Phase
from tests.cases import cases

SESSION = bytes(range(32))


def ends(session: bytes = SESSION) -> tuple[Link, Link]:
    return Link("alice", "server", session, Traffic(), MESSAGES), Link("server", "alice", session, Traffic(), MESSAGES)


def said(link: Link, *messages: Message) -> list[list[Frame]]:
    return [link.frames(message, round=2) for message in messages]


FETCHES = [Fetch(chunk=chunk) for chunk in range(3)]


def test_what_is_sent_in_order_arrives() -> None:
    client, server = ends()
    packets = [server.packet(frames) for frames in said(client, *FETCHES)]
    assert [packet.parse() for packet in packets] == FETCHES
    assert [packet.envelope.sequence for packet in packets] == [0, 1, 2]
    assert {(packet.envelope.sender, packet.envelope.session, packet.envelope.round) for packet in packets} == {
        ("alice", SESSION, 2)
    }
    answer = client.packet(said(server, Chunk(chunk=0))[0])
    assert (answer.envelope.sender, answer.envelope.sequence) == ("server", 0)


@cases(
    ("order", "refused"),
    [
        ([1], 0),  # lost
        ([0, 0], 1),  # replayed
        ([0, 2], 1),  # lost in the middle
        ([0, 1, 0], 2),  # replayed later
    ],
)
def test_sequence(order: list[int], refused: int) -> None:
    client, server = ends()
    frames = said(client, *FETCHES)
    for place in order[:refused]:
        server.packet(frames[place])
    with pytest.raises(RemoteProtocolError, match=f"message {order[refused]} came where message {refused}") as caught:
        server.packet(frames[order[refused]])
    assert (caught.value.code, caught.value.culprit) == (Code.SEQUENCE, "alice")
    server.packet(frames[refused])  # The refused one has changed nothing.


@cases(
    ("own", "peer", "session", "code", "detail"),
    [
        ("bob", "server", SESSION, Code.SENDER, "it calls itself 'bob'"),
        ("server", "alice", SESSION, Code.SENDER, "it calls itself 'server'"),
        ("alice", "server", bytes(32), Code.SESSION, "of another session"),
    ],
)
def test_messages_of_others(own: str, peer: str, session: bytes, code: Code, detail: str) -> None:
    _, server = ends()
    with pytest.raises(RemoteProtocolError, match=detail) as caught:
        server.packet(Link(own, peer, session, Traffic(), MESSAGES).frames(FETCHES[0], round=2))
    assert (caught.value.code, caught.value.culprit) == (code, "alice")


def test_traffic_is_counted_in_bytes_by_round_and_phase() -> None:
    sent, received = Traffic(), Traffic()
    client, server = (
        Link("alice", "server", SESSION, sent, MESSAGES),
        Link("server", "alice", SESSION, received, MESSAGES),
    )
    fetch = client.frames(FETCHES[0], round=1)
    abort = client.frames(Abort(code=Code.LEFT, detail="", culprit=""), round=0)
    for frames in (fetch, abort):
        server.packet(frames)
    expected = {(1, Phase.TRAIN): sum(map(len, fetch)), (0, Phase.SESSION): sum(map(len, abort))}
    assert sent.sent == received.received == expected
    assert not sent.received
    assert not received.sent
    chunk = server.frames(Chunk(chunk=0), round=1, payload=memoryview(bytes(1000)))
    assert received.sent == {(1, Phase.TRAIN): sum(map(len, chunk))}
    assert decode(chunk, MESSAGES).payload == bytes(1000)
    traffic = Traffic()
    server = Link("server", "alice", SESSION, traffic, MESSAGES)
    with pytest.raises(RemoteProtocolError):
        server.packet(Link("bob", "server", SESSION, Traffic(), MESSAGES).frames(FETCHES[0], round=2))
    assert not traffic.received


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
