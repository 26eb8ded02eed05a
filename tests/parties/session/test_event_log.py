"""The event log: what is written is read back, what is not plain is refused, and a crash costs one line at most."""

import json
import re
import time
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

import tacit.parties.runs.state  # noqa: F401  # It imports all events.
from tacit.parties.session.event_log import EventFile, EventLogError, declared_events, read
from tacit.parties.session.events import Dropout, StateRestored
from tacit.protocol.core.errors import printable
from tacit.protocol.core.events import Event
from tacit.protocol.session.events import ClientLeft
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
