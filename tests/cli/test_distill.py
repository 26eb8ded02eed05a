"""`tacit distill`: from an experiment file to a student."""

import json
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from click.testing import Result
from safetensors.torch import load_file, save_file

from tacit.models import checkpoint
from tacit.models.friendly import distillation
from tacit.models.friendly.calibration import error_bounds
from tacit.models.layout import Layout
from tacit.models.networks import build
from tacit.parties.runs.served import read_student
from tests.cases import cases
from tests.cli.command import Invoke
from tests.cli.outputs import check_output

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(Path(__file__).parent)
    from distillations import write


def test_everything_is_written(distilled: tuple[Result, Path]) -> None:
    result, directory = distilled
    out = directory / "out"
    assert {path.name for path in out.iterdir()} == {
        "teacher.safetensors", "student.safetensors", "distillation.json", "curves.png", "release",
    }  # fmt: skip
    assert (out / "curves.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert (out / "distillation.json").read_bytes() == (directory / "copy.json").read_bytes()
    figures = check_output(out / "distillation.json", "distillation")
    assert [epoch["stage"] for epoch in figures["epochs"]] == ["layers", "layers", "predictions"]
    assert (figures["seed"], figures["device"], figures["teacher"]["epochs"]) == (4, "cpu", 6)
    assert figures["experiment"]["distillation"]["margin"] == 3.0
    assert Path(figures["experiment"]["data"]["source"]).suffix == ".npz"  # Of --data; the file says "digits".
    assert "teacher trained for 6 epochs: test accuracy " in result.stdout
    assert "converted, before distillation: test accuracy " in result.stdout
    assert "epoch   3 of 3  prediction " in result.stdout
    assert f"everything is in {out}" in result.stdout


def test_the_figures_are_those_of_the_files(distilled: tuple[Result, Path]) -> None:
    _, directory = distilled
    figures = json.loads((directory / "copy.json").read_bytes())
    found = read_student(directory / "out")
    experiment, data, student = found.experiment, found.data, found.transformer
    teacher = build(experiment.model, classes=3, channels=1, seed=9)
    layout = Layout.of(teacher)
    layout.load_into(teacher, checkpoint.load(directory / "out" / "teacher.safetensors", layout)[0])
    judged = distillation.judge(student, teacher, data.x_test, data.y_test, device=torch.device("cpu"))
    assert figures["student"] == {
        "accuracy": judged.accuracy, "agreement": judged.agreement, "refused": judged.refused,
    }  # fmt: skip
    assert figures["test_images"] == 12
    assert figures["parameters"] == layout.size
    right = (teacher(data.x_test).argmax(dim=1) == data.y_test).sum().item()
    assert figures["teacher"]["accuracy"] == right / 12
    assert figures["polynomials"] == [
        {"place": bound.name, "low": bound.interval.low, "high": bound.interval.high, "error": bound.error}
        for bound in error_bounds(student)
    ]


def test_a_checkpoint_is_the_teacher_as_it_is(
    tacit: Invoke, distilled: tuple[Result, Path], images: Path, tmp_path: Path
) -> None:
    teacher = distilled[1] / "out" / "teacher.safetensors"
    experiment = write(tmp_path / "again.toml", images, model=f"checkpoint = {str(teacher)!r}")
    result = tacit("distill", experiment, "--out", tmp_path / "out")
    assert result.exit_code == 0, result.stderr
    assert "teacher loaded: test accuracy " in result.stdout
    first, second = (
        json.loads((place / "distillation.json").read_bytes()) for place in (distilled[1] / "out", tmp_path / "out")
    )
    assert second["teacher"]["epochs"] == 0
    assert second["epochs"] == first["epochs"], "the same teacher, seed and images give the same student"
    assert second["student"] == first["student"]


@cases("name", ["vit", "vit_tiny_patch16_224"])
def test_a_head_for_other_classes_is_replaced_only_where_that_is_asked_for(
    tacit: Invoke, images: Path, tmp_path: Path, name: str
) -> None:
    """A head of 1,000 classes became a random one of ten, and the command said "teacher loaded"."""
    sizes = {"img_size": 8, "patch_size": 4, "embed_dim": 8, "depth": 2, "num_heads": 2, "in_chans": 1}
    sizes |= {"mlp_ratio": 2} if name == "vit" else {}
    for kept, head in (("others", {"num_classes": 1000}), ("none", {"num_classes": 0})):
        file = tmp_path / f"{kept}.safetensors"
        save_file(timm.create_model("vit_tiny_patch16_224", **sizes, **head).state_dict(), file)
        experiment = write(tmp_path / f"{kept}.toml", images, model=f"name = {name!r}\ncheckpoint = {str(file)!r}")
        refused = tacit("distill", experiment, "--out", tmp_path / "refused")
        assert (refused.exit_code, refused.stdout) == (2, "")
        assert "head.weight" in refused.stderr
        assert "; --new-head trains a new one on the images" in refused.stderr
        assert not (tmp_path / "refused").exists()
    trained = tacit("distill", experiment, "--new-head", "--out", tmp_path / name)
    assert trained.exit_code == 0, trained.stderr
    assert "teacher trained for 6 epochs: test accuracy " in trained.stdout
    assert load_file(tmp_path / name / "teacher.safetensors")["head.weight"].shape == (3, 8)


def test_a_new_head_is_of_a_checkpoint(tacit: Invoke, images: Path, tmp_path: Path) -> None:
    refused = tacit("distill", write(tmp_path / "x.toml", images), "--new-head", "--out", tmp_path / "out")
    assert refused.exit_code == 2
    assert "distillation.new_head: there is no model.checkpoint" in refused.stderr


def unreadable(path: Path) -> Path:
    path.write_text("[distillation")
    return path


def filled(path: Path) -> Path:
    path.mkdir()
    (path / "letter.txt").write_text("dear reader")
    return path


REFUSALS: dict[str, tuple[Callable[[Path, Path], list[Any]], str]] = {
    "a missing file": (lambda tmp, images: [tmp / "no.toml"], "no.toml: cannot be read: No such file"),
    "no TOML": (lambda tmp, images: [unreadable(tmp / "bad.toml")], "bad.toml: is not TOML"),
    "a degree of 0": (
        lambda tmp, images: [write(tmp / "x.toml", images, more="softmax_degree = 0")],
        "x.toml: distillation.softmax_degree = 0: expected an integer from 1 to 16",
    ),
    "no steps": (
        lambda tmp, images: [write(tmp / "x.toml", images, more="inverse_steps = 0")],
        "distillation.inverse_steps = 0: expected an integer from 1 to 16",
    ),
    "a temperature of 0": (
        lambda tmp, images: [write(tmp / "x.toml", images, more="temperature = 0")],
        "distillation.temperature = 0: expected a number above 0",
    ),
    "an unknown key": (
        lambda tmp, images: [write(tmp / "x.toml", images, more="degree = 6")],
        "distillation.degree = 6: there is no such key; did you mean distillation.softmax_degree",
    ),
    "a device": (lambda tmp, images: ["--device", "tpu"], "--device tpu: choose cpu or cuda"),
    "a directory that cannot be made": (
        lambda tmp, images: [write(tmp / "x.toml", images), "--out", tmp / "x.toml" / "out"],
        "out cannot be made: Not a directory; choose another with --out",
    ),
    "a directory that is used": (
        lambda tmp, images: [write(tmp / "x.toml", images), "--out", filled(tmp / "used")],
        "used exists already and is not empty: choose another directory with --out",
    ),
    "missing images of --data": (
        lambda tmp, images: [write(tmp / "x.toml", images), "--data", tmp / "gone.npz"], "gone.npz",
    ),
    "missing images": (lambda tmp, images: [write(tmp / "x.toml", tmp / "no.npz")], "no.npz"),
    "a missing teacher": (
        lambda tmp, images: [write(tmp / "x.toml", images, model='checkpoint = "no.safetensors"')],
        "no.safetensors",
    ),
    "a model that cannot be converted": (
        lambda tmp, images: [write(tmp / "x.toml", images, model='name = "test_vit4"')],
        "blocks.0.norm1 (RmsNorm) is not supported; supported are ",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSALS)
def test_wrong_input_is_refused_before_anything_is_trained(
    tacit: Invoke, tmp_path: Path, images: Path, case: str
) -> None:
    make, reason = REFUSALS[case]
    arguments = make(tmp_path, images)
    out = [] if "--out" in arguments else ["--out", tmp_path / "out"]
    result = tacit("distill", *arguments, *out)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("tacit: ")
    assert reason in result.stderr
    assert not (tmp_path / "out").exists()


def test_a_training_that_diverges_has_its_own_status(tacit: Invoke, tmp_path: Path, images: Path) -> None:
    experiment = write(tmp_path / "x.toml", images)
    experiment.write_text(
        experiment.read_text().replace("[training]", "[training]\nlearning_rate = 100.0\noptimizer = 'sgd'")
    )
    result = tacit("distill", experiment, "--out", tmp_path / "out")
    assert result.exit_code == 1
    assert "training diverged, take a smaller learning_rate" in result.stderr


def test_a_teacher_that_cannot_be_written_is_no_wrong_input(tacit: Invoke, tmp_path: Path, images: Path) -> None:
    out = tmp_path / "out"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        result = tacit("distill", write(tmp_path / "x.toml", images), "--out", out)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert result.exit_code == 1
    assert f"{out / 'teacher.safetensors'} cannot be written: File too large; make room" in result.stderr
