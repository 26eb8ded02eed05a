"""The `tacit` command. Slow modules are imported inside the commands, so that --help answers at once."""

from __future__ import annotations

import atexit
import errno
import io
import os
import sys
from contextlib import suppress
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
    statuses: list[int] = []
    # Registered first, and so called last.
    atexit.register(_end_at_once, statuses)
    for stream in (sys.stdout, sys.stderr):
        # A terminal with a limited character set shows others escaped. Replaced streams cannot be reconfigured.
        if isinstance(stream, io.TextIOWrapper):
            with suppress(OSError):
                stream.reconfigure(errors="backslashreplace")
    try:
        app()
        sys.stdout.flush()
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        statuses.append(1)
        os.write(2, b"tacit: what the command prints cannot be written: the device is full\n")
        os._exit(1)
    except SystemExit as ended:
        if isinstance(ended.code, int):
            statuses.append(ended.code)
        raise


def _end_at_once(statuses: list[int]) -> None:
    """Exit without the interpreter's teardown, which takes seconds once torch is loaded; unless a defect ends it."""
    if statuses:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except OSError:
            return
        os._exit(statuses[0])


@app.callback(invoke_without_command=True)
def top(show_version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if show_version:
        typer.echo(f"tacit {version('tacit')}")
        raise typer.Exit


add_commands(app)
