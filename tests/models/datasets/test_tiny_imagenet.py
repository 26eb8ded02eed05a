from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tacit.models.datasets import tiny_imagenet


@pytest.fixture
def base(tmp_path: Path, picture: Callable[..., None]) -> Path:
    """Three classes, listed out of order, with two training images each and one grey; four validation images."""
    base = tmp_path / "tiny-imagenet-200"
    names = ["n03", "n01", "n02"]
    for name in names:
        for number in range(2):
            picture(base / "train" / name / "images" / f"{name}_{number}.JPEG", height=64, width=64, grey=number == 1)
        (base / "train" / name / f"{name}_boxes.txt").write_text(f"{name}_0.JPEG\t0\t0\t63\t63\n", encoding="utf-8")
    (base / "wnids.txt").write_text("\n".join(names) + "\n", encoding="utf-8")
    annotations = []
    for number, name in enumerate(["n02", "n03", "n01", "n03"]):
        picture(base / "val" / "images" / f"val_{number}.JPEG", height=64, width=64)
        annotations.append(f"val_{number}.JPEG\t{name}\t0\t32\t44\t62\n")
    (base / "val" / "val_annotations.txt").write_text("".join(annotations), encoding="utf-8")
    picture(base / "test" / "images" / "test_0.JPEG")
    return base


def test_images_and_labels(base: Path) -> None:
    source = tiny_imagenet.read(base.parent)
    assert source.class_names == ("n01", "n02", "n03")
    assert source.train.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert source.test.labels.tolist() == [1, 2, 0, 2]
    assert list(source.train.images.sizes()) == [(64, 64)] * 6
    pixels = source.train.images.pixels(np.arange(6), size=64)
    for index, name in enumerate(
        f"n0{number}/images/n0{number}_{copy}.JPEG" for number in (1, 2, 3) for copy in (0, 1)
    ):
        with Image.open(base / "train" / name) as image:
            assert np.array_equal(pixels[index], np.asarray(image.convert("RGB")))
    assert (pixels[1] == pixels[1, :, :, :1]).all()


def test_an_empty_class_is_named(base: Path) -> None:
    for path in (base / "train" / "n02" / "images").iterdir():
        path.unlink()
    with pytest.raises(ValueError, match="train: no image of class n02"):
        tiny_imagenet.read(base.parent)
