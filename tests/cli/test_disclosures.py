"""What each protection declares that a secure sum does not hide, compared with the updates and sums of real runs."""

import math
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from tacit.cli.main import app
from tacit.parties.protections.catalogue import registered
from tacit.parties.runs.experiment import load

CLIENTS = 5
TOML = """[federation]
clients = {clients}
rounds = 1
[model]
image_size = 16
patch_size = 4
width = 32
depth = 2
heads = 4
[training]
epochs = 1
[protection]
scheme = "{scheme}"
{settings}
[policy]
uncoordinated_weights = true
"""
SETTINGS = {
    "binary-weights": "zero_probability = 0.8",
    "locked-binary-weights": "zero_probability = 0.8",
    "dp-gaussian": "dp_clip = 0.5",
}


def contributors(run: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """By coordinate the number of contributors, the sum of their values, and the server's sum, with its error bound."""
    folder = run / "verify" / "1"
    values = [np.load(path)["values"] for path in sorted(folder.glob("client-*.npz"))]
    assert len(values) == CLIENTS
    with np.load(folder / "sum.npz") as opened:
        return np.sum([own != 0 for own in values], axis=0), np.sum(values, axis=0), opened["values"], opened["bound"]


@pytest.mark.end_to_end
@pytest.mark.parametrize("scheme", [name for name in registered() if name != "fedcg"])
def test_a_protection_declares_the_coordinates_that_one_client_alone_contributes(tmp_path: Path, scheme: str) -> None:
    experiment, run = tmp_path / "experiment.toml", tmp_path / "run"
    experiment.write_text(TOML.format(clients=CLIENTS, scheme=scheme, settings=SETTINGS.get(scheme, "")))
    done = CliRunner().invoke(app, ["simulate", str(experiment), "--verify", "--out", str(run)])
    assert done.exit_code == 0, done.output
    declared = load(experiment).protection.disclosures(CLIENTS)
    counts, updates, opened, bound = contributors(run)
    alone = counts == 1
    if not declared:
        assert alone.mean() < 1e-3, "an update may be exactly zero by chance"
        return
    for one in declared:
        assert " ".join(one.what.split()[:5]) in " ".join(done.output.split())
    # The server reads the value of the one client in its sum.
    assert np.abs(opened[alone] - updates[alone]).max(initial=0.0) <= bound
    for one in declared:
        if one.alone is not None:
            # Six standard deviations of a share of independent coordinates: missed once in 10^9 runs.
            deviation = math.sqrt(one.alone * (1 - one.alone) / len(counts))
            assert abs(alone.mean() - one.alone) <= 6 * deviation
