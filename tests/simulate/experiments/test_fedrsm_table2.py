"""The declaration of Table II, its verdicts both ways, and the sample of images that its full size takes."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from tacit.parties.protections.fedcg import FedCG
from tacit.simulate.experiments.data import DataError, find, sample
from tacit.simulate.experiments.engine import prepare, run_study
from tacit.simulate.experiments.fedrsm_table2 import COSTLY, METHODS, STUDY
from tacit.simulate.experiments.page import Page
from tacit.simulate.experiments.study import ArmResult, RunCost, RunResult
from tacit.simulate.federation.processes import Show

MakeResult = Callable[..., ArmResult]


def results(
    make_result: MakeResult,
    *,
    ours: list[float],
    sent: int = 100,
    choosing: float,
    seconds: float = 3.0,
    costly: list[float] | None = None,
) -> list[ArmResult]:
    """Every other arm is at 0.9 and sends 100 bytes in 2 s. seconds: of FedCG; costly: of noise and split models."""
    found = []
    for arm in STUDY.small.arms:
        method = arm.name.partition("-")[2]
        found_costly = costly if costly is not None and method in COSTLY else [0.9, 0.91]
        result = make_result(arm, ours if method == "fedrsm" else found_costly)
        cost = RunCost(sent=100, seconds=2.0, training_seconds=1.0, choosing_seconds=0.0)
        if "fedrsm" in arm.name:
            cost = msgspec.structs.replace(cost, sent=sent, kept=sent // 5, choosing_seconds=choosing)
        if "fedcg" in arm.name:
            cost = msgspec.structs.replace(cost, seconds=seconds)
        runs = tuple(msgspec.structs.replace(run, cost=cost) for run in result.runs)
        found.append(replace(result, runs=runs))
    return found


@pytest.mark.parametrize(
    ("ours", "costly", "choosing", "seconds", "holds"),
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
    make_result: MakeResult,
    ours: list[float],
    costly: list[float],
    choosing: float,
    seconds: float,
    holds: list[bool | None],
) -> None:
    verdicts = STUDY.judge(results(make_result, ours=ours, costly=costly, choosing=choosing, seconds=seconds))
    assert [verdict.holds for verdict in verdicts] == holds * 2, "for LeNet and for the vision transformer"


def write(path: Path, *, train: int, test: int, side: int = 32, classes: int = 10) -> Path:
    generator = np.random.default_rng(0)
    arrays = {}
    for part, count in (("train", train), ("test", test)):
        arrays[f"x_{part}"] = generator.integers(0, 256, (count, side, side, 3), dtype=np.uint8)
        arrays[f"y_{part}"] = np.arange(count) % classes
    np.savez(path, **arrays)
    return path


def test_the_full_size_runs_on_a_sample_of_the_images(tmp_path: Path) -> None:
    path = write(tmp_path / "images.npz", train=60, test=50)
    study = replace(STUDY, images_per_client={10: 4})
    work = prepare(study, small=False, seeds=(0,), data=path, device="cpu", out=tmp_path / "out")
    with np.load(path) as whole, np.load(work.federated.source) as part:
        for name, count in (("train", 60), ("test", 50)):
            assert part[f"x_{name}"].shape == (40, 32, 32, 3)
            rows = {image.tobytes(): label for image, label in zip(whole[f"x_{name}"], whole[f"y_{name}"], strict=True)}
            assert len(rows) == count
            images = [image.tobytes() for image in part[f"x_{name}"]]
            assert len(set(images)) == 40
            assert [rows[image] for image in images] == part[f"y_{name}"].tolist()
    assert {job.experiment.data.source for job in work.jobs()} == {work.federated.source}


def test_a_sample_of_more_images_than_there_are_is_refused(tmp_path: Path) -> None:
    images = find(write(tmp_path / "images.npz", train=30, test=60), small=False, clients=10, halved=False)
    with pytest.raises(DataError, match=r"images.npz has 30 training images; 10 clients with 4 each need 40"):
        sample(images, tmp_path / "out", per_client=4, clients=10)
    assert not (tmp_path / "out").exists()


def test_of_fewer_test_images_all_are_taken(make_result: MakeResult, tmp_path: Path) -> None:
    path = write(tmp_path / "images.npz", train=60, test=30)
    study = replace(STUDY, images_per_client={10: 4})
    work = prepare(study, small=False, seeds=(0,), data=path, device="cpu", out=tmp_path / "out", patterns=("lenet-*",))
    with np.load(work.federated.source) as part:
        assert (len(part["x_train"]), len(part["x_test"]), work.test_images) == (40, 30, 30)
    assert {job.arm.name for job in work.jobs()} == {f"lenet-{method}" for method in METHODS}
    results = [make_result(arm, [0.5]) for arm in work.arms[:-1]]
    text = "\n".join(Page(work=work, results=results, command="tacit experiment").markdown())
    assert "- 30 test images, all that there are, instead of 40" in text
    assert "| lenet-fedcg | 0.76 (GTSRB), 0.46 (CIFAR-10) | not finished | not run |  |" in text
    assert "| FedAvg | 0.500 |" in text
    assert "| FedCG |" not in text.partition("The paper's own")[0]


class Nobody:
    """Watches without looking."""

    def began(self, title: str) -> Show:
        return lambda event: None

    def ended(self, title: str, result: RunResult) -> None: ...


@pytest.mark.exhaustive
@pytest.mark.parametrize("method", ["fedrsm-secure", "fedsplit", "fedcg"])
def test_a_round_of_the_full_size(method: str, tmp_path: Path) -> None:
    """ResNet18 with ten clients, on few images."""
    path = write(tmp_path / "images.npz", train=120, test=120)
    (arm,) = (arm for arm in STUDY.full.arms if arm.name == f"resnet18-{method}")
    federation = msgspec.structs.replace(arm.experiment.federation, rounds=1)
    protection = arm.experiment.protection
    if isinstance(protection, FedCG):
        protection = msgspec.structs.replace(protection, distillation_steps=2)
    short = replace(
        arm, experiment=msgspec.structs.replace(arm.experiment, federation=federation, protection=protection)
    )
    study = replace(STUDY, full=replace(STUDY.full, arms=(short,)), images_per_client={10: 12})
    work = prepare(study, small=False, seeds=(0,), data=path, device="cpu", out=tmp_path / "out")
    (result,) = asyncio.run(run_study(work, Nobody()))
    (run,) = result.runs
    # 11,191,242 coordinates of three to eight bytes each, from ten clients.
    assert 3 * 111_912_420 < run.cost.sent < 8.1 * 111_912_420 * (1 + (method == "fedcg"))
    assert 0 < run.cost.kept < run.cost.sent


@pytest.mark.parametrize(("classes", "accepted"), [(10, True), (43, True), (12, False)])
def test_images_of_gtsrb_and_of_cifar_10_are_taken(tmp_path: Path, classes: int, accepted: bool) -> None:
    path = write(tmp_path / "images.npz", train=2 * classes, test=classes, classes=classes)
    if accepted:
        assert len(find(path, small=False, clients=10, halved=False, classes=(10, 43)).source.class_names) == classes
        return
    with pytest.raises(
        DataError, match="in 12 classes; the full size takes 32 x 32 x 3 in 10 or 43 classes, as CIFAR-10"
    ):
        find(path, small=False, clients=10, halved=False, classes=(10, 43))
