"""Changes to typer's defaults for all commands: help, and usage errors.

Help uses the available width. Wrong options are reported like wrong values: in one line that begins with `tacit:`, with
the remedy.
"""

from __future__ import annotations

import inspect
import os
import pkgutil
import re
import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any, Final

import typer
from typer.core import TyperGroup

from tacit.cli.output import WRONG_INPUT, failure

PANELS: Final = ("On this machine", "Between hosts", "Settings and results")
UsageError: Final[type[Any]] = typer.BadParameter.__mro__[1]
"""Base error of typer's argument parser, which is typer's own or another package's by version."""
_PARSER_PHRASES: Final = {r"Value error, ": "", r", unable to parse .* as an? \w+": "", r"Input should": "it should"}
"""Replacements of phrases in newer parsers' error texts."""


def command_modules() -> list[ModuleType]:
    commands = import_module("tacit.cli.commands")
    names = sorted(module.name for module in pkgutil.iter_modules(commands.__path__))
    return [import_module(f"{commands.__name__}.{name}") for name in names]


def add_commands(app: typer.Typer) -> None:
    """Add the commands of all modules, sorted by panel and name."""
    found = [(module.PANEL, *entry) for module in command_modules() for entry in module.COMMANDS.items()]
    for panel, name, command in sorted(found, key=lambda one: (PANELS.index(one[0]), one[1])):
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name, rich_help_panel=panel)
        else:
            app.command(name, rich_help_panel=panel)(command)


class Commands(TyperGroup):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        _set(self)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """See TyperGroup; without standalone_mode usage errors are raised."""
        given = [_at_home(arg) for arg in (sys.argv[1:] if args is None else args)]
        run = partial(super().main, given, prog_name, complete_var, False, windows_expand_args, **extra)
        if not standalone_mode:
            return run()
        try:
            status = run()
        except UsageError as error:
            if type(error).__name__ == "NoArgsIsHelpError":
                error.show()
                sys.exit(WRONG_INPUT)
            message = " ".join(error.format_message().split()).rstrip(".?")
            for words, plain in _PARSER_PHRASES.items():
                message = re.sub(words, plain, message)
            command = " ".join(["tacit", *(error.ctx.command_path.split()[1:] if error.ctx else ())])
            status = failure(
                f"{message[:1].lower()}{message[1:]}; `{command} --help` lists what there is", WRONG_INPUT
            ).exit_code
        except typer.Abort:
            status = 1
        sys.exit(status)


def _at_home(arg: str) -> str:
    option, equals, value = arg.rpartition("=") if arg.startswith("--") else ("", "", arg)
    return f"{option}{equals}{os.path.expanduser(value)}"


def _set(command: Any) -> None:
    """Join the lines of every help paragraph of a command and its subcommands, as typer does for the first alone; and
    show flags without the type of a value, which they do not take."""
    paragraphs = inspect.cleandoc(command.help or "").split("\n\n")
    command.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    for parameter in command.get_params(typer.Context(command)):
        if getattr(parameter, "is_flag", False) and parameter.metavar is None:
            parameter.metavar = ""
    for one in getattr(command, "commands", {}).values():
        _set(one)
