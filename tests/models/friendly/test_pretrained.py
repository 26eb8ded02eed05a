"""Checkpoints of timm's architectures: weights, images and class names as their pretraining has them, or one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file
from timm import data as timm_data

from tacit.models.data import normalise
from tacit.models.datasets.samples import FileImages, Samples, Scaling, Source
from tacit.models.friendly.pretrained import Pretrained, read_pretrained
from tacit.models.friendly.transformer import ConversionError

NAME = "test_vit"
data: Any = timm_data  # It does not declare what it exports.


@pytest.fixture
def made(tmp_path: Path) -> Any:
    """made(architecture, option=...): a file with random weights of it."""

    def make(architecture: str = NAME, **options: Any) -> Path:
        with torch.random.fork_rng():
            torch.manual_seed(1)
            model = timm.create_model(architecture, **options)
        path = tmp_path / "model.safetensors"
        save_file(model.state_dict(), path)
        return path

    return make


def read(architecture: str, path: Path, image_size: int = 32) -> Pretrained:
    return read_pretrained(architecture, path, most_tokens=1024, image_size=image_size)


def test_weights_are_those_of_the_file(made: Any) -> None:
    path = made(img_size=32, num_classes=7)
    found = read(NAME, path)
    model = timm.create_model(NAME, img_size=32, num_classes=7, checkpoint_path=str(path)).eval()
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(2))
    assert torch.equal(found.model(images), model(images))
    assert not found.model.training


def test_class_names_are_known_or_numbers_or_there_are_none(made: Any, tmp_path: Path) -> None:
    assert read(NAME, made(img_size=32)).class_names[:2] == ("tench, Tinca tinca", "goldfish, Carassius auratus")
    assert read(NAME, made(img_size=32, num_classes=3)).class_names == ("class 0", "class 1", "class 2")
    assert read(NAME, made(img_size=32, num_classes=0)).class_names == ()
    # The projection of CLIP's image encoder, whose 512 outputs are no classes.
    clip = "vit_xsmall_patch16_clip_224"
    assert read(clip, made(clip, img_size=32, num_classes=512)).class_names == ()
    assert read(clip, made(clip, img_size=32, num_classes=5)).class_names[4:] == ("class 4",)
    published = {
        "architecture": NAME,
        "label_names": ["cat", "dog", "cow"],
        "pretrained_cfg": {"mean": [0.1, 0.2, 0.3]},
    }
    (tmp_path / "config.json").write_text(json.dumps(published))
    found = read(NAME, made(img_size=32, num_classes=3))
    assert (found.class_names, found.mean) == (("cat", "dog", "cow"), (0.1, 0.2, 0.3))
    (tmp_path / "config.json").write_text(json.dumps(published | {"pretrained_cfg": {"crop_pct": 0}}))
    with pytest.raises(ValueError, match=r"images of checkpoint .*crop_pct"):
        read(NAME, made(img_size=32, num_classes=3))
    (tmp_path / "config.json").write_text(json.dumps(published | {"architecture": "test_vit2"}))
    assert read(NAME, made(img_size=32, num_classes=3)).class_names[0] == "class 0"


def test_images_are_of_the_pretrained_size_unless_that_has_too_many_patches(made: Any) -> None:
    path = made(num_classes=0)
    assert read(NAME, path, 0).image_size == 160
    assert read_pretrained(NAME, path, most_tokens=100).image_size == 224
    assert read(NAME, path, 64).image_size == 64
    with pytest.raises(ValueError, match="images of 40 pixels do not have whole patches of 16: take a multiple of it"):
        read(NAME, path, 40)


@pytest.mark.parametrize("size", [(200, 120), (61, 333), (32, 32), (20, 31)])
@pytest.mark.parametrize(
    ("crop_mode", "crop", "interpolation"),
    [
        ("center", 0.9, "bicubic"),
        ("center", 1.0, "bilinear"),
        ("squash", 1.0, "bicubic"),
        ("squash", 0.875, "bilinear"),
    ],
)
def test_image_files_are_prepared_as_timm_does(
    tmp_path: Path, size: tuple[int, int], crop_mode: str, crop: float, interpolation: Any
) -> None:
    path, mean, std = tmp_path / "image.png", (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)
    pixels = np.random.default_rng(3).integers(0, 256, (*size, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    scaling = Scaling(interpolation=interpolation, squash=crop_mode == "squash", crop=crop)
    samples = Samples(FileImages((path,), scaling=scaling), np.zeros(1, np.int64))
    source = Source(train=samples, test=samples, class_names=())
    found = normalise(source, image_size=32, mean=mean, std=std).x_train
    transform = data.create_transform(
        (3, 32, 32), interpolation=interpolation, mean=mean, std=std, crop_pct=crop, crop_mode=crop_mode
    )
    # Both divide by 255 and by the deviation, in another order, on values of at most 5.
    assert torch.allclose(found[0], transform(Image.open(path)), rtol=0, atol=5e-6)


def test_whatever_does_not_fit_is_refused_in_one_line(made: Any, tmp_path: Path) -> None:
    path = made(num_classes=3)
    (tmp_path / "text.safetensors").write_text("these are no weights")
    for architecture, file, kind, reason in (
        ("vit_smal_patch16_224", path, ValueError, "architecture 'vit_smal_patch16_224' is unknown to timm; did you"),
        (f"{NAME}.nothing", path, ValueError, f"architecture '{NAME}.nothing' is unknown to timm; it has {NAME}."),
        ("resnet18", path, ConversionError, "resnet18: the architecture ResNet is not supported; supported are"),
        ("test_vit4", path, ConversionError, r"test_vit4: blocks\.0\.norm1 \(RmsNorm\) is not supported"),
        ("test_vit2", path, ValueError, "model.safetensors' does not fit test_vit2: .*reg_token"),
        (NAME, tmp_path / "text.safetensors", ValueError, "text.safetensors' is not a safetensors file: "),
        (NAME, tmp_path / "gone.safetensors", FileNotFoundError, "gone.safetensors' is no file"),
    ):
        with pytest.raises(kind, match=reason) as refusal:
            read(architecture, file)
        assert "\n" not in str(refusal.value)
        assert len(str(refusal.value)) < 600
    state = timm.create_model(NAME).state_dict()
    state["norm.bias"][3] = torch.nan
    save_file(state, path)
    with pytest.raises(ValueError, match=r"norm\.bias holds a value that is not finite"):
        read(NAME, path)
