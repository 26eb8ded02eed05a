from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from torchvision.datasets import GTSRB

from tacit.models.datasets import gtsrb
from tacit.models.datasets.samples import FileImages

HEADER = "Filename;Width;Height;Roi.X1;Roi.Y1;Roi.X2;Roi.Y2;ClassId\n"


@pytest.fixture
def root(tmp_path: Path, picture: Callable[..., None]) -> Path:
    """One training image in each of 43 classes, with two in class 7, and three test images."""
    base = tmp_path / "gtsrb"
    for label in range(43):
        folder = base / "GTSRB" / "Training" / f"{label:05d}"
        for number in range(2 if label == 7 else 1):
            picture(folder / f"00000_{number:05d}.ppm")
        (folder / f"GT-{label:05d}.csv").write_text(HEADER, encoding="utf-8")
    lines = []
    for number, label in enumerate((16, 1, 42)):
        picture(base / "GTSRB" / "Final_Test" / "Images" / f"{number:05d}.ppm")
        lines.append(f"{number:05d}.ppm;8;8;1;1;6;6;{label}\n")
    (base / "GT-final_test.csv").write_text(HEADER + "".join(lines), encoding="utf-8")
    return tmp_path


def test_images_and_labels_are_those_of_torchvision(root: Path) -> None:
    source = gtsrb.read(root)
    assert source.class_names[:2] == ("00000", "00001")
    assert len(source.class_names) == 43
    for samples, split, count in ((source.train, "train", 44), (source.test, "test", 3)):
        reference = list(GTSRB(str(root), split=split))
        assert len(reference) == count
        assert samples.labels.tolist() == [label for _, label in reference]
        pixels = samples.images.pixels(np.arange(count), size=8)
        assert np.array_equal(pixels, np.stack([np.asarray(image) for image, _ in reference]))


TRACKS = (
    7, 74, 75, 47, 66, 62, 14, 48, 47, 49, 67, 44, 70, 72, 26, 21, 14, 37, 40, 7, 12, 11, 13, 17, 9, 50, 20, 8, 18, 9,
    15, 26, 8, 23, 14, 40, 13, 7, 69, 10, 12, 8, 8,
)  # fmt: skip
"""Of each class of the published final training set, with 30 pictures each but for one of class 33, which has 29."""


def test_of_the_final_training_set_the_34799_images_of_the_literature_are_taken(root: Path) -> None:
    """One picture of every track; each has 30 but for one of those that are taken. Nothing decodes them here."""
    final = root / "gtsrb" / "GTSRB" / "Final_Training" / "Images"
    for label, tracks in enumerate(TRACKS):
        folder = final / f"{label:05d}"
        folder.mkdir(parents=True)
        for track in range(tracks):
            (folder / f"{track:05d}_00000.ppm").touch()
    assert 30 * sum(TRACKS) - 1 == 39_209
    train = gtsrb.read(root).train
    assert 30 * len(train.labels) - 1 == 34_799
    assert isinstance(train.images, FileImages)
    for label, tracks in enumerate(TRACKS):
        places = [path for path, at in zip(train.images.paths, train.labels, strict=True) if at == label]
        assert {path.parent.name for path in places} == {f"{label:05d}"}
        assert {int(path.name[:5]) for path in places} == set(range(tracks - -(-tracks // 10)))


def test_a_class_of_one_track_is_refused(root: Path, picture: Callable[..., None]) -> None:
    for label in range(43):
        picture(root / f"gtsrb/GTSRB/Final_Training/Images/{label:05d}/00000_00000.ppm")
    with pytest.raises(ValueError, match=r"Images/00000 has one track, and none is left for training"):
        gtsrb.read(root)


@pytest.mark.parametrize("label", [0, 42])
def test_an_empty_class_is_named(root: Path, label: int) -> None:
    (root / f"gtsrb/GTSRB/Training/{label:05d}/00000_00000.ppm").unlink()
    with pytest.raises(ValueError, match=rf"Training: no image of class {label:05d} \(\.ppm\)"):
        gtsrb.read(root)
