"""Common parts of all commands: lines and tables on the screen, the file of --json, and exit statuses.

A command that fails prints the reason in one line on standard error, and ends with an exit status.
"""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import typer
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Column as RichColumn
from rich.table import Table as RichTable
from rich.text import Text

from tacit.cli.progress import Progress
from tacit.parties.runs.results import Caution, Result, Table, prose
from tacit.protocol.core.errors import printable

if TYPE_CHECKING:
    from tacit.parties.runs.answers import PrivateAnswers
    from tacit.parties.runs.summary import Summary
    from tacit.protocol.core.events import Event

FAILED, WRONG_INPUT, ABORTED, SERVER_LOST, INTERRUPTED = 1, 2, 3, 4, 130

UNBOUNDED: Final = 10_000
"""Columns of text, more than any table has."""
LONGEST_WORD: Final = 20
"""Characters; a longer word, such as a key, is folded instead of dropping a column."""

Failures = type[Exception] | tuple[type[Exception], ...]
Found = TypeVar("Found", bound=Result)


def screen() -> Console:
    return Console(highlight=False)


def say(console: Console, line: str, style: str = "") -> None:
    """Print one line unchanged: paths may contain brackets, and readers of a pipe expect one line per line."""
    console.print(printable(line), style=style, markup=False, soft_wrap=True)


class FittedTable(RichTable):
    """A table that drops columns on a narrow screen, and names them: no name or number is ever truncated.

    minor: headings of the columns to drop first, in order; the others follow from the right."""

    def __init__(self, *, minor: Sequence[str] = (), title: Text | None = None) -> None:
        super().__init__(title=title)
        self.minor = minor

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        shown = list(self.columns)
        names = [str(column.header) for column in shown]
        leaving = [*self.minor, *(name for name in reversed(names[1:]) if name not in self.minor)]
        hidden: list[str] = []
        while leaving and self._width(shown, console, options) > options.max_width:
            hidden.append(leaving.pop(0))
            shown = [column for column, name in zip(self.columns, names, strict=True) if name not in hidden]
        fitted = copy(self)
        fitted.columns = shown
        yield from RichTable.__rich_console__(fitted, console, options)
        if hidden:
            left_out = ", ".join(name for name in names if name in hidden)
            yield Text(f"on a wider screen: {left_out}", style="dim")

    @staticmethod
    def _width(columns: Sequence[RichColumn], console: Console, options: ConsoleOptions) -> int:
        """Characters that these columns need: unfoldable text, longest words, and a frame."""
        wide, width = options.update(max_width=UNBOUNDED), 1
        for column in columns:
            sizes = [Measurement.get(console, wide, cell) for cell in (column.header, *column.cells)]
            words = max(size.minimum for size in sizes)
            width += 3 + (max(size.maximum for size in sizes) if column.no_wrap else min(words, LONGEST_WORD))
        return width


def terminal(shown: Table) -> FittedTable:
    """Render a table for a terminal. Text is literal: a name may contain rich's markup."""
    minor = sorted((column for column in shown.columns if column.minor), key=lambda column: -column.minor)
    title = Text(printable(shown.title)) if shown.title else None
    made = FittedTable(minor=[column.heading for column in minor], title=title)
    for column in shown.columns:
        # Folded, not truncated: the ellipsis is not ASCII, which may be all that the terminal supports.
        justify: Literal["left", "right"] = "left" if column.is_text else "right"
        made.add_column(column.heading, justify=justify, overflow="fold", no_wrap=column.show is not prose)
    for place, cells in enumerate(shown.cells()):
        style = "red" if place in shown.flagged else None
        made.add_row(*(Text(printable(cell)) for cell in cells), style=style)
    return made


def show(console: Console, result: Result) -> None:
    for item in result.view():
        if isinstance(item, Table):
            console.print(terminal(item))
        else:
            lines, label = [str(item)], re.match(r"\S+(?: \S+)* {2,}", item)
            if console.is_terminal and label:
                # On a screen a value stands beside its name, on any number of lines.
                lines = textwrap.wrap(item, console.width, subsequent_indent=" " * label.end())
            for line in lines:
                say(console, line, style="yellow" if isinstance(item, Caution) else "")


def warn(remark: object) -> None:
    """Print a warning on standard error that must reach every user."""
    say(Console(stderr=True, highlight=False), f"tacit: {remark}", style="yellow")


def failure(complaint: object, status: int) -> typer.Exit:
    say(Console(stderr=True, highlight=False), f"tacit: {complaint}", style="red")
    return typer.Exit(status)


def outcome(summary: Summary, directory: Path, *, done: bool = False) -> typer.Exit:
    """Exit of the command of a run: 0 if all rounds were completed, else a message on the others.

    done: whether all rounds ended, some of them perhaps aborted: then only a run without any sum is a failure."""
    if summary.completed == summary.planned:
        return typer.Exit()
    aborted = next((one for one in summary.rounds if one.status == "aborted"), None)
    reason = summary.ended if aborted is None else f"round {aborted.round} was aborted: {aborted.detail}"
    if not summary.rounds:
        join = summary.configuration["deadlines"]["join"]
        reason += f" (clients are waited for as long as deadlines.join says, {join:g} s)"
    where = f"see {directory / 'report.html'}"
    complaint = f"{summary.completed} of {summary.planned} rounds were completed; {reason}; {where}"
    if done and summary.completed:
        warn(complaint)
        return typer.Exit()
    return failure(complaint, ABORTED)


@contextmanager
def complaining(*statuses: tuple[Failures, int]) -> Iterator[None]:
    """End the command on these errors: the first matching kind determines the exit status."""
    try:
        yield
    except KeyboardInterrupt:
        raise failure("interrupted", INTERRUPTED) from None
    except Exception as error:
        for kinds, status in statuses:
            if isinstance(error, kinds):
                raise failure(error, status) from None
        raise


def measured(work: Callable[[Callable[[str], None]], Found], json_file: Path | None, *, failed: Failures) -> Found:
    """Return the result of the work, after it is shown and written. The work receives a function for its progress in
    words; failed: errors other than those of wrong input."""
    console = screen()
    with complaining((failed, FAILED), ((ValueError, OSError), WRONG_INPUT)), Progress(console) as progress:
        found = work(progress.update)
    show(console, found)
    keep_json(json_file, found)
    return found


def json_option(help: str, *, metavar: str | None = None, panel: str | None = None) -> Any:
    """The option --json: a file for programs, checked before the command begins and written last."""
    return typer.Option("--json", metavar=metavar, help=help, callback=_check_json, rich_help_panel=panel)


def _check_json(json_file: Path | None) -> Path | None:
    if json_file is not None:
        try:
            reason = _why_not_written(json_file)
        except OSError as error:
            reason = f"{error.strerror}; name a file in another place"
        if reason:
            raise failure(f"--json {json_file}: {reason}", WRONG_INPUT)
    return json_file


def _why_not_written(file: Path) -> str:
    """Reason why it cannot be written, and the remedy; "" if it can. OSError if it cannot be checked."""
    if str(file) == "-":
        return "name a file, or /dev/stdout"
    if file.is_dir():
        return "it is a folder; name a file"
    if not file.parent.is_dir():
        return f"there is no directory {file.parent}; make it first"
    written = file if file.exists() else file.parent
    if os.access(written, os.W_OK):
        return ""
    read_only = os.statvfs(written).f_flag & os.ST_RDONLY
    reason = "the file system is read-only" if read_only else f"{written} may not be written"
    return f"{reason}; name a file in another place"


def keep_json(json_file: Path | None, result: Result) -> None:
    """Write the file of --json, if requested."""
    if json_file is not None:
        with complaining((OSError, FAILED)):
            result.write(json_file)


def all_answered(answers: PrivateAnswers) -> None:
    """End the command of a data owner, with an explanation, if some of its images were refused or not read."""
    refused = sum(image.refused for image in answers.images)
    if unread := [image.unreadable for image in answers.images if image.unreadable]:
        complaint = f"{len(unread)} of {len(answers.images)} images cannot be read: {unread[0]}"
        if not refused:
            raise failure(complaint, FAILED)
        warn(complaint)
    if refused:
        raise failure(
            f"{refused} of {len(answers.images)} images refused: out of range, ask again with another image; of a pass "
            "with an image out of range all are refused, and count against the daily limits of both owners",
            FAILED,
        )


def device_option(help: str, *, panel: str | None = None) -> Any:
    """The option --device of a command that starts others. Its name is checked before torch is loaded; the command
    itself checks that the device exists."""
    return typer.Option(
        metavar="NAME", help=help, callback=_check_device, show_default=panel is None, rich_help_panel=panel
    )


def _check_device(device: str) -> str:
    if device not in ("cpu", "cuda"):
        raise failure(f"--device {device}: choose cpu or cuda", WRONG_INPUT)
    return device


def party_screen(console: Console, *, server: str | None = None) -> Callable[[Event], None]:
    """Print the relevant events of one party, as they come; server: its name, if it runs the rounds."""
    from tacit.parties.runs.state import RunState

    state = RunState(server=server)

    def show(event: Event) -> None:
        line = state.take(event)
        state.forget()
        if line.level != "debug":
            say(console, line.text, style="yellow" if line.level == "warning" else "")

    return show
