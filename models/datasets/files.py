"""Files and tables that a data set must have: they are there and well-formed, or one line says what is wrong."""

import csv
import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

_MOST_NAMES_SHOWN: Final = 8


def require_folder(path: Path, *, purpose: str) -> Path:
    """`path`, which is a folder. Raises FileNotFoundError that says what it is for and what is there instead."""
    if not path.is_dir():
        raise FileNotFoundError(f"{path} is no folder; expected {purpose}; {around(path)}")
    return path


def require_file(path: Path, *, purpose: str) -> Path:
    """`path`, which is a file. Raises FileNotFoundError that says what it is for and what is there instead."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} is no file; expected {purpose}; {around(path)}")
    return path


def require_checksum(path: Path, *, md5: str, purpose: str) -> None:
    """Raises FileNotFoundError for a missing file, ValueError if it is not the published one, `md5` in hexadecimal."""
    with require_file(path, purpose=purpose).open("rb") as file:
        found = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if found != md5:
        raise ValueError(
            f"{path} has MD5 checksum {found}, the published file has {md5}; it is not opened: copy the file again"
        )


def around(path: Path) -> str:
    """What the nearest folder above `path` holds, cut short."""
    folder = next(parent for parent in path.absolute().parents if parent.is_dir())
    names = sorted(entry.name + "/" * entry.is_dir() for entry in folder.iterdir())
    shown = ", ".join(names[:_MOST_NAMES_SHOWN]) + ", ..." * (len(names) > _MOST_NAMES_SHOWN)
    return f"{folder} holds {shown or 'nothing'}"


def lines(path: Path, *, purpose: str) -> list[str]:
    """The lines of a text file without those that are blank. FileNotFoundError, or ValueError if it is not UTF-8."""
    try:
        text = require_file(path, purpose=purpose).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text at byte {error.start}; expected {purpose}") from error
    return [line.strip() for line in text.splitlines() if line.strip()]


def table(
    path: Path, *, purpose: str, columns: Sequence[str], delimiter: str, header: bool = True
) -> Iterator[tuple[str, dict[str, str]]]:
    """The rows of a text table, each with its place for messages ("FILE line 7").

    With a `header`, `columns` must be among those that it names; without, they are the first ones. Raises
    FileNotFoundError, or ValueError for a missing column, a row that is too short, or what is not CSV.
    """
    named = None if header else list(columns)
    try:
        with require_file(path, purpose=purpose).open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, fieldnames=named, delimiter=delimiter, skipinitialspace=True)
            if absent := [column for column in columns if column not in (reader.fieldnames or ())]:
                raise ValueError(
                    f"{path} has no column {', '.join(absent)}; it has {', '.join(reader.fieldnames or ())}"
                )
            for row in reader:
                place = f"{path} line {reader.line_num}"
                if short := [column for column in columns if not row[column]]:
                    raise ValueError(f"{place} has nothing in column {', '.join(short)}")
                yield place, row
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} is not a readable table: {error}; expected {purpose}") from error


def whole_number(text: str, *, below: int, place: str, column: str) -> int:
    """The number in a cell, from 0 to `below` - 1. Raises ValueError that names the place."""
    if not (text.isascii() and text.isdigit() and int(text) < below):
        raise ValueError(f"{place}: {column} is {text!r}, expected 0 to {below - 1}")
    return int(text)
