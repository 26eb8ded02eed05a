"""`tacit infer` and a model owner's host with a checkpoint of timm's: classes, features, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file

from tacit.models.datasets.image_files import image_files
from tacit.models.datasets.samples import FileImages
from tacit.parties.runs.served import Checkpoint
from tests.cli.command import Invoke
from tests.cli.inference_house import BOUND, House
from tests.cli.outputs import check_output

SIDE = 32
CLASSES, FEATURES = "test_vit", "test_vit2"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pictures")
    generator = np.random.default_rng(3)
    for number in range(6):
        blocks = generator.integers(0, 256, (5, 4 + number, 3), dtype=np.uint8)
        Image.fromarray(blocks).resize((60 + 10 * number, 50)).save(folder / f"{number}.png")
    return folder


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with weights of both architectures, of 5 classes and of none, large enough that they matter."""
    folder = tmp_path_factory.mktemp("weights")
    for name, classes in ((CLASSES, 5), (FEATURES, 0)):
        with torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed(1)
            model = timm.create_model(name, img_size=SIDE, num_classes=classes)
            for key, tensor in model.named_parameters():
                if "gamma" in key:
                    tensor.fill_(0.3)
                elif "norm" not in key:
                    tensor.normal_(std=0.5 if "token" in key or "pos" in key else 0.1)
        save_file(model.state_dict(), folder / f"{name}.safetensors")
    return folder


def in_the_clear(name: str, weights: Path, folder: Path) -> torch.Tensor:
    path = weights / f"{name}.safetensors"
    served = Checkpoint(architecture=name, path=path, calibration=folder, image_size=SIDE).read()
    with torch.no_grad():
        found: torch.Tensor = served.transformer(
            served.data.normalised(FileImages(image_files(folder), scaling=served.scaling))
        )
    return found


def options(name: str, weights: Path, folder: Path) -> list[object]:
    return ["--model", name, "--checkpoint", weights / f"{name}.safetensors", "--images", folder, "--image-size", SIDE]


def test_labelled_images_of_a_checkpoint_are_an_npz_or_a_folder_of_classes(weights: Path, tmp_path: Path) -> None:
    """As a model owner rehearses with them, which offers to learn beside its checkpoint."""
    pixels = np.random.default_rng(4).integers(0, 256, (6, SIDE, SIDE, 3), dtype=np.uint8)
    labels = np.array([0, 1, 2, 0, 1, 2])
    np.savez(tmp_path / "images.npz", x_train=pixels, y_train=labels, x_test=pixels, y_test=labels)
    for part in ("train", "test"):
        for number, label in enumerate(labels):
            (tmp_path / "folder" / part / f"class {label}").mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels[number]).save(tmp_path / "folder" / part / f"class {label}" / f"{number}.png")
    given: dict[str, Any] = {"architecture": CLASSES, "path": weights / f"{CLASSES}.safetensors", "image_size": SIDE}
    for place in ("images.npz", "folder"):
        served = Checkpoint(**given, calibration=tmp_path / place, labelled=True).read()
        assert served.labelled
        assert sorted(served.data.y_train.tolist()) == [0, 0, 1, 1, 2, 2], place
    for wrong in (tmp_path / "gone.npz", tmp_path / "gone"):
        with pytest.raises((ValueError, OSError), match="gone"):
            Checkpoint(**given, calibration=wrong, labelled=True)


@pytest.mark.end_to_end
def test_a_checkpoint_without_a_head_gives_features(tacit: Invoke, weights: Path, folder: Path, tmp_path: Path) -> None:
    result = tacit("infer", *options(FEATURES, weights, folder), "--json", tmp_path / "out.json")
    assert (result.exit_code, result.stderr) == (0, "")
    found = check_output(tmp_path / "out.json", "inference")
    features = torch.tensor([row["features"] for row in found["images"]])
    clear = in_the_clear(FEATURES, weights, folder)
    assert (features - clear).abs().max() == pytest.approx(found["largest_difference"], abs=1e-6)
    assert found["largest_difference"] < BOUND
    assert [(row["label"], row["logits"], row["confidence"]) for row in found["images"]] == [(None, None, None)] * 6
    assert (found["agreement"], found["accuracy"]) == (None, None)
    assert "64 features" in result.stdout
    assert "features differ by at most" in result.stdout


@pytest.mark.end_to_end
def test_a_checkpoint_with_a_head_gives_classes(tacit: Invoke, weights: Path, folder: Path, tmp_path: Path) -> None:
    """Images to calibrate with are others than those to ask about."""
    for number, file in enumerate(sorted(folder.iterdir())):
        Image.open(file).transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(tmp_path / f"{number}.png")
    result = tacit(
        "infer", *options(CLASSES, weights, folder), "--calibration", tmp_path, "--json", tmp_path / "out.json"
    )
    assert (result.exit_code, result.stderr) == (0, "")
    found = check_output(tmp_path / "out.json", "inference")
    clear = in_the_clear(CLASSES, weights, folder)
    answered = [number for number, row in enumerate(found["images"]) if not row["refused"]]
    assert answered
    assert [found["images"][number]["label"] for number in answered] == [
        f"class {label}" for label in clear[answered].argmax(dim=1).tolist()
    ]
    assert found["agreement"] == 1.0


Case = Callable[[Path, Path, Path], list[object]]
WRONG: dict[str, tuple[Case, str]] = {
    "no model at all": (lambda weights, folder, tmp: ["--images", folder], "name a directory; or weights with"),
    "no weights": (lambda weights, folder, tmp: ["--model", CLASSES, "--images", folder], "with --checkpoint"),
    "a directory too": (
        lambda weights, folder, tmp: [tmp, *options(CLASSES, weights, folder)], "go without a directory: leave it out",
    ),
    "test images": (
        lambda weights, folder, tmp: [*options(CLASSES, weights, folder)[:4], "--images", 3],
        "a checkpoint comes without test images",
    ),
    "another source": (
        lambda weights, folder, tmp: [*options(CLASSES, weights, folder), "--data", "digits"],
        "--data digits is for test images",
    ),
    "no such images": (
        lambda weights, folder, tmp: options(CLASSES, weights, tmp / "gone"), "gone: no such file or folder",
    ),
    "no images": (lambda weights, folder, tmp: options(CLASSES, weights, tmp), "the folder has no image file"),
    "no such calibration": (
        lambda weights, folder, tmp: [*options(CLASSES, weights, folder), "--calibration", tmp / "gone"],
        "gone: no such file or folder",
    ),
    "no such weights": (lambda weights, folder, tmp: options(CLASSES, tmp, folder), "test_vit.safetensors' is no file"),
    "other weights": (
        lambda weights, folder, tmp: [*options(CLASSES, weights, folder), "--model", FEATURES],
        "does not fit test_vit2",
    ),
    "an unknown architecture": (
        lambda weights, folder, tmp: [*options(CLASSES, weights, folder), "--model", "vit_smal_patch16_224"],
        "architecture 'vit_smal_patch16_224' is unknown to timm",
    ),
    "an unsupported architecture": (
        lambda weights, folder, tmp: [*options(CLASSES, weights, folder), "--model", "beit_base_patch16_224"],
        "beit_base_patch16_224: the architecture Beit is not supported",
    ),
    "labels of features": (
        lambda weights, folder, tmp: [*options(FEATURES, weights, folder), "--labels", 1],
        "this model has features instead of classes",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_is_refused_in_one_line(
    tacit: Invoke, weights: Path, folder: Path, tmp_path: Path, case: str
) -> None:
    arguments, reason = WRONG[case]
    result = tacit("infer", *arguments(weights, folder, tmp_path))
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("tacit: ")
    assert result.stderr.count("\n") == 1
    assert reason in result.stderr


@pytest.fixture
def house(tmp_path: Path, tacit: Invoke, weights: Path, folder: Path) -> Iterator[House]:
    (tmp_path / "hosts").mkdir()
    made = House(tmp_path / "hosts", tacit, weights / f"{FEATURES}.safetensors", folder)
    try:
        yield made
    finally:
        made.stop()


@pytest.mark.end_to_end
def test_a_host_serves_a_checkpoint(house: House, tacit: Invoke, weights: Path, folder: Path) -> None:
    file = house.model_owner(architecture=FEATURES, calibration=str(folder), image_size=SIDE)
    tested = tacit("preflight", file)
    assert "64 features" in tested.stdout
    house.start("dealer")
    house.start("owner")
    alice = house.start("alice", "--json", "answers.json")
    assert alice.end() == 0, alice.everything
    found = check_output(house.path / "alice" / "answers.json", "answers")
    features = torch.tensor([row["features"] for row in found["images"]])
    assert (features - in_the_clear(FEATURES, weights, folder)).abs().max() < BOUND
    assert found["classes"] == []
    assert any("64 features" in line for line in alice.said)


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"architecture": FEATURES}, "calibration is missing"),
        ({"calibration": "images"}, "images: no such file or folder"),
        ({"image_size": 32}, "image_size is for a checkpoint of timm"),
        ({"architecture": FEATURES, "calibration": "nowhere"}, "nowhere: no such file or folder"),
        ({"architecture": "nothing", "calibration": "."}, "the folder has no image file"),
        ({"architecture": FEATURES, "calibration": "cards", "policy": {"labels": 1}}, "features instead of classes"),
    ],
)
def test_keys_of_a_party_file_that_do_not_go_together_are_refused(
    house: House, tacit: Invoke, folder: Path, keys: dict[str, Any], reason: str
) -> None:
    keys = dict(keys)
    policy = keys.pop("policy", {})
    if keys.get("calibration") == "cards":
        keys |= {"calibration": str(folder), "image_size": SIDE}
    file = house.model_owner(**keys)
    if policy:
        file.write_text(file.read_text() + "[policy]\nlabels = 1\n")
    result = tacit("model-owner", file)
    assert result.exit_code == 2
    assert reason in result.stderr
