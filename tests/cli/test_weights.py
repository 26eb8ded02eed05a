"""A largest weight that does not fit the images of a simulation."""

from collections.abc import Callable
from pathlib import Path

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
