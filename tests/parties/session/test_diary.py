"""The diary: phases with their seconds, and traffic that is reported once and in whole."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tacit.parties.session.event_log import Diary, EventLog, read
from tacit.protocol.core.link import Traffic
from tacit.protocol.core.messages import Phase

Told = list[tuple[str, dict[str, Any]]]


@pytest.fixture
def told() -> Told:
    return []


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """clock(seconds) sets the time; it starts at 100."""
    times = [100.0]
    monkeypatch.setattr(Diary, "now", staticmethod(lambda: times[0]))
    return lambda seconds: times.__setitem__(0, seconds)


@pytest.fixture
def diary(tmp_path: Path, told: Told, clock: Callable[[float], None]) -> Iterator[Diary]:
    with EventLog(tmp_path / "alice.jsonl", "alice") as log:
        yield Diary(log, lambda event, fields: told.append((event, fields)))


def test_what_is_told_is_what_is_logged(tmp_path: Path, diary: Diary, told: Told) -> None:
    diary.write("joined", member="bob")
    diary.write("ended", code=None)
    logged = [
        (event.pop("event"), {key: value for key, value in event.items() if key not in ("time", "party")})
        for event in read(tmp_path / "alice.jsonl")
    ]
    assert logged == told == [("joined", {"member": "bob"}), ("ended", {"code": None})]


def test_a_phase_is_reported_when_it_is_left(diary: Diary, told: Told, clock: Callable[[float], None]) -> None:
    traffic = Traffic()
    diary.follow(0, Phase.SESSION, traffic)
    assert told == []
    clock(102.0)
    diary.follow(1, Phase.TRAIN, traffic)
    clock(107.0)
    diary.follow(1, Phase.TRAIN, traffic)
    clock(110.0)
    diary.follow(2, Phase.TRAIN, traffic)
    assert told == [
        ("phase", {"round": 0, "phase": "SESSION", "seconds": 2.0, "next": "TRAIN"}),
        ("phase", {"round": 1, "phase": "TRAIN", "seconds": 8.0, "next": "TRAIN"}),
    ]


def test_traffic_is_reported_by_the_phase_that_it_belongs_to_and_never_twice(diary: Diary, told: Told) -> None:
    traffic = Traffic()
    traffic.sent[0, Phase.SESSION] += 10
    traffic.received[0, Phase.SESSION] += 5
    diary.follow(1, Phase.TRAIN, traffic)
    traffic.sent[1, Phase.TRAIN] += 100
    traffic.sent[0, Phase.SESSION] += 1
    diary.follow(1, Phase.UNMASK, traffic)
    diary.follow(2, Phase.TRAIN, traffic)
    traffic.received[1, Phase.UNMASK] += 7
    diary.close(traffic)
    reports = [fields for event, fields in told if event == "traffic"]
    assert reports == [
        {"round": 0, "phase": "SESSION", "sent": 10, "received": 5},
        {"round": 0, "phase": "SESSION", "sent": 1, "received": 0},
        {"round": 1, "phase": "TRAIN", "sent": 100, "received": 0},
        {"round": 1, "phase": "UNMASK", "sent": 0, "received": 7},
    ]
    sent, received = Counter[tuple[int, str]](), Counter[tuple[int, str]]()
    for report in reports:
        sent[report["round"], report["phase"]] += report["sent"]
        received[report["round"], report["phase"]] += report["received"]
    assert sum(sent.values()) == sum(traffic.sent.values())
    assert sum(received.values()) == sum(traffic.received.values())


def test_closing_reports_traffic_even_without_a_change_of_phase(diary: Diary, told: Told) -> None:
    traffic = Traffic()
    traffic.sent[0, Phase.SESSION] += 3
    diary.close(traffic)
    diary.close(traffic)
    assert told == [("traffic", {"round": 0, "phase": "SESSION", "sent": 3, "received": 0})]


# What a peer repeats


def links(told: Told) -> list[tuple[str, int]]:
    """The events of links, and how many before each were left out."""
    return [(event, fields.get("omitted", 0)) for event, fields in told if event.startswith("link-")]


def test_what_repeats_is_written_once_in_ten_seconds_and_the_last_at_last(
    diary: Diary, told: Told, clock: Callable[[float], None]
) -> None:
    for number in range(1000):
        clock(100.0 + number / 100)
        diary.write("link-up", peer="bob")
        diary.write("link-lost", peer="bob")
    assert links(told) == [("link-up", 0), ("link-lost", 0)]
    # Others, and other events, wait for nobody.
    diary.write("link-up", peer="carol")
    diary.write("joined", member="bob")
    assert len(told) == 4
    clock(111.5)
    diary.mention("alive")
    assert links(told)[3:] == [("link-up", 998), ("link-lost", 998)]


def test_the_last_that_is_written_is_the_last_that_happened(
    diary: Diary, told: Told, clock: Callable[[float], None]
) -> None:
    diary.write("link-lost", peer="bob")
    clock(105.0)
    diary.write("link-up", peer="bob")
    clock(106.0)
    for event in ("link-lost", "link-up", "link-lost"):
        diary.write(event, peer="bob")
    for seconds in (111.0, 112.0):
        clock(seconds)
        diary.mention("alive")
    # It is time for the one, and not for the other that came before it.
    assert links(told) == [("link-lost", 0), ("link-up", 0)]
    clock(116.0)
    diary.mention("alive")
    assert links(told)[2:] == [("link-up", 0), ("link-lost", 1)]


def test_nothing_is_left_out_at_the_end(diary: Diary, told: Told) -> None:
    for _ in range(3):
        diary.write("not-sent", to="bob", reason="its queue is full")
    diary.close(Traffic())
    assert [fields.get("omitted") for event, fields in told if event == "not-sent"] == [None, 1]
    diary.write("not-sent", to="bob", reason="its queue is full")


def test_nothing_is_kept_of_those_that_have_gone(diary: Diary, clock: Callable[[float], None]) -> None:
    for number in range(1000):
        diary.write("stranger", reason="no key", public_key=str(number), address="192.0.2.7")
    assert len(diary._repeats) == 1000
    clock(200.0)
    diary.mention("alive")
    assert not diary._repeats
