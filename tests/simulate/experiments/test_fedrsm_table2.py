"""The declaration of Table II, its verdicts both ways, and the sample of images that its full size takes."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from tacit.simulate.experiments.engine import prepare
from tacit.simulate.experiments.fedrsm_table2 import COSTLY, STUDY, values
from tacit.simulate.experiments.measures import Request
from tacit.simulate.experiments.results import RunCost, StudyRow
from tacit.simulate.experiments.study import Study
from tests.simulate.experiments.conftest import Nobody, write_random

MakeRow = Callable[..., StudyRow]


def results(
    make_row: MakeRow,
    *,
    ours: list[float],
    choosing: float,
    seconds: float = 3.0,
    costly: list[float] | None = None,
) -> list[StudyRow]:
    """Every other arm is at 0.9 and sends 100 bytes in 2 s. seconds: of FedCG; costly: of noise and split models."""
    found = []
    for arm in STUDY.small.rows:
        method = arm.name.partition("-")[2]
        found_costly = costly if costly is not None and method in COSTLY else [0.9, 0.91]
        cost = RunCost(sent=100, seconds=2.0, training_seconds=1.0, choosing_seconds=0.0)
        if "fedrsm" in arm.name:
            cost = msgspec.structs.replace(cost, choosing_seconds=choosing)
        if "fedcg" in arm.name:
            cost = msgspec.structs.replace(cost, seconds=seconds)
        accuracies = ours if method == "fedrsm" else found_costly
        found.append(make_row(arm, accuracies, cost=cost, values=values))
    return found


@pytest.mark.parametrize(
    ("ours", "costly", "choosing", "seconds", "reproduced"),
    [
        ([0.92, 0.93], [0.8, 0.81], 0.05, 2.1, [True, True, True, True]),
        # Behind by less than the margin is no worse, if the seeds agree; by 1 point and with 1.4 between seeds it is
        # not decided, as the interval goes 12.7 points to each side.
        ([0.89, 0.90], [0.9, 0.91], 0.1, 2.1, [True, None, True, True]),
        ([0.88, 0.91], [0.8, 0.95], 0.1, 2.1, [None, None, True, True]),
        ([0.8, 0.81], [0.95, 0.96], 0.11, 2.0, [False, False, False, False]),
        ([0.6, 1.0], [0.8, 0.81], 0.05, 9.0, [None, True, True, True]),
    ],
)
def test_the_table_is_judged_by_its_results(
    make_row: MakeRow,
    ours: list[float],
    costly: list[float],
    choosing: float,
    seconds: float,
    reproduced: list[bool | None],
) -> None:
    verdicts = STUDY.judge(results(make_row, ours=ours, costly=costly, choosing=choosing, seconds=seconds))
    assert [verdict.reproduced for verdict in verdicts] == reproduced * 2, "for LeNet and for the vision transformer"


def sampled(per_client: int) -> Study:
    measure = replace(STUDY.full.measure, images_per_client={10: per_client})  # type: ignore[type-var]
    return replace(STUDY, full=replace(STUDY.full, measure=measure))


def request(path: Path, out: Path) -> Request:
    return Request(seeds=(0,), data=path, device="cpu", out=out)


def test_the_full_size_runs_on_a_sample_of_the_images(tmp_path: Path) -> None:
    path = write_random(tmp_path / "images.npz", train=60, test=50)
    work = prepare(sampled(4), request(path, tmp_path / "out"), small=False)
    work.measuring.start(Nobody().began)
    source = work.measuring.federated.source
    with np.load(path) as whole, np.load(source) as part:
        for name, count in (("train", 60), ("test", 50)):
            assert part[f"x_{name}"].shape == (40, 32, 32, 3)
            rows = {image.tobytes(): label for image, label in zip(whole[f"x_{name}"], whole[f"y_{name}"], strict=True)}
            assert len(rows) == count
            images = [image.tobytes() for image in part[f"x_{name}"]]
            assert len(set(images)) == 40
            assert [rows[image] for image in images] == part[f"y_{name}"].tolist()
    assert {work.measuring.experiment(job.row, job.seed).data.source for job in work.jobs()} == {source}


def test_zeros_are_not_sent_but_where_masks_hide_them(make_row: MakeRow) -> None:
    cost = RunCost(sent=3 * 2**20, kept=2**20, seconds=2.0, training_seconds=1.0, choosing_seconds=0.0)
    sent = {
        arm.name: make_row(arm, [0.5], cost=cost, values=values).values("sent")
        for arm in STUDY.full.rows
        if arm.name.startswith("lenet-fedrsm")
    }
    assert sent == {"lenet-fedrsm": [2.0], "lenet-fedrsm-lowest": [2.0], "lenet-fedrsm-secure": [3.0]}
    (ours,) = (arm for arm in STUDY.full.rows if arm.name == "lenet-fedrsm")
    assert ours.published["sent"] == "0.44 GB (GTSRB), 0.44 GB (CIFAR-10)"
