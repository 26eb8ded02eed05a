"""Times of single messages: both ends note the same ones, and no secret with them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pytest

from tacit.parties.session.event_log import MOST_NOTES, MessageTimes, read
from tacit.parties.session.events import MessagesTimed
from tacit.protocol.core.codec import Envelope as Head
from tacit.protocol.core.codec import Frame, encode_structure

SESSION = bytes(range(32))


def frames(kind: str, *, round: int = 1, sequence: int = 0, session: bytes = SESSION) -> Sequence[Frame]:
    head = Head(version=2, type=kind, session=session, round=round, sender="alice", sequence=sequence)
    return [encode_structure(head), b"body"]


def keys(taken: dict[Any, Any], direction: str) -> list[tuple[Any, ...]]:
    return [tuple(note[:-1]) for note in taken.get(direction, ())]


def test_the_first_of_messages_alike_is_noted_with_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "time", lambda: now[0])
    times = MessageTimes()
    for sequence, kind in enumerate(("start-round", "chunk", "chunk", "chunk", "public-keys")):
        now[0] += 1.0
        times.note("sent", "bob", frames(kind, sequence=sequence))
    times.note("received", "bob", frames("fetch", sequence=7))
    assert times.take() == {
        "sent": [("bob", "00010203", 1, 0, 101.0), ("bob", "00010203", 1, 1, 102.0), ("bob", "00010203", 1, 4, 105.0)],
        "received": [("bob", "00010203", 1, 7, 105.0)],
    }
    times.note("sent", "bob", frames("public-keys", sequence=5))
    assert times.take() == {}


@pytest.mark.parametrize("unreadable", [[], [b""], [b"\xc1"], [bytes(9999), b""], frames("hello", session=bytes(32))])
def test_of_a_hello_and_of_what_cannot_be_read_nothing_is_noted(unreadable: Sequence[Frame]) -> None:
    times = MessageTimes()
    times.note("received", "mallory", unreadable)
    assert times.take() == {}


def test_a_member_that_chatters_fills_no_log() -> None:
    times = MessageTimes()
    for sequence in range(100):
        times.note("received", "mallory", frames(f"kind-{sequence}", sequence=sequence))
    times.note("received", "bob", frames("chunk"))
    assert len(times.take()["received"]) == MOST_NOTES + 1


@pytest.mark.asyncio
async def test_both_ends_note_the_same_messages(federation: Any) -> None:
    serving = await federation.serve(rounds=2)
    clients = [federation.join(name) for name in federation.clients]
    await federation.all_of(serving, *clients)
    noted: dict[str, dict[str, dict[tuple[Any, ...], float]]] = {}
    for name in ("server", *federation.clients):
        mine = noted.setdefault(name, {"sent": {}, "received": {}})
        for event in read(federation.directory / f"{name}.events"):
            for direction, found in mine.items() if isinstance(event, MessagesTimed) else ():
                for peer, *key, when in getattr(event, direction):
                    found[peer, *key] = when
    for name in federation.clients:
        for outwards, inwards in (("sent", "received"), ("received", "sent")):
            there = {key[1:]: when for key, when in noted["server"][outwards].items() if key[0] == name}
            here = {key[1:]: when for key, when in noted[name][inwards].items()}
            assert there.keys() == here.keys()
            assert {key[1] for key in here} >= {1, 2}
            assert len(here) >= 2 * 4
            early, late = (there, here) if outwards == "sent" else (here, there)
            assert all(early[key] <= late[key] for key in here)
