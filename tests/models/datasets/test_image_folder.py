import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from torchvision.datasets import ImageFolder

from tacit.models.datasets import image_folder

NAMES = ["train/cat/a.png", "train/cat/deep/b.JPG", "train/dog/a.ppm", "train/dog/c.bmp", "test/dog/x.png"]


@pytest.fixture
def root(tmp_path: Path, picture: Callable[..., None]) -> Path:
    for number, name in enumerate(NAMES):
        picture(tmp_path / name, height=8 + number)
    (tmp_path / "train" / "cat" / "notes.txt").write_text("no image", encoding="utf-8")
    return tmp_path


def test_images_are_those_that_torchvision_finds(root: Path) -> None:
    source = image_folder.read(root)
    reference = ImageFolder(str(root / "train"))
    assert source.class_names == tuple(reference.classes) == ("cat", "dog")
    assert source.train.labels.tolist() == reference.targets == [0, 0, 1, 1]
    assert list(source.train.images.sizes()) == [(image.height, image.width) for image, _ in reference]
    for index in range(4):
        size = reference[index][0].height
        if size == 8:
            assert np.array_equal(source.train.images.pixels(np.array([index]), size=8)[0], reference[index][0])


def test_a_test_class_keeps_its_label(root: Path) -> None:
    assert image_folder.read(root).test.labels.tolist() == [1]


def test_val_serves_where_there_is_no_test(root: Path) -> None:
    (root / "test").rename(root / "val")
    assert image_folder.read(root).test.labels.tolist() == [1]


def test_test_is_preferred_to_val(root: Path) -> None:
    shutil.copytree(root / "train", root / "val")
    assert len(image_folder.read(root).test.images) == 1


@pytest.mark.parametrize("part", ["train", "test"])
def test_an_empty_class_is_named(root: Path, part: str) -> None:
    for path in (root / part / "dog").iterdir():
        path.unlink()
    with pytest.raises(ValueError, match=rf"{part}: no image of class dog \(\.png, "):
        image_folder.read(root)


def test_a_class_that_is_only_in_the_test_is_named(root: Path) -> None:
    (root / "test" / "fox").mkdir()
    with pytest.raises(ValueError, match=r"test holds classes that are not in .*train: fox"):
        image_folder.read(root)


def test_what_is_hidden_is_no_class_and_no_image(root: Path, picture: Callable[..., None]) -> None:
    before = image_folder.read(root)
    for place in ("train/.ipynb_checkpoints/a.png", "train/cat/.ipynb_checkpoints/a.png", "test/.cache/x.png"):
        picture(root / place, height=8)
    picture(root / "train" / "dog" / ".hidden.png", height=8)
    after = image_folder.read(root)
    assert after.class_names == before.class_names
    assert (len(after.train.images), len(after.test.images)) == (len(before.train.images), len(before.test.images))
