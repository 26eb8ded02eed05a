"""Shell completion: it answers from the command itself, and loads nothing that is slow."""

from __future__ import annotations

import os
import subprocess
import sys

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


def test_commands_are_offered_at_once() -> None:
    found, loaded = completed("tacit data ins")
    assert found == ["inspect"]
    assert "tacit.cli.main" in loaded
    assert loaded.isdisjoint(SLOW)
