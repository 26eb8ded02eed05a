"""The event log: its lines, phases with their seconds, traffic, and times of single messages."""

from __future__ import annotations

import json
import re
import time
import typing
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

import tacit.parties.runs.state  # noqa: F401  # It imports all events.
from tacit.parties.session.event_log import (
    MOST_NOTES,
    EventFile,
    EventLog,
    EventLogError,
    MessageTimes,
    declared_events,
    read,
)
from tacit.parties.session.events import (
    Dropout,
    HandshakeRefused,
    HeartbeatSent,
    LinkLost,
    LinkOpened,
    MessagesTimed,
    PhaseEnded,
    SendFailed,
    SessionEnded,
    StateRestored,
    TrafficCounted,
)
from tacit.protocol.core.codec import Envelope as Head
from tacit.protocol.core.codec import Frame, encode_structure
from tacit.protocol.core.errors import printable
from tacit.protocol.core.events import Event
from tacit.protocol.core.link import Traffic
from tacit.protocol.session.events import ClientJoined, ClientLeft
from tacit.protocol.sum.states import Phase

FLOATS = st.floats(allow_nan=False, allow_infinity=False)
WORDS = st.text(st.characters(exclude_categories=("C", "Z")))


class Happened(Event, frozen=True, kw_only=True):
    value: Any = None
    phase: Phase = Phase.TRAIN
    dropped: list[Dropout] = msgspec.field(default_factory=list)
    absent: dict[str, str] = msgspec.field(default_factory=dict)


def dropouts() -> st.SearchStrategy[Dropout]:
    phases, flags = st.sampled_from(Phase), st.booleans()
    return st.builds(Dropout, party=WORDS, phase=phases, included_in_sum=flags, code=WORDS, detail=WORDS)


@given(
    events=st.lists(
        st.builds(
            Happened,
            value=st.none() | st.booleans() | st.integers(-(2**53), 2**53) | FLOATS | WORDS,
            phase=st.sampled_from(Phase),
            dropped=st.lists(dropouts(), max_size=2),
            absent=st.dictionaries(WORDS, WORDS, max_size=3),
        ),
        min_size=1,
        max_size=4,
    )
)
@settings(max_examples=15)
def test_events_are_read_back_as_written(tmp_path_factory: pytest.TempPathFactory, events: list[Event]) -> None:
    path = tmp_path_factory.mktemp("log") / "log"
    before = time.time()
    with EventFile(path, "alice") as log:
        written = [log.write(event) for event in events]
        # Readable at once, without close.
        assert list(read(path)) == written
    for event, given_ in zip(written, events, strict=True):
        assert before <= event.time <= time.time()
        assert structs.replace(event, time=0.0, party="") == given_
        assert event.party == "alice"


def test_a_line_says_when_who_and_what(tmp_path: Path) -> None:
    with EventFile(tmp_path / "log", "alice") as log:
        log.write(ClientLeft(member="bob", detail="it\x1b[2J\nleft"))
    record = json.loads((tmp_path / "log").read_text())
    assert isinstance(record.pop("time"), float)
    assert record == {"event": "client-left", "party": "alice", "member": "bob", "detail": printable("it\x1b[2J\nleft")}


def test_every_event_has_a_tag_of_its_own_and_fields_without_octets() -> None:
    def parts(kind: Any) -> Iterator[Any]:
        yield kind
        for part in typing.get_args(kind):
            yield from parts(part)
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            for hint in typing.get_type_hints(kind).values():
                if typing.get_origin(hint) is not typing.ClassVar:
                    yield from parts(hint)

    kinds = [kind for kind in declared_events() if kind.__module__.startswith("tacit.")]
    assert len({kind.__struct_config__.tag for kind in kinds}) == len(kinds) > 60
    for kind in kinds:
        assert not {bytes, bytearray, memoryview, typing.Any} & set(parts(kind)), kind


def test_a_restart_appends(tmp_path: Path) -> None:
    for number in range(3):
        with EventFile(tmp_path / "log", "alice") as log:
            log.write(StateRestored(round=number))
    assert [event.round for event in read(tmp_path / "log") if isinstance(event, StateRestored)] == [0, 1, 2]


OLD = {"time": 1.0, "party": "server", "event": "round", "round": 1, "cohort": []}


@pytest.mark.parametrize(("versions", "named"), [(None, "0.2 or earlier"), ({"tacit": "0.2.0\n"}, "0.2.0")])
def test_a_log_of_another_version_is_refused_with_the_version(tmp_path: Path, versions: object, named: str) -> None:
    lines = [OLD, {"time": 2.0, "party": "server", "event": "provenance", "versions": versions}]
    (tmp_path / "log").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    with pytest.raises(EventLogError, match=f"tacit {re.escape(named)}.* wrote it: read it with that version"):
        list(read(tmp_path / "log"))


class Token:
    def __repr__(self) -> str:
        return "hunter2"


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (b"hunter2", "type bytes"),
        (bytearray(b"hunter2"), "type bytearray"),
        (memoryview(b"hunter2"), "type memoryview"),
        (np.zeros(2), "type ndarray"),
        (np.int64(1), "type int64"),
        ({1, 2}, "type set"),
        (Path("hunter2"), "type .*Path"),
        (Token(), "type Token"),
        ([1, [b"hunter2"]], "type bytes"),
        ({"a": {"b": b"hunter2"}}, "type bytes"),
        ({b"hunter2": 1}, "a dict with keys other than str"),
        ({1: 1}, "a dict with keys other than str"),
        (float("nan"), "a float that is not finite"),
        (float("inf"), "a float that is not finite"),
        ([float("-inf")], "a float that is not finite"),
    ],
)
def test_other_values_are_refused_and_not_quoted(tmp_path: Path, value: object, found: str) -> None:
    with (
        EventFile(tmp_path / "log", "alice") as log,
        pytest.raises(
            EventLogError, match=f"log: event 'happened', field 'value': (a value of )?{found} is not a plain"
        ) as caught,
    ):
        log.write(Happened(value=value))
    assert "hunter2" not in str(caught.value)
    assert not list(read(tmp_path / "log"))


def test_full_disk() -> None:
    with (
        EventFile(Path("/dev/full"), "alice") as log,
        pytest.raises(EventLogError, match="/dev/full: event 'happened' cannot be written: No space left on device"),
    ):
        log.write(Happened())


def test_place_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(EventLogError, match="cannot be opened: Is a directory"):
        EventFile(tmp_path, "alice")
    with pytest.raises(EventLogError, match="cannot be read: No such file"):
        list(read(tmp_path / "missing"))


def test_crash_at_every_byte_of_the_last_line(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with EventFile(path, "alice") as log:
        log.write(StateRestored(round=1))
        complete = path.stat().st_size
        log.write(ClientLeft(member="é", detail="\n"))
    content = path.read_bytes()
    for length in range(complete, len(content)):
        path.write_bytes(content[:length])
        assert [event.round for event in read(path) if isinstance(event, StateRestored)] == [1]
        with EventFile(path, "alice") as log:
            log.write(StateRestored(round=2))
        assert [event.round for event in read(path) if isinstance(event, StateRestored)] == [1, 2]


@pytest.mark.parametrize("line", ["", "{", "[]", "7", json.dumps({"time": 1, "party": "alice"}), "\udcff"])
def test_complete_lines_must_be_events(tmp_path: Path, line: str) -> None:
    path = tmp_path / "log"
    with EventFile(path, "alice") as log:
        log.write(StateRestored(round=1))
    with path.open("ab") as file:
        file.write(line.encode(errors="surrogateescape") + b"\n")
    with pytest.raises(EventLogError, match="log:2: "):
        list(read(path))


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
