"""`tacit bench crypten` computes every row over three transports and says how long each took."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tacit.cli.main import app
from tacit.simulate.bench import crypten
from tacit.simulate.federation.processes import ProcessError
from tests.cli.outputs import check_output

TOKENS, WIDTH = 4, 12


def test_every_row_over_every_transport(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crypten, "TOKENS", TOKENS)
    monkeypatch.setattr(crypten, "WIDTH", WIDTH)
    file = tmp_path / "figures.json"
    done = CliRunner().invoke(app, ["bench", "crypten", "--repeats", "1", "--json", str(file)])
    assert done.exit_code == 0, done.output
    figures = check_output(file, "bench-crypten")
    assert (figures["repeats"], figures["tokens"]) == (1, TOKENS)
    rows = figures["rows"]
    assert {"one round", "multiply", "matmul", "compare", "softmax", "vit-s block"} < set(rows)
    for name, row in rows.items():
        assert row["rounds"] >= 1
        for transport in ("plain", "curve"):
            assert row[f"{transport}_to_gloo"] == pytest.approx(row[f"{transport}_ms"] / row["gloo_ms"])
        assert name in done.stdout
    # Both factors are opened: two tensors of 64-bit words, and a header.
    assert rows["multiply"]["rounds"] == 1
    assert 0 < rows["multiply"]["megabytes_sent"] * 1e6 - 2 * 8 * TOKENS * WIDTH < 200


def test_a_party_that_ends_early_ends_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crypten, "TOKENS", -1)
    with pytest.raises(ProcessError, match=r"(owner|alice): RuntimeError: .*negative dimension"):
        crypten.measure(lambda text: None, repeats=1)
