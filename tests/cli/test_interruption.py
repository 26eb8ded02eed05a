"""Whoever interrupts a command, however early and however often, gets a status and no traceback."""

import contextlib
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

pytestmark = [pytest.mark.end_to_end, pytest.mark.usefixtures("ctrl_c")]

PATIENCE = 120  # Seconds until a wait counts as lost; no test takes them.
LOADED = "import time:"


@contextlib.contextmanager
def command(*arguments: object, told: Sequence[str] = ("-X", "importtime")) -> Iterator[subprocess.Popen[str]]:
    """The installed command in a session of its own; told: has it say on its standard error what it loads."""
    begin = "import sys; from tacit.cli.entry import main; sys.exit(main())"
    process = subprocess.Popen(
        [sys.executable, *told, "-c", begin, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=PATIENCE)


def until_loaded(process: subprocess.Popen[str], module: str) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        if line.split("|")[-1].strip() == module:
            return
    raise AssertionError(f"{module} was not loaded")


def end(process: subprocess.Popen[str]) -> tuple[int, list[str]]:
    _, errors = process.communicate(timeout=PATIENCE)
    return process.returncode, [line for line in errors.splitlines() if LOADED not in line]


EARLY: tuple[tuple[list[object], str], ...] = (
    (["simulate"], "tacit.cli.interruption"),
    (["simulate"], "rich.console"),
    (["simulate"], "tacit.parties.runs.experiment"),
    (["distill", "--out", "results"], "timm.layers.create_act"),
    (["bench", "secagg", "--clients", 1000], "tacit.secagg.packing"),
)
"""Commands that take long, and the module after whose import a signal comes."""


def test_in_the_first_moments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    wrong = {}
    for (arguments, module), number in zip(EARLY, itertools.cycle([signal.SIGINT, signal.SIGTERM])):
        with command(*arguments) as process:
            until_loaded(process, module)
            process.send_signal(number)
            process.send_signal(number)
            status, complaints = end(process)
        if status != 130 or any(not line.startswith("tacit: interrupted") for line in complaints):
            wrong[module] = status, complaints
    assert wrong == {}
    assert not (tmp_path / "runs").exists()


def test_twice_in_a_run(tmp_path: Path, small: Path) -> None:
    slow = tmp_path / "slow.toml"
    slow.write_text(small.read_text().replace("epochs = 1", "epochs = 100"))
    with command("simulate", slow, "--rounds", 1000, "--out", tmp_path / "run", told=()) as process:
        assert process.stdout is not None
        while not (line := process.stdout.readline()).startswith("round 1 of 1000 completed"):
            assert line, process.communicate()
        os.killpg(process.pid, signal.SIGINT)
        os.killpg(process.pid, signal.SIGINT)
        status, complaints = end(process)
    kept = f"tacit: interrupted; finished rounds are kept: tacit simulate --resume {tmp_path / 'run'}"
    assert (status, complaints) == (130, [kept])
    assert not list((tmp_path / "run").rglob(".*.tmp"))


@pytest.mark.exhaustive
def test_an_audit_leaves_no_recordings(tmp_path: Path) -> None:
    with command("audit", "--seed", "0", "--out", tmp_path / "audit") as process:
        until_loaded(process, "tacit.simulate.audit.run")
        process.send_signal(signal.SIGINT)
        status, _ = end(process)
    assert status == 130
    assert not (tmp_path / "audit" / "recordings").exists()
