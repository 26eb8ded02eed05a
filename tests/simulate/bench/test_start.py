"""`tacit bench start` runs the commands that it times."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tacit.cli.main import app
from tacit.simulate.bench import start
from tacit.simulate.bench.ends import BenchmarkError
from tests.cli.outputs import check_output


@pytest.mark.end_to_end
def test_every_command_does_what_it_is_timed_for(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    done = CliRunner().invoke(app, ["bench", "start", "--repeats", "1", "--json", str(file)])
    assert done.exit_code == 0, done.output
    figures = check_output(file, "bench-start")
    seconds, profile = figures["seconds"], figures["profile"]
    assert 0 < seconds["training"] < seconds["hosts_first_round"]
    assert {"help", "wrong_input", "simulate_first_round", "imports", "infer"} < seconds.keys()
    assert min(seconds.values()) > 0
    *named, _ = profile.values()
    assert named == sorted(named, reverse=True)
    assert min(profile["torch"], profile["timm"]) > 0
    assert "tacit server and 3 x tacit client" in done.output


def test_a_command_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "_command", lambda arguments: ["sh", "-c", "echo no such thing >&2; exit 9"])
    with pytest.raises(BenchmarkError, match="tacit --help ended with status 9: no such thing"):
        start.measure(1, lambda said: None)
