"""Full disks under real runs."""

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from tacit.cli.main import app
from tacit.parties.runs.directory import RunDirectory, writing
from tacit.parties.session.event_log import read
from tacit.parties.session.events import RoundEnded

pytestmark = pytest.mark.end_to_end

TOML = """
name = "small"
[federation]
clients = 4
rounds = {rounds}
[data]
source = "{source}"
partition = "iid"
[model]
image_size = 8
patch_size = 4
width = 8
depth = 1
heads = 2
[training]
epochs = 1
batch_size = 8
[deadlines]
grace = 0.5
"""

PROGRAM = """
import resource, sys
if __name__ == "__main__":
    limit = int(sys.argv.pop(1))
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    from tacit.cli.main import main
    main()
"""


@dataclass(frozen=True)
class Outcome:
    status: int
    stdout: str
    stderr: str

    def complaint(self, status: int) -> str:
        assert self.status == status, (self.stdout, self.stderr)
        (line,) = self.stderr.splitlines()
        assert "Traceback" not in self.stdout
        return line


def tacit(*arguments: object) -> Outcome:
    """Runs the command here; the parties are processes, whose fork server loads torch once for all runs."""
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return Outcome(done.exit_code, done.stdout, done.stderr)


def limited(directory: Path, limit: int, *arguments: object) -> Outcome:
    """Runs the command in a process of its own where no file, in no process, grows beyond so many bytes."""
    program = directory / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, str(program), str(limit), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return Outcome(done.returncode, done.stdout, done.stderr)


def experiment(directory: Path, *, rounds: int = 1, source: str = "digits") -> Path:
    path = directory / "small.toml"
    path.write_text(TOML.format(rounds=rounds, source=source))
    return path


def rounds_held(run: Path) -> list[tuple[int, str]]:
    events = read(run / "events" / "server.jsonl")
    return [(event.round, event.status) for event in events if isinstance(event, RoundEnded)]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("finished")
    outcome = tacit("simulate", experiment(directory), "--out", directory / "run")
    assert outcome.status == 0, outcome.stderr
    return directory / "run"


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def test_a_disk_that_is_full_from_the_start_leaves_nothing(tmp_path: Path) -> None:
    run = tmp_path / "run"
    line = limited(tmp_path, 1000, "simulate", "--out", run).complaint(1)
    assert line == (
        f"tacit: {run}/experiment.toml cannot be written: File too large; "
        "make room on the disk, or choose another place"
    )
    assert not run.exists()


def test_a_disk_that_fills_up_in_a_run_keeps_the_finished_rounds(tmp_path: Path) -> None:
    """The first file that grows beyond the limit is the server's event log, some rounds later."""
    run, labels = tmp_path / "run", np.arange(80) % 4
    images = np.random.default_rng(5).integers(0, 256, (len(labels), 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "few.npz", x_train=images, y_train=labels, x_test=images[:8], y_test=labels[:8])
    file = experiment(tmp_path, rounds=20, source=str(tmp_path / "few.npz"))
    outcome = limited(tmp_path, 40_000, "simulate", file, "--out", run)
    line = outcome.complaint(1)
    assert line.startswith(f"tacit: server: {run}/events/server.jsonl: event ")
    assert line.endswith(" cannot be written: File too large; make room on the disk")
    kept = RunDirectory(run).progress().round
    assert 1 <= kept < 20
    held = rounds_held(run)
    # The model is kept before the event of the round is written, which may be the one that does not fit.
    assert kept - 1 <= len(held) <= kept
    assert held == [(number + 1, "completed") for number in range(len(held))]


def test_resuming_on_a_full_disk_keeps_the_experiment(tmp_path: Path, run: Path) -> None:
    before = (run / "experiment.toml").read_bytes()
    line = limited(tmp_path, 1000, "simulate", "--resume", run, "--rounds", 2).complaint(1)
    assert line.startswith(f"tacit: {run}/experiment.toml cannot be written: File too large; make room")
    assert (run / "experiment.toml").read_bytes() == before
    assert not list(run.glob(".*"))


@pytest.mark.parametrize("name", ["summary.json", "--json"])
def test_a_summary_that_cannot_be_written_costs_no_round(run: Path, name: str) -> None:
    if name == "--json":
        more: tuple[str, ...] = ("--json", "/dev/full")
        place = "/dev/full"
    else:
        (run / name).unlink()
        (run / name).symlink_to("/dev/full")
        more, place = (), f"{run}/{name}"
    line = tacit("simulate", "--resume", run, "--rounds", 2, *more).complaint(1)
    assert line.startswith(f"tacit: {place} cannot be written: No space left on device; make room on the disk")
    assert rounds_held(run)[-1] == (2, "completed")
    assert RunDirectory(run).progress().round == 2


def test_a_model_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.symlink_to("/dev/full")
    with (
        pytest.raises(OSError, match=r"model\.safetensors cannot be written: No space left on device; make room"),
        writing(path),
    ):
        path.write_bytes(b"model")
