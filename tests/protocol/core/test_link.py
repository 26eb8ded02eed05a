"""A link finds what was replayed, reordered, lost or said elsewhere, and counts what passes."""

import pytest

from tacit.protocol.core.codec import Frame, decode
from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.link import Link, Traffic
from tacit.protocol.core.messages import Abort, Chunk, Fetch, Message
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
