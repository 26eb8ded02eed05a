"""The `tacit` command. Everything slow is imported inside the commands, so that --help answers at once."""

from __future__ import annotations

import atexit
import os
import sys
from importlib.metadata import version
from typing import Annotated

import typer

from tacit.cli.usage import Commands, add_commands

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Private federated learning of vision transformers: real processes, secure aggregation, one command.",
)


def main() -> None:
    """Entry point of the command."""
    statuses: list[int] = []
    # Registered first, and so called last.
    atexit.register(_end_at_once, statuses)
    try:
        app()
    except SystemExit as ended:
        if isinstance(ended.code, int):
            statuses.append(ended.code)
        raise


def _end_at_once(statuses: list[int]) -> None:
    """Do without taking the interpreter apart, which takes seconds once torch is loaded; unless it ends by a defect."""
    if statuses:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except OSError:
            return
        os._exit(statuses[0])


@app.callback(invoke_without_command=True)
def top(show_version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    """Options of the command itself."""
    if show_version:
        typer.echo(f"tacit {version('tacit')}")
        raise typer.Exit


add_commands(app)
