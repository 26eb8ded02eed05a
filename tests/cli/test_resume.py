"""`tacit simulate --resume` of a run that is going on, and of one with logs that something else has written into."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result
from safetensors.numpy import save_file

from tacit.parties.runs.directory import Progress, RunDirectory

Invoke = Callable[..., Result]


def test_a_run_that_is_going_on_is_not_resumed(tacit: Invoke, tmp_path: Path, small: Path) -> None:
    """Nothing of it is changed; as soon as the other has ended, it can be."""
    run = RunDirectory.create(tmp_path / "run")
    run.experiment.write_text(small.read_text())
    metadata = Progress(round=2, split_seed=7).metadata()
    save_file({"w": np.zeros(1, np.float32)}, run.model, metadata=metadata)
    with run.alone():
        refused = tacit("simulate", "--resume", run.path, "--rounds", 5)
    assert (refused.exit_code, refused.stdout) == (2, "")
    who = f"process {os.getpid()}"
    assert refused.stderr == f"tacit: {run.path} is being written by {who}: wait for it, or stop it\n"
    assert run.experiment.read_text() == small.read_text()
    again = tacit("simulate", "--resume", run.path, "--rounds", 2)
    assert again.stderr == f"tacit: {run.path} has 2 rounds already: ask for more with --rounds 3 or above\n"


@pytest.mark.end_to_end
def test_a_torn_log_is_read_as_far_as_it_goes_and_the_run_goes_on(
    tacit: Invoke, tmp_path: Path, held_run: tuple[Result, Path]
) -> None:
    run = RunDirectory(tmp_path / "run")
    shutil.copytree(held_run[1], run.path)
    lines = run.events("server").read_bytes().splitlines(keepends=True)
    torn = next(number for number, line in enumerate(lines) if b'"event":"session-ended"' in line)
    run.events("server").write_bytes(b"".join([*lines[:torn], lines[torn][:20], *lines[torn:]]))
    resumed = tacit("simulate", "--resume", run.path, "--rounds", 4, "--quiet")
    assert resumed.exit_code == 0, resumed.stderr
    (line,) = resumed.stderr.splitlines()
    assert line.startswith(f"tacit: {run.events('server')} is read up to line {torn}: line {torn + 1} is not of this")
    rounds = json.loads(run.summary.read_bytes())["rounds"]
    assert [entry["round"] for entry in rounds] == [1, 2, 3, 4]
    page = tacit("report", run.path)
    assert (page.exit_code, page.stderr) == (0, "")
    assert "server.jsonl.unread has what was no event" in (run.path / "report.html").read_text()
