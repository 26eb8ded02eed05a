"""Temporary: what commands that are not converted to results still use."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any, Literal

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

from tacit.cli.output import (
    FAILED,
    LONGEST_WORD,
    REFUSED,
    UNBOUNDED,
    WRONG_INPUT,
    Failures,
    complaining,
    screen,
)
from tacit.protocol.core.errors import printable


class FittedTable(Table):
    """A table that leaves out columns where the screen is too narrow, and says which: no name or figure is ever cut.

    least: headings of those that go first, in their order; then they go from the right.
    """

    def __init__(self, *, least: Sequence[str] = (), title: str | Text | None = None) -> None:
        super().__init__(title=title)
        self.least = least

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        shown = list(self.columns)
        names = [str(column.header) for column in shown]
        leaving = [*self.least, *(name for name in reversed(names[1:]) if name not in self.least)]
        hidden: list[str] = []
        while leaving and self._width(shown, console, options) > options.max_width:
            hidden.append(leaving.pop(0))
            shown = [column for column, name in zip(self.columns, names, strict=True) if name not in hidden]
        fitted = copy(self)
        fitted.columns = shown
        yield from Table.__rich_console__(fitted, console, options)
        if hidden:
            left_out = ", ".join(name for name in names if name in hidden)
            yield Text(f"on a wider screen: {left_out}", style="dim")

    def add_row(self, *cells: RenderableType | None, **options: Any) -> None:
        """As rich's, but text is text: a key may have what rich would take for a tag, and what others say more."""
        super().add_row(*(Text(printable(cell)) if isinstance(cell, str) else cell for cell in cells), **options)

    @staticmethod
    def _width(columns: Sequence[Column], console: Console, options: ConsoleOptions) -> int:
        """Characters that these need: what must not be folded, longest words of text, and a frame."""
        wide, width = options.update(max_width=UNBOUNDED), 1
        for column in columns:
            sizes = [Measurement.get(console, wide, cell) for cell in (column.header, *column.cells)]
            words = max(size.minimum for size in sizes)
            width += 3 + (max(size.maximum for size in sizes) if column.no_wrap else min(words, LONGEST_WORD))
        return width


def table(
    headings: Sequence[str],
    rows: Iterable[Sequence[str | Text]],
    *,
    left: Collection[str] = (),
    least: Sequence[str] = (),
    title: str | Text | None = None,
) -> Table:
    """Columns of figures, which are justified to the right, after one of names; `left`: other columns of text, which
    may be folded; `least`: those that a narrow screen does without first."""
    made = FittedTable(least=least, title=title)
    for number, heading in enumerate(headings):
        # Folded, not cut short: the sign for that is beyond ASCII, which may be all that the terminal has.
        justify: Literal["left", "right"] = "right" if number and heading not in left else "left"
        made.add_column(heading, justify=justify, overflow="fold", no_wrap=heading not in left)
    for row in rows:
        made.add_row(*row)
    return made


def answered_images(images: Iterable[Mapping[str, Any]]) -> Table:
    """What a data owner was told of each image: a label and its confidence, or the best labels alone."""

    def cells(row: Mapping[str, Any]) -> tuple[str, str, str]:
        if row["refused"]:
            return row["image"], REFUSED, ""
        confidence = row["confidence"]
        told = ", ".join(row["labels"] or [row["label"]])
        return row["image"], told, "not told" if confidence is None else f"{confidence:.3f}"

    return table(("image", "label", "confidence"), map(cells, images), left=("label",))


def measured(
    work: Callable[[Callable[[str], None]], dict[str, Any]],
    show: Callable[[Console, dict[str, Any]], None],
    json_file: Path | None,
    *,
    schema: str,
    failed: Failures,
) -> dict[str, Any]:
    """Does the work, which gets somebody to tell how far it is; shows and keeps the figures. failed: no wrong input."""
    console = screen()
    with complaining((failed, FAILED), ((ValueError, OSError), WRONG_INPUT)), console.status("starting") as status:
        figures = work(status.update)
    show(console, figures)
    keep_json(json_file, schema, figures)
    return figures


def keep_json(json_file: Path | None, schema: str, figures: Mapping[str, Any]) -> None:
    """Writes the figures, if somebody asked for the file; schema: its name in schema.py."""
    from tacit.parties.runs.directory import write_output

    if json_file is not None:
        with complaining((OSError, FAILED)):
            write_output(schema, figures, json_file)
