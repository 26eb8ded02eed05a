"""Flower's own simulation runs the app: Ray hands every message of a node to whichever of its processes is free."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from flwr.simulation import run_simulation

from tests.flower.digits_app import accuracy, secure_client_app, secure_server_app
from tests.flower.losing import FailsToTrain, Loses, Lost

NODES = 6


class Said(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@pytest.fixture
def said() -> Iterable[Said]:
    handler = Said()
    logging.getLogger("flwr").addHandler(handler)
    yield handler
    logging.getLogger("flwr").removeHandler(handler)


def test_it_learns_and_loses_a_client_in_every_phase(folders: Path, said: Said) -> None:
    results: list[Any] = []
    phases = (None, *Lost, None)
    how = (2, phases, folders / "counter")
    run_simulation(
        server_app=secure_server_app(folders / "roster.toml", results, rounds=len(phases)),
        client_app=secure_client_app(folders, [Loses(*how)], [FailsToTrain(*how)]),
        num_supernodes=NODES,
        backend_config={"client_resources": {"num_cpus": 1.0}, "init_args": {"num_cpus": 2}},
    )
    (result,) = results
    sums = [line for line in said.lines if line.startswith("secure sum:")]
    in_it = [6 if lost is None or lost.included else 5 for lost in phases]
    assert sums == [f"secure sum: {count} of {NODES} clients are in it" for count in in_it]
    assert accuracy(result.arrays) > 0.5


def test_the_commands_of_the_page(tmp_path: Path) -> None:
    """The page's own, in an empty folder: the example as it is, and then without keys for its nodes."""
    example = Path(__file__).parent.parent.parent / "docs" / "examples" / "flower_app.py"

    def command(name: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        words = [Path(sys.executable).parent / name, *arguments]
        return subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)

    assert command("tacit", "keys", "new", "--simulation", "100", "--out", "keys").returncode == 0
    done = command("python", example)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "every parameter is 0.4950"), done.stderr
    assert "secure sum: 100 of 100 clients are in it" in done.stderr
    for number in range(100):
        (tmp_path / "keys" / str(number)).rename(tmp_path / f"away-{number}")
    failed = command("python", example)
    said = failed.stderr.splitlines()
    assert failed.returncode == 1
    assert "none of 100 nodes is a client of the roster; the first:" in said[-1]
    assert "for a simulation `tacit keys new --simulation` makes them" in said[-1]
    assert sum("Traceback" in line for line in said) == 1
