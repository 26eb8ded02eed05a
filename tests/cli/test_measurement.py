"""`tacit experiment` for the tables that need no federation."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result

from tacit.models.configuration import ModelConfiguration
from tacit.models.friendly.configuration import DistillationConfiguration
from tacit.simulate.experiments.adaptation_page import AdaptationMeasurement
from tacit.simulate.experiments.catalogue import MEASUREMENTS
from tacit.simulate.experiments.tastan_tables import TABLE1
from tests.cli.outputs import check_output

Invoke = Callable[..., Result]


@pytest.mark.end_to_end
def test_a_measurement_is_written_like_the_other_experiments(
    tacit: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On classes 0 and 1 of the owner and 2 and 3 of the clients, in seconds; without peft."""
    generator = np.random.default_rng(0)
    arrays = {}
    for part, count in (("train", 64), ("test", 16)):
        labels = np.arange(count) % 4
        arrays |= {f"y_{part}": labels, f"x_{part}": generator.integers(0, 60, (count, 8, 8), np.uint8)}
        arrays[f"x_{part}"] += (60 * labels[:, None, None]).astype(np.uint8)
    data = tmp_path / "four.npz"
    np.savez(data, **arrays)
    twin = TABLE1.size(small=True)
    size = replace(
        twin,
        model=ModelConfiguration(image_size=8, patch_size=4, width=8, depth=2, heads=2),
        distillation=DistillationConfiguration(layer_epochs=1, prediction_epochs=1, margin=10.0),
        rounds=1,
    )
    measurement = AdaptationMeasurement(claim=replace(TABLE1, small=size))
    monkeypatch.setitem(MEASUREMENTS, "tastan-table1", measurement)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    out, copy = tmp_path / "out", tmp_path / "copy.json"
    result = tacit(
        "experiment", "tastan-table1", "--small", "--seeds", "3", "--data", data, "--out", out, "--json", copy
    )
    assert result.exit_code == 0, result.stderr
    assert copy.read_bytes() == (out / "table.json").read_bytes()
    table = check_output(copy, "measurement")
    assert table["command"] == "tacit experiment tastan-table1 --small --seeds 3 --data four.npz"
    assert [row["row"] for row in table["rows"]] == [row.name for row in twin.rows]
    assert len(table["runs"]) == 3 * len(TABLE1.columns)
    assert table["differences"] == list(twin.differences)
    page = (out / "table.md").read_text()
    assert "| four.npz | central | alpha = 100 | alpha = 1 | alpha = 0.01 |" in page
    for run in table["runs"]:
        assert f"{run['accuracy']:.3f}" in page
    assert "LoRA: not measured, peft is not installed: pip install 'tacit[lora]'." in page
    assert (out / "plot.svg").read_text().startswith("<?xml")
    # One seed decides nothing.
    assert result.stdout.count("not decided: four.npz: ") == len(table["verdicts"]) == 3
    again = tacit("experiment", "tastan-table1", "--small", "--seeds", "3", "--data", data, "--out", out)
    assert again.exit_code == 2
    assert "exists already and is not empty" in again.stderr


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (
            ["tastan-table1"],
            "needs --data: a directory with the files of tiny-imagenet for the owner and of cifar10 or",
        ),
        (["tastan-table1", "--data", "."], "cifar-10"),
        (["tastan-table1", "--small", "--data", "."], "--data .: the small twin takes an .npz file, or without --data"),
        (["tastan-table1", "--small", "--data", "no.npz"], "no.npz"),
        (["tastan-table2", "--small"], "tastan-table2 has no small twin: its data set has no stand-in"),
        (["tastan-table2"], "of fed-isic2019, tiny-imagenet for the owner and of fed-isic2019 for the clients"),
        (["tastan-table3", "--small", "--seeds", "four"], "--seeds four: 'four' is no seed"),
        (["tastan-table3", "--small", "--device", "tpu"], "--device tpu: choose cpu or cuda"),
        (["tastan-table4", "--small"], "there is no experiment 'tastan-table4'; choose one of "),
    ],
)
def test_wrong_input_is_refused_before_anything_starts(
    tacit: Invoke, tmp_path: Path, arguments: list[str], reason: str
) -> None:
    result = tacit("experiment", *arguments, "--out", tmp_path / "out")
    assert (result.exit_code, result.stdout) == (2, "")
    assert reason in result.stderr
    assert not (tmp_path / "out").exists()
