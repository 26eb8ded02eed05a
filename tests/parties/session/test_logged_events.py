"""The event_log: phases with their seconds, and traffic that is reported once and in whole."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from msgspec import structs

from tacit.parties.session.event_log import EventFile, EventLog, read
from tacit.parties.session.events import (
    HandshakeRefused,
    HeartbeatSent,
    LinkLost,
    LinkOpened,
    PhaseEnded,
    SendFailed,
    SessionEnded,
    TrafficCounted,
)
from tacit.protocol.core.events import Event
from tacit.protocol.core.link import Traffic
from tacit.protocol.session.events import ClientJoined
from tacit.protocol.sum.states import Phase

Told = list[Event]


@pytest.fixture
def told() -> Told:
    return []


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    times = [100.0]
    monkeypatch.setattr(EventLog, "now", staticmethod(lambda: times[0]))
    return lambda seconds: times.__setitem__(0, seconds)


@pytest.fixture
def event_log(tmp_path: Path, told: Told, clock: Callable[[float], None]) -> Iterator[EventLog]:
    with EventFile(tmp_path / "alice.jsonl", "alice") as log:
        yield EventLog(log, told.append)


def plain(events: Iterable[Event]) -> list[Event]:
    return [structs.replace(event, time=0.0, party="") for event in events]


def test_what_is_passed_on_is_what_is_logged(tmp_path: Path, event_log: EventLog, told: Told) -> None:
    event_log.write(ClientJoined(member="bob"))
    event_log.write(SessionEnded(code=None, detail=""))
    assert list(read(tmp_path / "alice.jsonl")) == told
    assert {event.party for event in told} == {"alice"}
    assert plain(told) == [ClientJoined(member="bob"), SessionEnded(code=None, detail="")]


def test_a_phase_is_reported_when_it_is_left(event_log: EventLog, told: Told, clock: Callable[[float], None]) -> None:
    traffic = Traffic()
    event_log.follow(0, Phase.SESSION, traffic)
    assert told == []
    clock(102.0)
    event_log.follow(1, Phase.TRAIN, traffic)
    clock(107.0)
    event_log.follow(1, Phase.TRAIN, traffic)
    clock(110.0)
    event_log.follow(2, Phase.TRAIN, traffic)
    assert plain(told) == [
        PhaseEnded(round=0, phase=Phase.SESSION, seconds=2.0, next=Phase.TRAIN),
        PhaseEnded(round=1, phase=Phase.TRAIN, seconds=8.0, next=Phase.TRAIN),
    ]


def test_traffic_is_reported_by_the_phase_that_it_belongs_to_and_never_twice(event_log: EventLog, told: Told) -> None:
    traffic = Traffic()
    traffic.sent[0, Phase.SESSION] += 10
    traffic.received[0, Phase.SESSION] += 5
    event_log.follow(1, Phase.TRAIN, traffic)
    traffic.sent[1, Phase.TRAIN] += 100
    traffic.sent[0, Phase.SESSION] += 1
    event_log.follow(1, Phase.UNMASK, traffic)
    event_log.follow(2, Phase.TRAIN, traffic)
    traffic.received[1, Phase.UNMASK] += 7
    event_log.close(traffic)
    reports = [event for event in plain(told) if isinstance(event, TrafficCounted)]
    assert reports == [
        TrafficCounted(round=0, phase=Phase.SESSION, sent=10, received=5),
        TrafficCounted(round=0, phase=Phase.SESSION, sent=1, received=0),
        TrafficCounted(round=1, phase=Phase.TRAIN, sent=100, received=0),
        TrafficCounted(round=1, phase=Phase.UNMASK, sent=0, received=7),
    ]
    sent, received = Counter[tuple[int, Phase]](), Counter[tuple[int, Phase]]()
    for report in reports:
        sent[report.round, report.phase] += report.sent
        received[report.round, report.phase] += report.received
    assert sum(sent.values()) == sum(traffic.sent.values())
    assert sum(received.values()) == sum(traffic.received.values())


def test_closing_reports_traffic_even_without_a_change_of_phase(event_log: EventLog, told: Told) -> None:
    traffic = Traffic()
    traffic.sent[0, Phase.SESSION] += 3
    event_log.close(traffic)
    event_log.close(traffic)
    assert plain(told) == [TrafficCounted(round=0, phase=Phase.SESSION, sent=3, received=0)]


# What a peer repeats


def links(told: Told) -> list[tuple[type[Event], int]]:
    """The events of links, and how many before each were left out."""
    return [(type(event), event.omitted) for event in told if isinstance(event, LinkOpened | LinkLost)]


def test_what_repeats_is_written_once_in_ten_seconds_and_the_last_at_last(
    event_log: EventLog, told: Told, clock: Callable[[float], None]
) -> None:
    for number in range(1000):
        clock(100.0 + number / 100)
        event_log.write(LinkOpened(peer="bob"))
        event_log.write(LinkLost(peer="bob"))
    assert links(told) == [(LinkOpened, 0), (LinkLost, 0)]
    # Others, and other events, wait for nobody.
    event_log.write(LinkOpened(peer="carol"))
    event_log.write(ClientJoined(member="bob"))
    assert len(told) == 4
    clock(111.5)
    event_log.mention(HeartbeatSent())
    assert links(told)[3:] == [(LinkOpened, 998), (LinkLost, 998)]


def test_the_last_that_is_written_is_the_last_that_happened(
    event_log: EventLog, told: Told, clock: Callable[[float], None]
) -> None:
    event_log.write(LinkLost(peer="bob"))
    clock(105.0)
    event_log.write(LinkOpened(peer="bob"))
    clock(106.0)
    for kind in (LinkLost, LinkOpened, LinkLost):
        event_log.write(kind(peer="bob"))
    for seconds in (111.0, 112.0):
        clock(seconds)
        event_log.mention(HeartbeatSent())
    # It is time for the one, and not for the other that came before it.
    assert links(told) == [(LinkLost, 0), (LinkOpened, 0)]
    clock(116.0)
    event_log.mention(HeartbeatSent())
    assert links(told)[2:] == [(LinkOpened, 0), (LinkLost, 1)]


def test_nothing_is_left_out_at_the_end(event_log: EventLog, told: Told) -> None:
    for _ in range(3):
        event_log.write(SendFailed(to="bob", reason="its queue is full"))
    event_log.close(Traffic())
    assert [event.omitted for event in told if isinstance(event, SendFailed)] == [0, 1]
    event_log.write(SendFailed(to="bob", reason="its queue is full"))


def test_nothing_is_kept_of_those_that_have_gone(event_log: EventLog, clock: Callable[[float], None]) -> None:
    for number in range(1000):
        event_log.write(HandshakeRefused(reason="no key", public_key=str(number), address="192.0.2.7"))
    assert len(event_log._repeats) == 1000
    clock(200.0)
    event_log.mention(HeartbeatSent())
    assert not event_log._repeats
