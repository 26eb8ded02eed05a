"""Shell completion: it answers from the command itself, and loads nothing that is slow."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

COMMAND = "from tacit.cli.main import main; main()"
SLOW = ("torch", "timm", "numpy", "matplotlib")


def completed(line: str) -> tuple[list[str], set[str]]:
    """What is offered after this line, and which modules were loaded for it."""
    words = {"_TACIT_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    program = f"import sys; sys.argv[0] = 'tacit'; {COMMAND}"
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", program],
        env={**os.environ, **words}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    loaded = {entry.rpartition("|")[2].strip() for entry in done.stderr.splitlines()}
    return done.stdout.split(), loaded


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("tacit data ins", ["inspect"]),
        ("tacit simulate --ver", ["--verify"]),
        ("tacit bench inference --against c", ["crypten"]),
    ],
)
def test_commands_options_and_choices_are_offered_at_once(line: str, offered: list[str]) -> None:
    found, loaded = completed(line)
    assert found == offered
    assert "tacit.cli.main" in loaded
    assert loaded.isdisjoint(SLOW)


def test_a_script_is_shown() -> None:
    program = f"import sys; sys.argv = ['tacit', '--show-completion', 'bash']; {COMMAND}"
    named = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **named}, capture_output=True, text=True, check=True
    )
    assert "_TACIT_COMPLETE=complete_bash" in done.stdout
