"""The file of --json is looked at before a command begins with anything, whatever the command."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tacit.parties.runs.directory import write_json
from tests.cases import cases
from tests.cli.command import Invoke


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A folder on a file system that nobody can write to, root included."""
    folder = tmp_path / "read-only"
    folder.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "ro", "none", folder], capture_output=True, check=False
    ).returncode:
        pytest.skip("mounting a file system needs root")
    yield folder
    subprocess.run(["umount", folder], check=True)


COMMANDS = (
    ["simulate"],
    ["distill"],
    ["infer", "."],
    ["experiment", "sawada-fig6"],
    ["experiment", "tastan-table1"],
    ["data", "inspect"],
    ["bench", "secagg"],
    ["bench", "network"],
    ["bench", "inference"],
    ["bench", "adapt"],
    ["conformance", "vectors"],
    ["conformance", "peer", "tcp://127.0.0.1:1", "--as", "client", "--keys", "."],
)


@cases(
    ("command", "file", "reason"),
    [
        (COMMANDS[0], "nowhere/x.json", "there is no directory nowhere; make it first"),
        *((command, ".", "it is a folder; name a file") for command in COMMANDS),
    ],
)
def test_a_file_that_cannot_be_written_is_refused_first(
    tacit: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str], file: str, reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = tacit(*command, "--json", file)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"tacit: --json {file}: {reason}\n"
    assert not list(tmp_path.iterdir())


def test_a_file_on_a_read_only_file_system_is_refused_first(tacit: Invoke, read_only: Path) -> None:
    result = tacit("simulate", "--json", read_only / "x.json", "--out", read_only / "run")
    assert (result.exit_code, result.stdout) == (2, "")
    said = f"tacit: --json {read_only}/x.json: the file system is read-only; name a file in another place\n"
    assert result.stderr == said


def test_a_read_only_place_is_not_mended_by_room(read_only: Path) -> None:
    with pytest.raises(OSError, match=r"x cannot be written: Read-only file system; choose another place$"):
        write_json({}, read_only / "x")


def test_a_file_that_turns_out_not_to_be_writable_is_a_failure(tacit: Invoke) -> None:
    result = tacit("data", "inspect", "--json", "/dev/full")
    assert result.exit_code == 1
    assert result.stderr == (
        "tacit: /dev/full cannot be written: No space left on device; make room on the disk, or choose another place\n"
    )
