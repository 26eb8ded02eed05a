"""Help, and what is said of wrong options: in the words of the command, whatever parses them."""

from __future__ import annotations

import re

from tacit.parties.runs.experiment import Experiment, parse
from tests.cases import cases
from tests.cli.command import Invoke


def test_help_shows_words_in_brackets(tacit: Invoke) -> None:
    assert "[distillation]" in tacit("distill", "--help").stdout


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


def test_the_short_configuration_has_what_a_simulation_needs_and_is_the_default(tacit: Invoke) -> None:
    shown = tacit("config", "--short").stdout
    assert parse(shown, "test") == Experiment()
    assert len(re.findall(r"(?m)^(?:# (?=seed))?\w+ = ", shown)) == 15
    refused = tacit("config", "--short", "--adaptation")
    assert refused.exit_code == 2
    assert "choose one" in refused.stderr
