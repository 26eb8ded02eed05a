"""docs/model-files.md: a run with low-rank products is shown, merged, and loaded into timm by the page's own lines."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from tacit.models.data import load
from tacit.parties.learning.task import Task
from tacit.parties.runs import experiment as experiments

PAGE = (Path(__file__).parent.parent.parent / "docs" / "model-files.md").read_text(encoding="utf-8")
EXPERIMENT = """
[federation]
clients = 3
rounds = 1
seed = 3
[model]
name = "test_vit"
checkpoint = "given.safetensors"
image_size = 32
tune = "lora"
[data]
partition = "iid"
mean = [0.5]
std = [0.25]
[training]
epochs = 1
learning_rate = 0.01
"""


def tacit(folder: Path, *arguments: str) -> str:
    command = [sys.executable, Path(sys.executable).with_name("tacit"), *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.end_to_end
@pytest.mark.smoke
def test_the_commands_and_lines_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = timm.create_model("test_vit", num_classes=0)
    save_file(given.state_dict(), tmp_path / "given.safetensors")
    (tmp_path / "lora.toml").write_text(EXPERIMENT, encoding="utf-8")
    tacit(tmp_path, "simulate", "lora.toml", "--out", "run")
    assert "low-rank products of rank 8" in tacit(tmp_path, "models", "show", "run")
    said = tacit(tmp_path, "models", "merge", "run", "--out", "merged.safetensors")
    assert said == "merged.safetensors: 6 layers merged\n"

    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    page: dict[str, Any] = {}
    exec(block, page)
    # The run's own model and images, without the page.
    experiment = experiments.load(tmp_path / "run" / "experiment.toml")
    ours = Task(model=experiment.model.architecture, training=experiment.training, classes=10, channels=1).build()
    ours.load_state_dict(load_file(tmp_path / "run" / "model.safetensors"))
    images = load(experiment.data, image_size=32)
    pixels = images.source.test.images.pixels(np.arange(8), size=32)[..., 0]
    theirs = torch.stack([page["prepare"](Image.fromarray(one)) for one in pixels])
    with torch.inference_mode():
        found, expected = page["model"](theirs), ours.eval()(images.x_test[:8])
    # Pillow rounds what it has resized to whole steps of 255.
    assert (found - expected).abs().max() < 0.05 * expected.std()
    assert page["about"]["classes"] == list("0123456789")
