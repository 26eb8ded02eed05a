"""`tacit experiment` for the tables that need no federation."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import Result

from tacit.simulate.experiments.catalogue import MEASUREMENTS
from tacit.simulate.experiments.tastan_approximations import TABLE5, TABLE6
from tacit.simulate.experiments.tastan_page import ApproximationMeasurement
from tests.cli.outputs import check_output

Invoke = Callable[..., Result]


def test_a_measurement_is_written_like_the_other_experiments(
    tacit: Invoke, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published = {degree: TABLE5.published[degree] for degree in (2, 6, None)}
    monkeypatch.setitem(
        MEASUREMENTS, "tastan-table5", ApproximationMeasurement(claim=replace(TABLE5, published=published))
    )
    out, copy = tmp_path / "out", tmp_path / "copy.json"
    result = tacit(
        "experiment", "tastan-table5", "--small", "--seeds", "3", "--data", images, "--out", out, "--json", copy
    )
    assert result.exit_code == 0, result.stderr
    assert copy.read_bytes() == (out / "table.json").read_bytes()
    table = check_output(copy, "measurement")
    assert [(run["degree"], run["seed"]) for run in table["runs"]] == [(2, 3), (6, 3), (None, 3)]
    assert [row["published"] for row in table["rows"]] == [list(row) for row in published.values()]
    assert table["command"] == "tacit experiment tastan-table5 --small --seeds 3 --data images.npz"
    page = (out / "table.md").read_text()
    assert "## tastan-table5: Table 5, the degree of the softmax" in page
    first = table["runs"][0]
    assert f"| 2 | {100 * first['accuracy']:.2f} | {first['attention']:.3f} | {first['hidden']:.3f} | " in page
    assert " | 75.17 | 44.37 | 915.46 | 0.41 | 16.82 |" in page
    assert (out / "plot.svg").read_text().startswith("<?xml")
    assert result.stdout.count("holds: ") + result.stdout.count("DOES NOT HOLD: ") == 2
    again = tacit("experiment", "tastan-table5", "--small", "--seeds", "3", "--data", images, "--out", out)
    assert again.exit_code == 2
    assert "exists already and is not empty" in again.stderr


def test_the_list_names_the_tables(tacit: Invoke) -> None:
    result = tacit("experiment", "list")
    for table in (TABLE5, TABLE6):
        assert f"{table.name}\n  {table.paper}: {table.shows}\n" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["tastan-table5"], "the full size needs --data: the directory with the files of Fed-ISIC2019"),
        (["tastan-table6", "--small", "--seeds", "four"], "--seeds four: 'four' is no seed"),
        (["tastan-table6", "--small", "--data", "no.npz"], "no.npz"),
        (["tastan-table6", "--small", "--device", "tpu"], "--device tpu: choose cpu or cuda"),
        (["tastan-table7", "--small"], "there is no experiment 'tastan-table7'; choose one of "),
    ],
)
def test_wrong_input_is_refused_before_anything_starts(
    tacit: Invoke, tmp_path: Path, arguments: list[str], reason: str
) -> None:
    result = tacit("experiment", *arguments, "--out", tmp_path / "out")
    assert (result.exit_code, result.stdout) == (2, "")
    assert reason in result.stderr
    assert not (tmp_path / "out").exists()
