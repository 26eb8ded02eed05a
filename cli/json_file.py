"""The file of --json, which has for programs what a command shows: looked at before anything begins, written last."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from tacit.cli.outcome import FAILED, WRONG_INPUT, complain


def check_json(json_file: Path | None) -> None:
    """End the command, as for wrong input, if the file cannot be written, as far as that shows beforehand."""
    from rich.console import Console

    if json_file is None:
        return
    if json_file.is_dir():
        reason = "it is a folder; name a file"
    elif not json_file.parent.is_dir():
        reason = f"there is no directory {json_file.parent}; make it first"
    else:
        return
    raise typer.Exit(complain(Console(stderr=True, highlight=False), f"--json {json_file}: {reason}", WRONG_INPUT))


def keep_json(json_file: Path | None, figures: Any) -> None:
    """Write the figures, if somebody asked for the file; end the command as failed if that cannot be done."""
    from rich.console import Console

    from tacit.simulate.runs.directory import write_json

    if json_file is None:
        return
    try:
        write_json(figures, json_file)
    except OSError as error:
        raise typer.Exit(complain(Console(stderr=True, highlight=False), error, FAILED)) from None
