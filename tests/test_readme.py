"""The commands of the README do what it says, word for word."""

import json
import re
import subprocess
from pathlib import Path

import pytest

pytestmark = [pytest.mark.end_to_end, pytest.mark.smoke]

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```sh\n(.*?)```", README, flags=re.DOTALL)
NOT_HERE = ("make test",)
"""It may be what runs this."""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A directory like a fresh checkout after `make setup`, that the commands may write into."""
    if not (ROOT / ".venv").is_dir():
        pytest.skip("the commands run in the environment that `make setup` makes")
    for path in ROOT.iterdir():
        if path.name not in (".git", "runs"):
            (tmp_path / path.name).symlink_to(path)
    return tmp_path


def run(block: str, directory: Path) -> None:
    lines = [line for line in block.splitlines() if not line.startswith(NOT_HERE)]
    done = subprocess.run(
        ["sh", "-e", "-c", "\n".join(lines)], cwd=directory, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{lines}\n{done.stdout}\n{done.stderr}"


def test_the_demo_learns(checkout: Path) -> None:
    demo, *_ = BLOCKS
    run(demo, checkout)
    (directory,) = (checkout / "runs").iterdir()
    summary = json.loads((directory / "summary.json").read_text(encoding="utf-8"))
    assert len(summary["rounds"]) == 10
    assert {entry["status"] for entry in summary["rounds"]} == {"completed"}
    assert len(summary["parties"]) == 6
    assert summary["final_accuracy"] >= 0.90
    assert (directory / "report.html").is_file()
    assert {path.stem for path in (directory / "events").iterdir()} == set(summary["parties"])


def test_the_other_commands_run(checkout: Path) -> None:
    _, experiment, _, conformance = BLOCKS
    run(f". .venv/bin/activate\n{conformance}", checkout)
    run(experiment, checkout)
    summary = json.loads((checkout / "runs" / "first" / "summary.json").read_text(encoding="utf-8"))
    assert [entry["status"] for entry in summary["rounds"]] == ["completed"] * 3
    assert len(summary["parties"]) == 5
