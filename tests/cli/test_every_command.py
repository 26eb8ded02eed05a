"""Commands that no other smoke test starts, each once as a process of its own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.end_to_end, pytest.mark.smoke]

EXPERIMENT = """
name = "small"
[federation]
clients = 3
rounds = 1
[data]
source = {source!r}
partition = "iid"
[model]
image_size = 8
patch_size = 4
width = 8
depth = 2
heads = 2
[training]
epochs = 1
batch_size = 8
"""
DISTILLATION = """
[distillation]
teacher_epochs = 6
layer_epochs = 2
prediction_epochs = 1
margin = 3.0
"""


def tacit(directory: Path, *arguments: str) -> str:
    done = subprocess.run(
        [Path(sys.executable).with_name("tacit"), *arguments],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{arguments}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_a_run_is_made_reported_and_compared(tmp_path: Path, images: Path) -> None:
    experiment = EXPERIMENT.format(source=str(images))
    (tmp_path / "small.toml").write_text(experiment, encoding="utf-8")
    tacit(tmp_path, "data", "inspect", "small.toml", "--json", "data.json")
    for seed in ("1", "2"):
        tacit(tmp_path, "simulate", "small.toml", "--seed", seed, "--out", f"run-{seed}")
    (tmp_path / "run-1" / "report.html").unlink()
    tacit(tmp_path, "report", "run-1")
    tacit(tmp_path, "compare", "run-1", "run-2", "--json", "comparison.json")
    (tmp_path / "student.toml").write_text(experiment + DISTILLATION, encoding="utf-8")
    tacit(tmp_path, "distill", "student.toml", "--out", "student")
    pages = ("run-1/report.html", "comparison.html", "student/student.safetensors")
    assert all((tmp_path / page).stat().st_size for page in pages)
    assert json.loads((tmp_path / "data.json").read_bytes())
    assert len(json.loads((tmp_path / "comparison.json").read_bytes())["runs"]) == 2


def test_costs_are_measured_and_studies_and_schemas_listed(tmp_path: Path) -> None:
    tacit(tmp_path, "bench", "secagg", "--clients", "4", "--dimension", "100", "--json", "sum.json")
    assert json.loads((tmp_path / "sum.json").read_bytes())
    assert "tastan-table1" in tacit(tmp_path, "experiment", "list")
    assert "summary" in tacit(tmp_path, "schema")
    assert "[federation]" in tacit(tmp_path, "config")
