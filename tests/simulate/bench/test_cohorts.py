"""`tacit bench secagg --cohorts` adds up the sums of many cohorts, and goes on where it was."""

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result
from typer.testing import CliRunner

from tacit.cli.main import app
from tacit.parties.hosting.resources import available_memory
from tacit.simulate.bench.cohorts import values
from tacit.simulate.bench.peak import highest_bytes
from tests.cli.outputs import check_output

COHORT, LENGTH = 8, 40
PATIENCE = 120  # Seconds until a wait counts as lost; no test takes them.


def bench(directory: Path, cohorts: int, *arguments: object) -> Result:
    command = ["bench", "secagg", "--cohort", COHORT, "--cohorts", cohorts, "--dimension", LENGTH, "--dropout", 0.25]
    command += ["--tolerate-dropout", 0.25, "--corrupt", 0.2, "--out", directory / "out", *arguments]
    return CliRunner().invoke(app, [str(word) for word in [*command, "--json", directory / "figures.json"]])


@pytest.fixture(scope="module")
def summed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    directory = tmp_path_factory.mktemp("cohorts")
    done = bench(directory, 3)
    assert done.exit_code == 0, done.output
    return directory, check_output(directory / "figures.json", "bench-cohorts")


def test_the_sums_are_those_of_the_survivors(summed: tuple[Path, dict[str, Any]]) -> None:
    directory, figures = summed
    assert (figures["clients"], figures["survivors"], figures["computed_now"]) == (24, 18, 3)
    totals = []
    for number in range(3):
        with np.load(directory / "out" / "cohorts" / f"{number}.npz") as kept:
            totals.append(kept["total"])
        length = len(totals[-1])
        # The last quarter of each cohort drops out.
        given = [values(number, member, length).tolist() for member in range(6)]
        assert totals[-1].tolist() == [sum(column) for column in zip(*given, strict=True)]
    assert figures["total_mean"] == pytest.approx(sum(map(int, sum(totals))) / length / 18)


def test_what_is_done_is_not_done_again(summed: tuple[Path, dict[str, Any]]) -> None:
    directory, before = summed
    cohorts = directory / "out" / "cohorts"
    written = (cohorts / "0.npz").stat().st_mtime_ns
    (cohorts / "1.npz").unlink()
    assert bench(directory, 4).exit_code == 0
    figures = check_output(directory / "figures.json", "bench-cohorts")
    assert (figures["clients"], figures["survivors"], figures["computed_now"]) == (32, 24, 2)
    assert figures["ring_bits"] == before["ring_bits"] >= 16 + 20
    assert (cohorts / "0.npz").stat().st_mtime_ns == written


def test_a_total_that_is_not_that_of_the_survivors_is_found(summed: tuple[Path, dict[str, Any]]) -> None:
    directory, _ = summed
    path = directory / "out" / "cohorts" / "2.npz"
    with np.load(path) as kept:
        arrays = dict(kept)
    np.savez(path, **arrays | {"total": arrays["total"] + np.eye(1, len(arrays["total"]), dtype=np.uint64)[0]})
    try:
        assert bench(directory, 3).exit_code == 1
        assert check_output(directory / "figures.json", "bench-cohorts")["sum_is_exact"] is False
    finally:
        np.savez(path, **arrays)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--dimension", LENGTH + 1), "holds cohorts of another setting: choose another with --out"),
        (("--profile",), "--profile: of one sum only; leave it out with --cohorts"),
        (("--transport", "zmq", "--counts"), "--counts, --transport: of one sum only; leave it out with --cohorts"),
        (("--cohort", 2000, "--cohorts", 1000), "2,000,000 clients are more than 1,048,576, for which the ring is"),
        (("--cohorts", 1), "--out: for --cohorts; leave it out"),
    ],
)
def test_what_does_not_fit_is_refused(
    summed: tuple[Path, dict[str, Any]], arguments: tuple[object, ...], complaint: str
) -> None:
    refused = bench(summed[0], 3, *arguments)
    assert refused.exit_code == 2
    assert complaint in refused.stderr


def test_a_refused_command_holds_no_place_against_the_next(tmp_path: Path) -> None:
    refused = bench(tmp_path, 2, "--tolerate-dropout", 0.9)
    assert refused.exit_code == 2, refused.output
    assert not (tmp_path / "out").exists()


def test_what_has_no_room_for_as_many_as_work_at_once_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(16))
    if (available := available_memory()) is None or available > 24e12:
        pytest.skip("this machine has room for it, or does not tell")
    refused = bench(tmp_path, 3, "--cohort", 10_000, "--dimension", 100_000_000)
    assert refused.exit_code == 1
    assert refused.stderr.startswith("tacit: 3 cohorts at once, each of 10,000 clients with ")
    (about,) = re.findall(r"take about ([\d,]+)\.\d GB, and there are ", refused.stderr)
    # 40 bits of a ring for all are words of 8 bytes; what neighbours take is less than 1 % of vectors so long.
    assert int(about.replace(",", "")) == pytest.approx(3 * 8e12 / 1e9, rel=0.02)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("cores", "processes"), [(1, 1), (16, 3)])
def test_memory_is_that_of_as_many_processes_as_there_are(
    summed: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch, cores: int, processes: int
) -> None:
    directory, _ = summed
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(cores))
    assert bench(directory, 3).exit_code == 0
    figures = check_output(directory / "figures.json", "bench-cohorts")
    # The highest of this process may have grown since, by what the figures take.
    of_workers = figures["peak_mb_of_all"] - highest_bytes() / 1e6
    assert of_workers / figures["peak_mb_of_a_process"] == pytest.approx(processes, abs=0.1)


@pytest.mark.parametrize(("how", "status"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130)])
def test_nobody_works_on_for_a_command_that_has_ended(tmp_path: Path, how: signal.Signals, status: int) -> None:
    words = ["bench", "secagg", "--cohort", "100", "--cohorts", "1000", "--out", str(tmp_path / "out")]
    command = subprocess.Popen(
        [sys.executable, "-c", "from tacit.cli.main import main; main()", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + PATIENCE
        while not (tmp_path / "out" / "cohorts" / "0.npz").exists():
            assert command.poll() is None, command.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        workers = [os.pidfd_open(process) for process in children(command.pid)]
        assert len(workers) >= 1 + len(os.sched_getaffinity(0))  # The resource tracker is one of them.
        # Ctrl-C goes to all of a terminal.
        (os.killpg if how == signal.SIGINT else os.kill)(command.pid, how)
        for worker in workers:
            assert select.select([worker], [], [], PATIENCE)[0], "a worker outlived the command"
            os.close(worker)
        _, said = command.communicate(timeout=PATIENCE)
        assert command.returncode == status
        # Whoever is killed leaves semaphores behind, which the resource tracker complains of.
        assert said == "tacit: interrupted\n" or (how == signal.SIGKILL and "Traceback" not in said)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(command.pid, signal.SIGKILL)
        command.communicate(timeout=PATIENCE)


def children(process: int) -> list[int]:
    found = []
    for tasks in Path(f"/proc/{process}/task").iterdir():
        found += [int(child) for child in (tasks / "children").read_text().split()]
    return found
