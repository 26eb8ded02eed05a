"""`tacit infer`: a distilled student answers over real processes, for tests, files and folders."""

import json
import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from click.testing import Result
from PIL import Image

from tacit.models.data import load
from tacit.parties.runs.experiment import Experiment
from tacit.parties.runs.served import ServedModel, read_served
from tacit.protocol.inference.schedule import Results, Sizes, pass_rounds, weight_bytes
from tacit.simulate.insecure.known_input import known_rounds
from tacit.simulate.private_inference import private_images
from tacit.simulate.private_inference.inference import DEALER
from tacit.simulate.private_inference.inference_request import InferenceRequest
from tests.cli.command import Invoke
from tests.cli.outputs import check_output
from tests.protocol.inference.totals import by_operation

SIZES = Sizes(side=8, channels=1, patch=4, width=8, heads=2, hidden=16, blocks=2, classes=3)
"""Of the student in distillations.py."""


@pytest.fixture(scope="module")
def out(distilled: tuple[Result, Path]) -> Path:
    return distilled[1] / "out"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two images, a grey one and a coloured one of another size, beside a text."""
    folder = tmp_path_factory.mktemp("pictures")
    generator = np.random.default_rng(3)
    Image.fromarray(generator.integers(0, 120, (8, 8), dtype=np.uint8)).save(folder / "a grey.png")
    Image.fromarray(generator.integers(0, 120, (20, 12, 3), dtype=np.uint8)).save(folder / "colours.PNG")
    (folder / "notes.txt").write_text("not an image")
    return folder


def asked(tacit: Invoke, out: Path, copy: Path, *options: object) -> tuple[Result, dict[str, Any]]:
    result = tacit("infer", out, *options, "--json", copy)
    assert (result.exit_code, result.stderr) == (0, "")
    assert multiprocessing.active_children() == []
    return result, check_output(copy, "inference")


@pytest.mark.end_to_end
def test_labels_alone(tacit: Invoke, out: Path, tmp_path: Path) -> None:
    result, figures = asked(tacit, out, tmp_path / "figures.json", "--images", 3, "--labels", 2)
    found = read_served(out)
    with torch.no_grad():
        best = found.transformer(found.data.x_test[:3]).sort(dim=1, descending=True).indices[:, :2].tolist()
    named = [[found.data.source.class_names[label] for label in labels] for labels in best]
    assert [row["labels"] for row in figures["images"]] == named
    assert [(row["label"], row["confidence"]) for row in figures["images"]] == [(labels[0], None) for labels in named]
    assert (figures["agreement"], figures["largest_difference"], figures["labels"]) == (1.0, None, 2)
    declared = by_operation(pass_rounds(SIZES, 3, results=Results(labels=2, bits=0)))
    assert {
        name: (row["model_owner_bytes"], row["data_owner_bytes"], row["rounds"])
        for name, row in figures["per_operation"].items()
    } == declared
    assert "reveals labels alone" in result.stdout
    assert "logits differ" not in result.stdout


@pytest.mark.end_to_end
@pytest.mark.parametrize(("input", "owners"), [("known", 1), ("shared", 2)])
def test_labels_are_those_in_the_clear_and_costs_as_declared(
    tacit: Invoke, out: Path, images: Path, tmp_path: Path, input: str, owners: int
) -> None:
    options: list[object] = ["--images", 6, "--batch", 4, "--input", input, "--data-owners", owners]
    source = None
    if owners > 1:
        source = str(tmp_path / "the other way round.npz")
        arrays = dict(np.load(images))
        reversed_test = {name: arrays[name][::-1] for name in ("x_test", "y_test")}
        # What it has for training is nobody's business: the student was not trained on it.
        np.savez(source, **arrays | reversed_test | {"x_train": arrays["x_train"] // 2})
        options += ["--data", source]
    result, figures = asked(tacit, out, tmp_path / "figures.json", *options)
    found = read_served(out)
    data, student = found.data, found.transformer
    order = list(range(6)) if source is None else list(range(11, 5, -1))
    with torch.no_grad():
        clear = student(data.x_test[order])
    top = clear.softmax(dim=1).max(dim=1)
    assert [row["label"] for row in figures["images"]] == [data.source.class_names[label] for label in top.indices]
    assert [row["image"] for row in figures["images"]] == [f"test {index}" for index in range(6)]
    # A softmax moves by at most twice what its arguments move by.
    confidences = torch.tensor([row["confidence"] for row in figures["images"]])
    assert 0 < figures["largest_difference"] < 0.1
    assert (confidences - top.values).abs().max() <= 2 * figures["largest_difference"]
    assert (figures["input"], figures["batch"], figures["data_owners"]) == (input, 4, owners)
    assert (figures["agreement"], figures["accuracy"]) == (
        1.0,
        (top.indices == data.y_test[order]).double().mean().item(),
    )
    batches = [4, 2] if owners == 1 else [3, 3]
    rounds_of = known_rounds if input == "known" else pass_rounds
    declared = by_operation([each for batch in batches for each in rounds_of(SIZES, batch)])
    assert ("INSECURE" in result.output) == (input == "known")
    assert {
        name: (row["model_owner_bytes"], row["data_owner_bytes"], row["rounds"])
        for name, row in figures["per_operation"].items()
    } == declared
    assert figures["weights_bytes"] == owners * sum(weight_bytes(SIZES))
    assert figures["passes"] == len(batches)
    seconds = sum(row["seconds"] for row in figures["per_operation"].values())
    assert 0 < seconds <= figures["online_seconds"]
    assert figures["preprocessing_wait_seconds"] > 0
    lines = result.stdout.splitlines()
    assert sum(line.startswith("│ test ") for line in lines) == 6
    (total,) = (line for line in lines if line.startswith("│ all "))
    assert total.split("│")[-2].strip() == str(sum(cost.rounds for cost in declared.values()))
    assert "6 images, " in lines[-1]
    assert "of them right; the same label in the clear for 100.0%" in lines[-1]


@pytest.mark.end_to_end
def test_a_folder_of_images(tacit: Invoke, out: Path, folder: Path, tmp_path: Path) -> None:
    result, figures = asked(tacit, out, tmp_path / "figures.json", "--images", folder)
    assert [row["image"] for row in figures["images"]] == [str(folder / "a grey.png"), str(folder / "colours.PNG")]
    assert (figures["agreement"], figures["accuracy"]) == (1.0, None)
    assert "2 images; the same label in the clear for 100.0%" in result.stdout


def without(out: Path, directory: Path, name: str) -> Path:
    """The results of a distillation, one file of which has gone."""
    shutil.copytree(out, directory / "half")
    (directory / "half" / name).unlink()
    return directory / "half"


def moved(out: Path, directory: Path, source: str) -> Path:
    """The results of a distillation, as if its images had come from elsewhere."""
    shutil.copytree(out, directory / "moved")
    file = directory / "moved" / "distillation.json"
    figures = json.loads(file.read_bytes())
    figures["experiment"]["data"]["source"] = source
    file.write_text(json.dumps(figures))
    return directory / "moved"


def more_classes(directory: Path) -> Path:
    arrays = {"x_train": np.zeros((4, 8, 8), np.uint8), "y_train": np.arange(4)}
    np.savez(directory / "four.npz", **arrays, x_test=arrays["x_train"], y_test=arrays["y_train"])
    return directory / "four.npz"


WRONG: dict[str, tuple[Callable[[Path, Path, Path], list[object]], str]] = {
    "no such directory": (
        lambda out, folder, tmp: [tmp / "nowhere"],
        "nowhere holds neither distillation.json nor experiment.toml; name a directory that `tacit distill --out` or",
    ),
    "no model in it": (
        lambda out, folder, tmp: [folder],
        " holds neither distillation.json nor experiment.toml; name a directory that `tacit distill --out` or",
    ),
    "too many": (lambda out, folder, tmp: [out, "--images", 13], "--images 13: there are 12 test images, ask for 1 or"),
    "no image file": (
        lambda out, folder, tmp: [out, "--images", folder / "notes.txt"], "notes.txt is not a readable image: ",
    ),
    "more data owners than images": (
        lambda out, folder, tmp: [out, "--images", 2, "--data-owners", 3], "--data-owners 3: there are 2 images for",
    ),
    "images of two kinds": (
        lambda out, folder, tmp: [out, "--images", folder, "--data", "digits"], "--data digits is for test images: ",
    ),
    "no student any more": (
        lambda out, folder, tmp: [without(out, tmp, "student.safetensors")],
        "student.safetensors; name a directory that `tacit distill --out` has written",
    ),
    "no images any more": (
        lambda out, folder, tmp: [moved(out, tmp, "gone.npz")],
        "distillation.json tells of are needed, and not there: data.source 'gone.npz' is no file",
    ),
    "classes of others": (
        lambda out, folder, tmp: [out, "--data", more_classes(tmp)], "there are 4 classes, and 3 that the model",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_is_refused_before_anything_is_started(
    tacit: Invoke, out: Path, folder: Path, tmp_path: Path, case: str
) -> None:
    arguments, reason = WRONG[case]
    result = tacit("infer", *arguments(out, folder, tmp_path))
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("tacit: ")
    assert reason in result.stderr
    assert "Traceback" not in result.output


def test_files_are_scaled_to_the_pixels_of_digits(out: Path, tmp_path: Path) -> None:
    experiment = Experiment()
    data = load(experiment.data, image_size=8)
    model = ServedModel(experiment, data, cast(Any, None))
    (digit,) = data.source.test.images.pixels(np.array([0]), size=8)
    assert digit.max() == 16
    Image.fromarray(np.rint(digit[..., 0] * (255 / 16)).astype(np.uint8)).save(tmp_path / "digit.png")
    found = private_images.chosen(InferenceRequest(model=out, images=str(tmp_path / "digit.png")), model)
    # The same numbers but for the mean of three equal colours, taken in float64 on the way.
    assert torch.allclose(found.pixels, data.x_test[:1], rtol=0, atol=1e-6)


def test_bounds_are_those_of_images_of_all_classes(out: Path, images: Path, tmp_path: Path) -> None:
    arrays = dict(np.load(images))
    times = 1 + 3 * 2048 // len(arrays["y_train"])
    order = np.argsort(np.tile(arrays["y_train"], times), kind="stable")
    by_class = {name: np.concatenate([arrays[name]] * times)[order] for name in ("x_train", "y_train")}
    np.savez(tmp_path / "sorted.npz", **arrays | by_class)
    typical = read_served(moved(out, tmp_path, str(tmp_path / "sorted.npz"))).typical()
    # Each class is 1.2 deviations brighter than the one before, and the mean of all of them is 0.
    assert len(typical) == 2048
    assert abs(typical.mean()) < 0.1


def kill_dealer() -> None:
    for process in multiprocessing.active_children():
        if process.name == DEALER and process.pid is not None:
            os.kill(process.pid, signal.SIGKILL)


def press_ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.end_to_end
@pytest.mark.parametrize(
    ("act", "status", "reason"), [(kill_dealer, 1, "dealer: "), (press_ctrl_c, 130, "interrupted")]
)
def test_a_run_that_does_not_come_to_its_end(
    tacit: Invoke,
    out: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    act: Callable[[], None],
    status: int,
    reason: str,
) -> None:
    run = private_images.run
    monkeypatch.setattr(
        private_images, "run", lambda model, parts, plan, progress: run(model, parts, plan, lambda *done: act())
    )
    result = tacit("infer", out, "--batch", 1, "--json", tmp_path / "figures.json")
    assert result.exit_code == status, result.output
    assert result.stderr.startswith("tacit: ")
    assert reason in result.stderr
    assert "Traceback" not in result.output
    assert not (tmp_path / "figures.json").exists()
    assert multiprocessing.active_children() == []
