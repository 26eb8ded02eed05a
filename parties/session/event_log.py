"""What a party did, as JSON lines: one object per event with time, party, event and the fields of that event.

Reports are made from these files. Every line is written at once and in whole, so that a killed party leaves at most one
incomplete line at the end; the reader skips it, and the next start of the party removes it. Only plain JSON values are
accepted: keys, shares and arrays are bytes or objects, so that none can slip in by mistake.
"""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

from tacit.models.file_system import FILES, FileSystem


class EventLogError(Exception):
    """The log cannot be written or read, or a field is not plain; the message names the file and the place."""


class EventLog:
    """An append-only log of one party. Raises EventLogError when the file cannot be opened."""

    def __init__(self, path: Path, party: str) -> None:
        self._path = path
        self._party = party
        try:
            # Unbuffered: what could not be written must not come out later, behind other lines.
            self._file = path.open("ab", buffering=0)
            if path.is_file():
                remove_incomplete_line(path)
        except OSError as error:
            raise EventLogError(f"{path}: cannot be opened: {error.strerror}; choose another place") from error

    def write(self, event: str, /, **fields: object) -> None:
        """Append one event, stamped with the time in seconds since 1970.

        Fields are None, bool, int, finite float, str, or lists, tuples and str-keyed dicts of these. Raises
        EventLogError when one is not, when it is called time, party or event, or when the file cannot take the line.
        """
        record: dict[str, object] = {"time": time.time(), "party": self._party, "event": event}
        for name, value in fields.items():
            if name in record:
                raise EventLogError(
                    f"{self._path}: event {event!r} has a field {name!r}, which every line has; rename it"
                )
            unsuitable = _unsuitable(value)
            if unsuitable is not None:
                raise EventLogError(
                    f"{self._path}: event {event!r}, field {name!r}: {unsuitable} is not a plain JSON value; "
                    "convert numbers with int() or float(), write None where there is none, and leave secrets out"
                )
            record[name] = value
        line = json.dumps(record).encode("ascii") + b"\n"
        try:
            while line:
                line = line[self._file.write(line) :]
        except OSError as error:
            raise EventLogError(
                f"{self._path}: event {event!r} cannot be written: {error.strerror}; make room on the disk"
            ) from error

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def read(path: Path, on_foreign: Callable[[int, str], object] | None = None) -> Iterator[dict[str, Any]]:
    """The events of a log, oldest first, without an incomplete last line.

    on_foreign: called with number and fault of a complete line that is no event of this party; the log ends before it.
    Without this, EventLogError names file and line; it is raised, too, when the file cannot be read.
    """
    party = None
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    return
                event, fault = _parse(line, party)
                if fault and on_foreign is not None:
                    on_foreign(number, fault)
                    return
                if fault:
                    raise EventLogError(f"{path}:{number}: {fault}")
                party = event["party"]
                yield event
    except OSError as error:
        raise EventLogError(f"{path}: cannot be read: {error.strerror}") from error


def _parse(line: bytes, party: str | None) -> tuple[dict[str, Any], str]:
    """A line of a log, and why it is none, or ""; party: whose log it is, once that is known."""
    try:
        event = json.loads(line)
    except ValueError as error:
        return {}, f"not a JSON line: {error}"
    if not isinstance(event, dict) or not {"time", "party", "event"} <= event.keys():
        return {}, "not an event with time, party and event"
    if not isinstance(event["time"], int | float) or not abs(event["time"]) < float("inf"):
        return {}, "its time is no number"
    if party not in (None, event["party"]):
        return {}, f"an event of {event['party']!r} in the log of {party!r}"
    return event, ""


def _unsuitable(value: object) -> str | None:
    """What is not plain JSON in a value, by its type and never by its content; None when all of it is."""
    if isinstance(value, float):
        return None if abs(value) < float("inf") else "a float that is not finite"
    if value is None or isinstance(value, bool | int | str):
        return None
    if isinstance(value, list | tuple):
        return next((found for item in value if (found := _unsuitable(item))), None)
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            return "a dict with keys other than str"
        return _unsuitable(list(value.values()))
    return f"a value of type {type(value).__name__}"


def remove_incomplete_line(path: Path, files: FileSystem = FILES) -> bytes:
    """Cut off what a killed writer left behind its last complete line; returns what is left.

    FileNotFoundError if there is no such file.
    """
    content = files.read(path)
    complete = content[: content.rfind(b"\n") + 1]
    if complete != content:
        files.truncate(path, len(complete))
    return complete
