"""Flower as it is deployed: a SuperLink and SuperNodes, each of which starts a process for every message. One SuperNode
is killed when its process for the third message of the sum, which it would answer with its update, has started."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest

from tacit.parties.links.roster import enrol_partitions

NODES, KILLED = 4, 3
PATIENCE = 300.0
BIN = Path(sys.executable).parent
PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "adding"
version = "1.0.0"
description = "adds numbers"
license = {{ file = "LICENSE" }}
dependencies = ["flwr>=1.42"]

[tool.flwr.app]
publisher = "tacit"
fab-format-version = 1
flwr-version-target = "1.42.0"

[tool.flwr.app.components]
serverapp = "adding.deployed_app:server"
clientapp = "adding.deployed_app:client"

[tool.flwr.app.config]
place = "{place}"
nodes = {nodes}
"""
Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start(tmp_path: Path) -> Iterable[Start]:
    """Start a command of Flower's; what it says is in a file. All of them, and their children, end with the test."""
    started: list[subprocess.Popen[bytes]] = []
    environment = {**os.environ, "FLWR_HOME": str(tmp_path / "home"), "PATH": f"{BIN}:{os.environ['PATH']}"}

    def start(log: str, *command: str) -> subprocess.Popen[bytes]:
        with (tmp_path / log).open("wb") as file:
            started.append(subprocess.Popen(command, env=environment, stdout=file, stderr=file, start_new_session=True))
        return started[-1]

    yield start
    for process in started:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
        finally:
            process.wait()


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def wait_for(what: Callable[[], bool], why: str) -> None:
    until = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < until, why
        time.sleep(0.2)


def test_a_super_node_is_killed_in_the_middle(tmp_path: Path, start: Start) -> None:
    enrol_partitions(tmp_path, NODES)
    link, *ports = free_ports(NODES + 1)
    address = f"127.0.0.1:{link}"
    app = tmp_path / "app"
    (app / "adding").mkdir(parents=True)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "{address}"\ninsecure = true\n'
    )
    (app / "pyproject.toml").write_text(PROJECT.format(place=tmp_path, nodes=NODES))
    for name in ("LICENSE", "README.md", "adding/__init__.py"):
        (app / name).write_text("")
    shutil.copy(Path(__file__).parent / "deployed_app.py", app / "adding")

    start("link", "flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(link))
    wait_for(lambda: b"Uvicorn running" in (tmp_path / "link").read_bytes(), "the SuperLink does not start")
    nodes = [
        start(
            f"node-{number}", "flower-supernode", "--insecure", "--superlink", address, "--port", str(port),
            "--node-config", f'tacit="{tmp_path / str(number)}" number={number}',
        )
        for number, port in enumerate(ports)
    ]  # fmt: skip
    activated = b"Activated node_id"
    wait_for(lambda: (tmp_path / "link").read_bytes().count(activated) == NODES, "the SuperNodes do not come")
    start("run", "flwr", "run", str(app), "here")
    said = tmp_path / f"node-{KILLED}"
    # The first is asked who it is, then come keys, shares, and the training.
    wait_for(lambda: said.read_bytes().count(b"Start `flwr-clientapp` process") == 4, (tmp_path / "run").read_text())
    os.killpg(nodes[KILLED].pid, signal.SIGKILL)
    wait_for((tmp_path / "result.npy").exists, "no result")
    assert np.allclose(np.load(tmp_path / "result.npy"), np.mean([0, 1, 2]), atol=1e-4)
