"""`tacit conformance vectors`: verdicts on the screen, in a file, and in the exit status."""

import subprocess
import sys
from pathlib import Path

import pytest

from tacit.simulate.conformance.vectors import installed, vector_files
from tests.cli.command import Invoke
from tests.cli.outputs import check_output

SMALL = ("members.json", "members_bad_bits.json", "transcript_federation_groups_bad.json")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    folder = tmp_path / "vectors"
    folder.mkdir()
    for path in vector_files(installed()):
        if path.name in SMALL:
            (folder / path.name).write_bytes(path.read_bytes())
    return folder


@pytest.mark.end_to_end
def test_this_installation_passes(tacit: Invoke, tmp_path: Path) -> None:
    result = tacit("conformance", "vectors", "--json", tmp_path / "verdicts.json")
    assert result.exit_code == 0, result.output
    verdicts = check_output(tmp_path / "verdicts.json", "vectors")["files"]
    assert [verdict["file"] for verdict in verdicts] == [path.name for path in vector_files(installed())]
    assert all(verdict["steps"] > 0 and verdict["fault"] == "" for verdict in verdicts)
    total = sum(verdict["steps"] for verdict in verdicts)
    # There is nothing to look at, so there is no table.
    assert result.stdout == f"{len(verdicts)} files, {total:,} steps: all passed\n"


def test_a_planted_error_is_found(tacit: Invoke, copy: Path, tmp_path: Path) -> None:
    planted = copy / "members.json"
    planted.write_text(planted.read_text().replace('"expect":"01"', '"expect":"03"', 1))
    result = tacit("conformance", "vectors", copy, "--json", tmp_path / "verdicts.json")
    assert result.exit_code == 1
    assert result.stdout.splitlines()[-1].endswith(": 1 failed")
    assert [line for line in result.stdout.splitlines() if ".json" in line and "members.json" not in line] == []
    faults = {
        verdict["file"]: verdict["fault"] for verdict in check_output(tmp_path / "verdicts.json", "vectors")["files"]
    }
    assert faults.pop("members.json") == 'computation 0, write members: result: expected "03", got "01"'
    assert set(faults.values()) == {""}


def test_a_file_without_vectors_fails(tacit: Invoke, copy: Path) -> None:
    (copy / "other.json").write_text("[bold]")
    result = tacit("conformance", "vectors", copy)
    assert result.exit_code == 1
    assert "not a vector file" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["empty"], "empty: there are no vectors; name a directory with vector files (*.json)"),
        (["nowhere"], "nowhere: No such file or directory; name a directory with vectors"),
    ],
    ids=["empty", "missing"],
)
def test_wrong_input(
    tacit: Invoke, copy: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], expected: str
) -> None:
    monkeypatch.chdir(copy.parent)
    Path("empty").mkdir()
    result = tacit("conformance", "vectors", *arguments)
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith("tacit: ")
    assert line.endswith(expected)


def test_it_starts_without_torch_and_sockets(copy: Path) -> None:
    code = (
        "import sys; from tacit.cli.main import app\n"
        f"app(['conformance', 'vectors', {str(copy)!r}], standalone_mode=False)\n"
        "print(*sys.modules, sep='\\n')"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "3 files" in run.stdout
    assert not {"torch", "timm", "crypten", "zmq", "tests.vectors_corpus"} & set(run.stdout.split())
