"""The study of a foundation model: a miniature of it by real parties, and its claims."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file

from tacit.simulate.experiments.data import DataError
from tacit.simulate.experiments.engine import prepare, run_study
from tacit.simulate.experiments.foundation import STUDY, learning, size
from tacit.simulate.experiments.foundation_settings import ALONE, CLEAR, COLUMNS, SHARES
from tacit.simulate.experiments.measures import Request
from tacit.simulate.experiments.page import write
from tacit.simulate.experiments.results import Run, StudyRow
from tests.simulate.experiments.conftest import Nobody

TINY = size(
    model="test_vit",
    image_size=32,
    rank=2,
    probe=learning(rounds=2, batches=2, rate=0.02, decay_rounds=(), own=64),
    probe_images=60,
    adapters=learning(rounds=2, batches=1, rate=0.05, decay_rounds=(), own=64),
    adapter_images=48,
    test_images=40,
)


def request(folder: Path, *, images: int = 200) -> Request:
    """A small model with generated weights, and images of CIFAR-10's shape whose classes differ in brightness."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model: Any = timm.create_model("test_vit", num_classes=0)
        torch.nn.init.normal_(model.cls_token, std=0.5)
    save_file(model.state_dict(), folder / "model.safetensors")
    generator, arrays = np.random.default_rng(0), {}
    for part in ("train", "test"):
        labels = np.arange(images) % 10
        noise = generator.integers(0, 70, (images, 32, 32, 3))
        arrays |= {f"x_{part}": (noise + 18 * labels[:, None, None, None]).astype(np.uint8), f"y_{part}": labels}
    np.savez(folder / "images.npz", **arrays)
    return Request(
        seeds=(1,),
        data=folder / "images.npz",
        checkpoint=folder / "model.safetensors",
        device="cpu",
        out=folder / "out",
    )


@pytest.mark.end_to_end
def test_a_miniature_by_real_parties(tmp_path: Path) -> None:
    study = replace(STUDY, full=TINY)
    work = prepare(study, request(tmp_path), small=False, patterns=("linear probe, Dirichlet 0.1", "adapters, IID"))
    run_study(work, Nobody())
    result = work.result(command="tacit experiment foundation")
    probe, adapters = (row for row in result.rows if row.runs)
    for row, images in ((probe, 60), (adapters, 48)):
        (run,) = row.runs
        found = run.adaptation
        assert found is not None
        assert run.values["batches refused"] == 0
        # Shares are rounded, and after a few steps the logits of several of the 40 images nearly tie: four may fall
        # to the other side. That steps are those in the clear is tested by their parameters, in test_step.py.
        assert abs(row.values(SHARES.name)[0] - row.values(CLEAR.name)[0]) <= 10.0
        assert run.values["images"] <= images
        assert found.accuracies[-1] == pytest.approx(row.values(SHARES.name)[0] / 100)
        assert found.seconds == sorted(found.seconds)
        assert found.sent_bytes == sorted(found.sent_bytes)
        image, step = found.parts["an image's pass"], found.parts["a step"]
        assert (image.count, step.count) == (run.values["images"], run.values["batches"])
        assert image.dealer_megabytes > image.data_owner_megabytes > 0
        assert (image.rounds or 0) > (step.rounds or 0) or row is adapters
        assert found.peak_bytes.keys() == {"data owner", "model-owner", "dealer"}
    write(result, tmp_path, draw=study.draw, details=study.details(result))
    page = (tmp_path / "table.md").read_text()
    assert "| linear probe, Dirichlet 0.1 | an image's pass |" in page
    assert (tmp_path / "plot.svg").stat().st_size > 10_000


@pytest.mark.end_to_end
def test_what_does_not_fit_is_a_result_with_its_reason(tmp_path: Path) -> None:
    sizes = {"model": "test_vit", "image_size": 32, "rank": 2, "probe_images": 60, "adapter_images": 48}
    wild = learning(rounds=2, batches=2, rate=1.0, decay_rounds=(), own=64)
    study = replace(STUDY, full=size(probe=wild, adapters=wild, test_images=40, **sizes))
    work = prepare(study, request(tmp_path), small=False, patterns=("adapters, IID",))
    run_study(work, Nobody())
    result = work.result(command="tacit experiment foundation")
    (row,) = result.finished
    assert row.runs[0].values == dict.fromkeys(quantity.name for quantity in COLUMNS)
    (*_, reason) = study.details(result)
    assert "adapters, IID: what a rehearsal reached does not fit a step of learning on shares" in str(reason)
    assert [verdict.reproduced for verdict in result.verdicts] == [None, None]
    study.draw(result)


def test_more_images_than_there_are_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"images.npz has 90 training images; all parties together need 124"):
        prepare(replace(STUDY, full=TINY), request(tmp_path, images=90), small=False)


@pytest.mark.parametrize(("clear", "alone", "reproduced"), [(80.4, 70, True), (81, 90, False)])
def test_claims_compare_with_the_clear_and_with_owners_alone(clear: float, alone: float, reproduced: bool) -> None:
    rows = []
    for row in STUDY.size(small=True).rows:
        values = dict.fromkeys((quantity.name for quantity in COLUMNS), 0.0)
        values |= {SHARES.name: 80.0, CLEAR.name: clear, ALONE.name: alone}
        runs = [Run(seed=seed, values=values, seconds=1.0) for seed in (0, 1)]
        rows.append(StudyRow.of(row.name, runs, {}))
    verdicts = STUDY.judge(rows)
    assert len(verdicts) == 2 * len(rows)
    assert {verdict.reproduced for verdict in verdicts} == {reproduced}
