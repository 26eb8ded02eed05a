"""`tacit bench inference` without a directory: blocks on shares between processes, beside stock CrypTen."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tacit.cli.main import app
from tacit.parties.inference.costs import declared
from tacit.parties.inference.scales import Shape
from tacit.simulate.bench import blocks
from tacit.simulate.bench.ends import BenchmarkError

# The smallest of timm's: 50 tokens.
MODEL = "vit_small_patch32_224"
OWNERS = ("model-owner", "data-owner")


@pytest.mark.parametrize(("known", "count", "against"), [("known", 1, ["--against", "crypten"]), ("shared", 2, [])])
def test_blocks_are_measured(tmp_path: Path, known: str, count: int, against: list[str]) -> None:
    file = tmp_path / "figures.json"
    options = ["--model", MODEL, "--blocks", str(count), "--repeats", "1", "--input", known, *against]
    done = CliRunner().invoke(app, ["bench", "inference", *options, "--json", str(file)])
    assert done.exit_code == 0, done.output
    figures = json.loads(file.read_text(encoding="utf-8"))
    rows = ["ours", *(["crypten", "crypten_ttp"] if against else [])]
    for key in rows:
        row = figures[key]
        assert row["relative_error"] < 2e-3
        assert row["online_seconds"] > 0
        assert set(row["online_bytes_sent"]) == set(OWNERS)
    assert ("crypten" in figures) == bool(against)
    ours = figures["ours"]
    shape = Shape(images=1, tokens=50, width=384, heads=6, hidden=1536)
    costs = declared(shape, known=known == "known")
    assert ours["rounds"] == count * sum(cost.rounds for cost in costs.values()) + 1
    assert ours["per_operation"]["result"]["rounds"] == 1
    for name, cost in costs.items():
        sent = ours["per_operation"][name]["bytes_sent"]
        assert [sent[owner] for owner in OWNERS] == [count * cost.model_owner_bytes, count * cost.data_owner_bytes]
        assert name in done.stdout
    assert len(ours["online_seconds_by_block"]) == count
    if against:
        # Less than a third of what CrypTen sends, for the same function.
        assert 3 * max(ours["online_bytes_sent"].values()) < figures["crypten"]["online_bytes_sent"]["data-owner"]


def test_a_model_that_is_none_is_refused() -> None:
    done = CliRunner().invoke(app, ["bench", "inference", "--model", "resnet18"])
    assert done.exit_code == 2
    assert "resnet18" in done.output


def test_a_party_that_fails_ends_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    original = blocks._task

    def without_weights(setting: blocks.Setting) -> object:
        task = original(setting)
        task.weights[0].pop("fc2")
        return task

    monkeypatch.setattr(blocks, "_task", without_weights)
    with pytest.raises(BenchmarkError, match=r"model-owner: KeyError"):
        blocks.measure(blocks.Setting(model=MODEL, repeats=1), lambda text: None)
