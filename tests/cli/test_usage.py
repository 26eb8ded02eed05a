"""Help, and what is said of wrong options: in the words of the command, whatever parses them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
import typer
from click.testing import Result

from tacit.cli.main import app
from tests.cases import cases

Invoke = Callable[..., Result]


def every(command: Any, *names: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """This command and all below it, by their names."""
    yield names, command
    for name, one in getattr(command, "commands", {}).items():
        yield from every(one, *names, name)


COMMANDS = dict(every(typer.main.get_command(app)))


@cases("names", COMMANDS)
def test_help_is_set_in_the_width_that_there_is_and_lacks_no_word(
    tacit: Invoke, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]
) -> None:
    """Lines are as full as they can be, and a word in brackets is not taken for a colour."""
    width = 80
    monkeypatch.setenv("COLUMNS", str(width))
    _, text = tacit(*names, "--help").stdout.split("Usage: ", 1)
    said = [line.strip() for line in text.split("╭")[0].splitlines()]
    for line, following in pairwise(said[1:]):
        if line and following:
            assert len(line) + 1 + len(following.split()[0]) > width - 2, line
    source = inspect.cleandoc(getattr(COMMANDS[names].callback, "__doc__", "") or "").replace("\\[", "[")
    if names and source:
        assert " ".join(source.split()) in " ".join(" ".join(said).split())


@cases(
    "command",
    [["simulate", "--clients", "x"], ["bench", "secagg", "--dimension", "0"], ["keys", "new", "a", "--role", "king"]],
)
def test_a_wrong_value_of_an_option(tacit: Invoke, command: list[str]) -> None:
    result = tacit(*command)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"tacit: invalid value for '{command[-2]}': ")
    for words in ("Value error", "Input", "unable to parse"):
        assert words not in result.stderr
    assert result.stderr.count("\n") == 1
