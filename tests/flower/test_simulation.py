"""Flower's own simulation runs the app: Ray hands every message of a node to whichever of its processes is free."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from flwr.simulation import run_simulation

from tests.flower.digits_app import accuracy, secure_client_app, secure_server_app
from tests.flower.losing import FailsToTrain, Loses, Lost

NODES = 6


class Said(logging.Handler):
    """What Flower's log is told."""

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
