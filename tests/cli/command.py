"""The command within this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import typer
from click.testing import CliRunner, Result

from tacit.cli.main import app

Invoke = Callable[..., Result]

COMMAND: Final[Any] = typer.main.get_command(app)
"""Made once: typer takes a fifth of a second for it, which it would take for every call."""


def invoke(*arguments: object) -> Result:
    """Run the command; the result has exit_code, stdout and stderr."""
    return CliRunner().invoke(COMMAND, [str(argument) for argument in arguments])
