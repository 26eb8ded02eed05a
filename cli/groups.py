"""`tacit groups`: what the owner of a client decides about its group."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tacit.cli.output import WRONG_INPUT, complaining

app = typer.Typer(no_args_is_help=True, help="Groups, whose clients are in a sum all or none.")


@app.callback()
def groups() -> None:
    """Groups, whose clients are in a sum all or none."""


@app.command()
def confirm(
    journals: Annotated[list[Path], typer.Argument(metavar="JOURNAL...", help="Journals of clients that do not run.")],
) -> None:
    """Let clients be in another group than before, or in none, from their next session on.

    A client refuses a roster that puts it into another group than its journal says. Compare the roster with the others
    of the group before you confirm it: of two sums, one before and one after such a change, the server may learn what
    sets the groups apart, down to the update of a single client. What is confirmed is one change, not those after it.

    Exit status: 0 done; 2 wrong input.
    """
    from tacit.parties.session.journal import JournalError, JournalFile

    with complaining((JournalError, WRONG_INPUT)):
        for path in journals:
            if not path.is_file():
                raise JournalError(f"{path}: no such journal")
        for path in journals:
            JournalFile(path).confirm_group()
            typer.echo(f"{path}: the group of the next session is accepted, whichever it is")
