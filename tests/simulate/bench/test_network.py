"""`tacit bench network` runs real sessions over real links and measures the cost of the network."""

from pathlib import Path

import msgspec
import pytest

from tacit.simulate.bench.results import NetworkBenchmarkResult
from tests.cli.command import invoke
from tests.cli.outputs import check_output


@pytest.mark.end_to_end
def test_rounds_uploads_and_memory_are_measured(tmp_path: Path) -> None:
    file = tmp_path / "network.json"
    arguments = ["--rounds", "2", "--delay", "100", "--connected", "4", "--parameters", "800000"]
    done = invoke("bench", "network", *arguments, "--json", str(file))
    assert done.exit_code == 0, done.output
    check_output(file, "bench-network")
    found = msgspec.json.decode(file.read_bytes(), type=NetworkBenchmarkResult)
    (delayed,) = found.by_delay_ms.values()
    # It cannot be fewer: the beginning, the model asked for and given, the vector, two questions and two answers.
    assert delayed.seconds > 8 * 0.1
    for upload in found.upload_by_delay_ms.values():
        # Three vectors of 24-bit words.
        assert 3 * 3 * 0.8 <= upload.megabytes < 3 * 3 * 0.8 + 0.001
        assert 0 < upload.utilisation < 1
    assert 0 < found.memory.idle_mb <= found.memory.connected_mb
    assert found.memory.clients == 4
