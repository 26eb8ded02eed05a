"""A run directory of a simulation is a set of hosts: its parties, started by hand, train the same model bit for bit."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from tests.cli.hosts import PATIENCE, free_port

SEED = 7
EXPERIMENT = """
name = "small"
[federation]
clients = 3
rounds = 2
[model]
image_size = 8
patch_size = 4
width = 8
depth = 1
heads = 2
[training]
epochs = 1
"""


@pytest.mark.end_to_end
@pytest.mark.parametrize("trained", [["*"], ["head.*"]])
def test_the_parties_of_a_simulation_are_hosts(
    tacit: Callable[..., Result], tmp_path: Path, trained: list[str]
) -> None:
    run, hosts = tmp_path / "run", tmp_path / "hosts"
    (tmp_path / "small.toml").write_text(EXPERIMENT.replace("[model]", f"[model]\ntrain = {json.dumps(trained)}"))
    made = tacit("simulate", str(tmp_path / "small.toml"), "--seed", str(SEED), "--out", str(run))
    assert made.exit_code == 0, made.output
    shutil.copytree(run / "parties", hosts)
    address = f"tcp://127.0.0.1:{free_port()}"
    parties = sorted(hosts.glob("*/party.toml"), key=lambda path: path.parent.name != "server")
    running = []
    try:
        for path in parties:
            text = path.read_text(encoding="utf-8")
            path.write_text(re.sub(r'^(bind|connect) = ".*"$', rf'\1 = "{address}"', text, flags=re.MULTILINE))
            arguments = [path, SEED, *path.parent.glob("experiment.toml")]
            command = [sys.executable, "-m", "tests.cli.rehearsed", *map(str, arguments)]
            running.append(subprocess.Popen(command))
        assert [process.wait(PATIENCE) for process in running] == [0] * 4
    finally:
        for process in running:
            process.kill()
            process.wait()
    (model,) = hosts.glob("server/state/runs/*/model.safetensors")
    assert model.read_bytes() == (run / "model.safetensors").read_bytes()
