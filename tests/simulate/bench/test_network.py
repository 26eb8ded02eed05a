"""`tacit bench network` runs real sessions over real links and says what the network costs."""

from pathlib import Path

import pytest

from tacit.simulate.bench import network
from tests.cli.command import invoke
from tests.cli.outputs import check_output


@pytest.mark.end_to_end
def test_figures_of_rounds_uploads_and_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "UPLOAD_PARAMETERS", 800_000)
    file = tmp_path / "figures.json"
    arguments = ["--rounds", "2", "--delay", "100", "--connected", "4", "--json", str(file)]
    done = invoke("bench", "network", *arguments)
    assert done.exit_code == 0, done.output
    figures = check_output(file, "bench-network")
    (delayed,) = figures["by_delay_ms"].values()
    # It cannot be fewer: the beginning, the model asked for and given, the vector, two questions and two answers.
    assert delayed["seconds"] > 8 * 0.1
    for upload in figures["upload"].values():
        # Three vectors of 24-bit words.
        assert 3 * 3 * 0.8 <= upload["megabytes"] < 3 * 3 * 0.8 + 0.001
        assert 0 < upload["of_the_line"] < 1
    assert 0 < figures["memory"]["alone_mb"] <= figures["memory"]["connected_mb"]
    assert figures["memory"]["connected"] == 4


def test_wrong_input_is_named() -> None:
    done = invoke("bench", "network", "--delay", "-3")
    assert done.exit_code == 2
    assert "the latency is -3" in done.output
