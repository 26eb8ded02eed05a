"""`tacit bench protection` runs every scheme and says what it costs."""

import functools
import operator
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from docs.generate import protection_costs
from tacit.cli.main import app
from tacit.models.configuration import ModelConfiguration
from tacit.simulate.bench import protection
from tests.cli.outputs import check_output


def test_the_figures_of_every_protection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protection, "LARGE", ModelConfiguration(image_size=8, patch_size=8, depth=1))
    file = tmp_path / "figures.json"
    done = CliRunner().invoke(app, ["bench", "protection", "--repeats", "1", "--json", str(file)])
    assert done.exit_code == 0, done.output
    figures = check_output(file, "bench-protection")
    large, default = figures["large"], figures["default"]
    assert large["parameters"] > 128 * 192  # features and values of a patch
    assert large["orthogonal"]["condition"] == 1.0
    assert large["gaussian"]["condition"] > 10
    times = [large["binary_masks_ms"], large["coordinated_masks_ms"], *default["cost_ms"].values()]
    times += [
        large[matrix][f"{step}_ms"] for matrix in ("orthogonal", "gaussian") for step in ("draw", "encrypt", "decrypt")
    ]
    assert min(times) > 0
    assert set(default["cost_ms"]) == {"fixed-position", "binary-weights", "coordinated", "model-encryption"}
    assert default["samples"] > 200
    for scheme, cost in default["cost_ms"].items():
        assert default["cost_percent"][scheme] == pytest.approx(100 * cost / default["local_round_ms"])
        assert scheme in done.stdout
    page = "\n".join(protection_costs.section(figures))
    keys = re.findall(r"`((?:large|default)\.[\w.]+)`", page)
    assert len(keys) == 19
    for key in keys:
        functools.reduce(operator.getitem, key.split("."), figures)
