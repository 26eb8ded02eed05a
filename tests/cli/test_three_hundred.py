"""Three hundred clients on one machine: in the memory of a small one, by the protocol and the messages as ever."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

pytestmark = pytest.mark.exhaustive

CLIENTS: Final = 300
MOST_BYTES: Final = 4_000_000_000
PATIENCE: Final = 3600
"""Seconds until the run counts as stuck."""
EXPERIMENT: Final = f"""
name = "three-hundred"
[federation]
clients = {CLIENTS}
rounds = 2
[data]
partition = "iid"
[aggregation]
corrupt = 0.05
dropout = 0.05
[policy]
least_corrupt = 0.05
[simulate]
workers = 2
"""


def processes(session: int) -> list[Path]:
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if os.getsid(int(place.name)) == session:
                found.append(place)
        except ProcessLookupError:
            continue
    return found


def proportional(place: Path) -> int:
    """The process's memory in bytes, what it shares with others in equal parts."""
    try:
        lines = (place / "smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


def test_three_hundred_clients_take_four_gigabytes(tmp_path: Path) -> None:
    (tmp_path / "experiment.toml").write_text(EXPERIMENT)
    command = [str(Path(sys.executable).with_name("tacit")), "simulate", "experiment.toml", "--out", "run"]
    most = 0
    with (tmp_path / "output").open("w") as output:
        running = subprocess.Popen(
            command, cwd=tmp_path, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            for _ in range(PATIENCE):
                try:
                    running.wait(1)
                    break
                except subprocess.TimeoutExpired:
                    most = max(most, sum(map(proportional, processes(running.pid))))
        finally:
            if running.poll() is None:
                os.killpg(running.pid, signal.SIGKILL)
    said = (tmp_path / "output").read_text()
    assert running.returncode == 0, said
    assert said.count(f"{CLIENTS} of {CLIENTS} clients") == 2
    summary: dict[str, Any] = json.loads((tmp_path / "run" / "summary.json").read_bytes())
    for entry in summary["rounds"]:
        assert (entry["status"], len(entry["survivors"]), entry["absent"]) == ("completed", CLIENTS, {})
    assert {path.stem for path in (tmp_path / "run" / "logs").iterdir()} == {"server", "worker-1", "worker-2"}
    print(f"at most {most / 1e9:.2f} GB, {summary['wall_seconds']:.0f} s")
    assert 0 < most < MOST_BYTES
