"""Clients with more images than anybody foresaw: an experiment that says nothing of weights runs."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result

Invoke = Callable[..., Result]
WriteExperiment = Callable[..., Path]


def test_a_weight_that_is_too_small_is_refused_before_a_client_starts(
    tacit: Invoke, tmp_path: Path, write_experiment: WriteExperiment
) -> None:
    file = write_experiment(tmp_path / "small.toml", more="[aggregation]\nmax_weight = 14")
    result = tacit("simulate", file, "--out", tmp_path / "run")
    assert result.exit_code == 2
    assert result.stderr == (
        "tacit: server: aggregation.max_weight = 14: the largest client has 15 samples to train on; leave the key out, "
        "and it is computed, or set it to 15 or more\n"
    )
    assert "listens at" not in result.stdout
    assert not (tmp_path / "run").exists()


@pytest.mark.end_to_end
def test_clients_of_thousands_of_images(tacit: Invoke, tmp_path: Path, small: Path, images: Path) -> None:
    labels = np.arange(6300) % 3
    pixels = np.repeat(labels.astype(np.uint8)[:, None, None] * 60, 64, axis=1).reshape(-1, 8, 8)
    many = tmp_path / "many.npz"
    np.savez(many, x_train=pixels, y_train=labels, x_test=pixels[:12], y_test=labels[:12])
    file = tmp_path / "many.toml"
    file.write_text(small.read_text().replace(str(images), str(many)).replace("clients = 4", "clients = 3"))
    result = tacit("simulate", file, "--rounds", 1, "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    summary = json.loads((tmp_path / "run" / "summary.json").read_bytes())
    assert (summary["rounds"][0]["samples"], summary["aggregation"]["max_weight"]) == (6300, 2100)
