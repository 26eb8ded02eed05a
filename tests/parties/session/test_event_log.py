"""The event log: what is written is read back, what is not plain is refused, and a crash costs one line at most."""

import json
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.parties.session.event_log import EventLog, EventLogError, read

WORDS = st.text().filter(str.isprintable)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=8,
)


@given(values=st.lists(PLAIN, min_size=1, max_size=4))
@settings(max_examples=15)
def test_plain_values_are_read_back(tmp_path_factory: pytest.TempPathFactory, values: list[object]) -> None:
    path = tmp_path_factory.mktemp("log") / "log"
    with EventLog(path, "alice") as log:
        for value in values:
            log.write("happened", value=value)
    assert [record["value"] for record in read(path)] == values


def test_every_line_says_when_who_and_what(tmp_path: Path) -> None:
    path = tmp_path / "log"
    before = time.time()
    with EventLog(path, "alice") as log:
        log.write("phase", name="unmask", bytes=17)
        # Readable at once, without close.
        (record,) = read(path)
    assert before <= record.pop("time") <= time.time()
    assert record == {"party": "alice", "event": "phase", "name": "unmask", "bytes": 17}


def test_a_restart_appends(tmp_path: Path) -> None:
    for number in range(3):
        with EventLog(tmp_path / "log", "alice") as log:
            log.write("start", number=number)
    assert [record["number"] for record in read(tmp_path / "log")] == [0, 1, 2]


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
        EventLog(tmp_path / "log", "alice") as log,
        pytest.raises(
            EventLogError, match=f"log: event 'keys', field 'value': (a value of )?{found} is not a plain"
        ) as caught,
    ):
        log.write("keys", harmless=1, value=value)
    assert "hunter2" not in str(caught.value)
    assert not list(read(tmp_path / "log"))


@pytest.mark.parametrize("name", ["time", "party", "event"])
def test_fields_of_every_line_cannot_be_replaced(tmp_path: Path, name: str) -> None:
    with EventLog(tmp_path / "log", "alice") as log, pytest.raises(EventLogError, match=f"has a field '{name}'"):
        log.write("happened", **{name: 1})


def test_full_disk() -> None:
    with (
        EventLog(Path("/dev/full"), "alice") as log,
        pytest.raises(EventLogError, match="/dev/full: event 'happened' cannot be written: No space left on device"),
    ):
        log.write("happened")


def test_place_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(EventLogError, match="cannot be opened: Is a directory"):
        EventLog(tmp_path, "alice")
    with pytest.raises(EventLogError, match="cannot be read: No such file"):
        list(read(tmp_path / "missing"))


def test_crash_at_every_byte_of_the_last_line(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with EventLog(path, "alice") as log:
        log.write("first")
        complete = path.stat().st_size
        log.write("second", text="é\n")
    content = path.read_bytes()
    for length in range(complete, len(content)):
        path.write_bytes(content[:length])
        assert [record["event"] for record in read(path)] == ["first"]
        with EventLog(path, "alice") as log:
            log.write("restart")
        assert [record["event"] for record in read(path)] == ["first", "restart"]


@pytest.mark.parametrize("line", ["", "{", "[]", "7", json.dumps({"time": 1, "party": "alice"}), "\udcff"])
def test_complete_lines_must_be_events(tmp_path: Path, line: str) -> None:
    path = tmp_path / "log"
    with EventLog(path, "alice") as log:
        log.write("first")
    with path.open("ab") as file:
        file.write(line.encode(errors="surrogateescape") + b"\n")
    with pytest.raises(EventLogError, match="log:2: not a"):
        list(read(path))
