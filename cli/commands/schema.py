"""`tacit schema`: the JSON Schema of the results that commands write for programs."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Annotated, Any, Final, NamedTuple

import typer

from tacit.cli.output import WRONG_INPUT, failure, say, screen
from tacit.cli.usage import command_modules
from tacit.parties.runs.results import Result, schema_of


class ResultFile(NamedTuple):
    """A file that commands write with --json or into their directory."""

    written_by: str
    place: str
    """Module and name of its type."""

    @property
    def type(self) -> type[Result]:
        """Its type, imported on access."""
        module, _, name = self.place.partition(":")
        found: type[Result] = getattr(import_module(module), name)
        return found


@cache
def result_files() -> dict[str, ResultFile]:
    found = [entry for module in command_modules() for entry in getattr(module, "RESULTS", {}).items()]
    return {name: ResultFile(*file) for name, file in sorted(found)}


def json_schema(name: str) -> dict[str, Any]:
    """The JSON Schema of a result. KeyError if there is none of this name."""
    return schema_of(result_files()[name].type)


def schema(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Schema; default: list them.")] = None,
) -> None:
    """Print the JSON Schema of a file that --json writes.

    Exit status: 0 done; 2 there is no such schema.
    """
    if name is None:
        width = max(map(len, result_files()))
        for known, file in result_files().items():
            say(screen(), f"{known:<{width}}  {file.written_by}")
        return
    if name not in result_files():
        raise failure(f"schema {name}: there is none; choose one of {', '.join(result_files())}", WRONG_INPUT)
    import msgspec

    typer.echo(msgspec.json.format(msgspec.json.encode(json_schema(name)), indent=2))


PANEL: Final = "Settings and results"
COMMANDS: Final = {"schema": schema}
