"""Noise that fits the clip without being told to, and a word where much of an update is cut."""

import json
from pathlib import Path

import pytest

from tacit.parties.runs.experiment import Experiment, ExperimentError, parse
from tests.cli.command import Invoke, WriteExperiment

NOISY = '[protection]\nscheme = "dp-gaussian"\n'


def test_the_clip_is_computed_so_that_noise_arrives_whole() -> None:
    assert (Experiment().clip, Experiment().terms().clip) == (0.25, 0.25)
    noisy = parse(NOISY, "test")
    noise = noisy.protection.noise()
    assert noise is not None
    assert noisy.terms().clip == noise.norm + 12 * noise.deviation <= noisy.policy.largest_clip
    assert parse(NOISY + "[aggregation]\nclip = 0.5", "test").terms().clip == 0.5


def test_noise_beyond_what_clients_accept_is_refused_with_what_to_change() -> None:
    with pytest.raises(ExperimentError) as refused:
        parse(NOISY + "dp_clip = 1.0\ndp_noise = 1.0", "test")
    assert str(refused.value) == (
        "test: aggregation.clip = 13.0: computed from protection.dp_clip and dp_noise; [policy] accepts at most 1.0: "
        "raise policy.largest_clip, lower dp_clip or dp_noise, or set aggregation.clip, beyond which noise is cut"
    )
    assert parse(NOISY + "dp_clip = 1.0\ndp_noise = 1.0\n[policy]\nlargest_clip = 13.0", "test").clip == 13.0


@pytest.mark.end_to_end
def test_nothing_is_clipped_by_default_and_much_is_a_warning(
    tacit: Invoke, tmp_path: Path, write_experiment: WriteExperiment
) -> None:
    file = write_experiment(tmp_path / "noisy.toml", rounds=1, more=NOISY)
    result = tacit("simulate", file, "--out", tmp_path / "whole")
    assert (result.exit_code, "coordinates" in result.stdout) == (0, False), result.output
    (entry,) = json.loads((tmp_path / "whole" / "summary.json").read_bytes())["rounds"]
    assert entry["clipped"] == 0

    file = write_experiment(tmp_path / "cut.toml", rounds=1, more=NOISY + "[aggregation]\nclip = 0.001")
    result = tacit("simulate", file, "--out", tmp_path / "cut")
    assert result.exit_code == 0, result.output
    warning = "% of all coordinates were clipped, and are lost: raise aggregation.clip and policy.largest_clip, or "
    assert warning in result.stdout
    page = (tmp_path / "cut" / "report.html").read_text()
    assert "More than 1% of all coordinates were clipped in 1 round, " in page
