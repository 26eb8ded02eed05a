"""The study of fine-tuning: it begins with the checkpoint of the command, and is judged by the losses through noise."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tacit.simulate.experiments.catalogue import STUDIES
from tacit.simulate.experiments.engine import command_line, prepare
from tacit.simulate.experiments.fine_tuning import MEAN, NOISES, RATES, STD, STUDY, measured, row
from tacit.simulate.experiments.measures import Request, StudyError
from tacit.simulate.experiments.results import RunCost, StudyRow
from tests.simulate.experiments.conftest import write_random

MakeRow = Callable[..., StudyRow]


def request(folder: Path, checkpoint: Path | None) -> Request:
    path = write_random(folder / "images.npz", train=200, test=200)
    return Request(seeds=(0,), data=path, device="cpu", out=folder / "out", checkpoint=checkpoint)


def test_every_row_begins_with_the_checkpoint_and_its_images(tmp_path: Path) -> None:
    checkpoint = tmp_path / "vit.safetensors"
    checkpoint.write_bytes(b"")
    work = prepare(STUDY, request(tmp_path, checkpoint), small=True)
    jobs = list(work.jobs())
    assert {job.row.name for job in jobs} == {row(tune, noise) for tune in RATES for noise in NOISES}
    measuring: Any = work.measuring
    for job in jobs:
        experiment = measuring.experiment(job.row, job.seed)
        assert experiment.model.checkpoint == str(checkpoint)
        assert (experiment.data.mean, experiment.data.std) == (MEAN, STD)
        assert row(experiment.model.tune, getattr(experiment.protection, "dp_noise", 0.0)) == job.row.name
    # Other weights, other results.
    other = tmp_path / "other.safetensors"
    other.write_bytes(b"")
    with pytest.raises(Exception, match="other settings, data or device"):
        prepare(STUDY, request(tmp_path, other), small=True)


def test_a_checkpoint_is_given_where_it_is_used_and_nowhere_else(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=r"fine-tuning begins with given weights: name .* with --checkpoint"):
        prepare(STUDY, request(tmp_path, None), small=True)
    with pytest.raises(StudyError, match="there is no such file"):
        prepare(STUDY, request(tmp_path, tmp_path / "none"), small=True)
    with pytest.raises(StudyError, match="aso-table1 begins without given weights; leave it out"):
        prepare(STUDIES["aso-table1"], request(tmp_path, tmp_path / "images.npz"), small=True)
    assert not (tmp_path / "out").exists()
    assert "--checkpoint vit.safetensors" in command_line(
        "fine-tuning", small=True, seeds="0", data=None, device="cpu", checkpoint=Path("/some/where/vit.safetensors")
    )


@pytest.mark.parametrize(("whole", "part", "reproduced"), [(0.1, 0.5, True), (0.5, 0.1, False), (0.3, 0.3, None)])
def test_what_loses_less_through_noise(make_row: MakeRow, whole: float, part: float, reproduced: bool | None) -> None:
    """whole, part: accuracy with noise; all have 0.6 and 0.61 without."""
    cost = RunCost(sent=100, seconds=2.0, training_seconds=1.0, choosing_seconds=0.0)
    rows = []
    for arm in STUDY.size(small=True).rows:
        tune, noisy = arm.experiment.model.tune, "noise" in arm.name
        after = (whole if tune == "all" else part) if noisy else 0.6
        rows.append(make_row(arm, [after, after + 0.01], cost=cost, values=measured))
    verdicts = STUDY.judge(rows)
    assert [verdict.reproduced for verdict in verdicts] == [reproduced] * 3
