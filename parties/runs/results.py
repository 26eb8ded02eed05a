"""Results of commands, for programs and for people.

A `Result` is a struct. Its encoding is the file of `--json`; its JSON Schema and its section of docs/outputs.md follow
from its fields. Its `view` is its presentation for people: sentences, and tables that the terminal (cli/output.py),
pages (simulate/report/macros.html.j2) and Markdown and CSV (here) render from one declaration.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

NOTHING: Final = "\N{EN DASH}"
"""Placeholder of an unknown value, on pages."""
BYTE_UNITS: Final = ((1.0, "bytes"), (1e3, "kB"), (1e6, "MB"), (1e9, "GB"))


def label(value: Any) -> str:
    """Text that is shown whole, such as a name."""
    return str(value)


def prose(value: Any) -> str:
    """Text that may take several lines."""
    return str(value)


def plain(value: Any) -> str:
    return str(value)


def thousands(value: int) -> str:
    """1,234."""
    return f"{value:,}"


def decimals(digits: int) -> Callable[[float], str]:
    """Format numbers with so many decimals, and thousands separators."""
    return partial(_formatted, f",.{digits}f")


def percent(digits: int = 0) -> Callable[[float], str]:
    return partial(_formatted, f".{digits}%")


def scientific(value: float) -> str:
    """1.2e-04."""
    return f"{value:.1e}"


def duration(value: float | None) -> str:
    """A duration: "8.3 ms", "2.41 s", "3 min 20 s", "5 h 3 min"; a dash for none."""
    if value is None:
        return NOTHING
    if not value:
        return "0 s"
    if value < 0.9995:
        return f"{1000 * value:.3g} ms"
    if value < 99.5:
        return f"{value:.3g} s"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def byte_count(value: float | None) -> str:
    """An amount of bytes: "281 bytes", "4.16 MB"; a dash for none."""
    if value is None:
        return NOTHING
    scale, unit = next((unit for unit in reversed(BYTE_UNITS) if value >= unit[0]), BYTE_UNITS[0])
    shown = value / scale
    return f"{shown:.0f} {unit}" if scale == 1 or shown >= 100 else f"{shown:.3g} {unit}"


def _formatted(form: str, value: float) -> str:
    return format(value, form)


@dataclass(frozen=True)
class Column:
    """A column of a table.

    show: the text of a value, for people; never called with None, which is shown as nothing. minor: rank in which a
    narrow screen drops columns: the highest first, of equal ones the leftmost."""

    heading: str
    show: Callable[[Any], str] = label
    minor: int = 0

    @property
    def is_text(self) -> bool:
        return self.show in (label, prose)

    @property
    def html_class(self) -> str:
        return "text" if self.show is prose else "" if self.is_text else "n"

    def cell(self, value: Any, *, nothing: str = "") -> str:
        return nothing if value is None else self.show(value)


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of values, as declared by columns; the first column names the rows."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[Any]]
    title: str = ""
    flagged: Collection[int] = ()
    """Numbers of the rows that report a failure, from 0."""

    def cells(self, *, nothing: str = "") -> Iterator[list[str]]:
        for row in self.rows:
            yield [column.cell(value, nothing=nothing) for column, value in zip(self.columns, row, strict=True)]


class Caution(str):
    """A warning sentence."""

    __slots__ = ()


class Result(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema"):
    """Base of all results. A subclass has a tag "tacit.NAME.NUMBER", which begins the file.

    Keys keep their name and meaning, and new ones may be added; the number rises when one is removed or changes."""

    def view(self) -> Iterable[Table | str]:
        """Yield the tables and sentences shown to people, in order."""
        return ()

    def write(self, path: Path) -> None:
        """Write it as a file for programs. OSError, as in `writing`."""
        # Imported here: commands import this module before they import anything slow.
        from tacit.parties.runs.directory import write_json

        write_json(self, path)


def schema_of(kind: type[Result]) -> dict[str, Any]:
    found = msgspec.json.schema(kind)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": kind.__struct_config__.tag, **found}


def markdown(table: Table) -> list[str]:
    rows = [[column.heading for column in table.columns], ["---" if c.is_text else "---:" for c in table.columns]]
    rows += table.cells(nothing=NOTHING)
    return [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]


def write_csv(table: Table, path: Path) -> None:
    """Write the raw values, unknown ones empty. OSError, as in `writing`."""
    from tacit.parties.runs.directory import writing

    with writing(path), path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(column.heading for column in table.columns)
        writer.writerows(table.rows)
