"""The command within this process, and its runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import typer
from click.testing import CliRunner, Result

from tacit.cli.main import app
from tacit.parties.session.event_log import EventT, read

Invoke = Callable[..., Result]

WriteExperiment = Callable[..., Path]
COMMAND: Final[Any] = typer.main.get_command(app)
"""Made once: typer takes a fifth of a second for it, which it would take for every call."""


def invoke(*arguments: object) -> Result:
    """Run the command; the result has exit_code, stdout and stderr."""
    return CliRunner().invoke(COMMAND, [str(argument) for argument in arguments])


@dataclass(frozen=True)
class Run:
    """A run of `tacit simulate`, as its directory has it."""

    result: Result
    directory: Path

    @property
    def model(self) -> bytes:
        return (self.directory / "model.safetensors").read_bytes()

    @property
    def summary(self) -> dict[str, Any]:
        summary: dict[str, Any] = json.loads((self.directory / "summary.json").read_bytes())
        return summary

    @property
    def report(self) -> str:
        return (self.directory / "report.html").read_text()

    def events(self, party: str, kind: type[EventT]) -> list[EventT]:
        return [event for event in read(self.directory / "events" / f"{party}.jsonl") if isinstance(event, kind)]
