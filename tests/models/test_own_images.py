"""Images of which a party has a part: statistics and classes that others say, one split without the other."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tacit.models.configuration import DataConfiguration, ImagesConfiguration
from tacit.models.data import load, normalise, read, statistics

CLASSES = ("0", "1", "2", "3")


def npz(path: Path, **parts: list[int]) -> str:
    """An .npz file with images of one value, and these labels, in its parts."""
    arrays: dict[str, Any] = {}
    for part, labels in parts.items():
        arrays[f"x_{part}"] = np.full((len(labels), 8, 8), 51, np.uint8)
        arrays[f"y_{part}"] = np.array(labels)
    np.savez(path, **arrays)
    return str(path)


@pytest.mark.parametrize("part", ["train", "test"])
def test_one_part_is_enough(tmp_path: Path, part: str) -> None:
    source = read(ImagesConfiguration(source=npz(tmp_path / "own.npz", **{part: [0, 2]})))
    assert source.class_names == ("0", "1", "2")
    found = {"train": source.train, "test": source.test}
    assert found[part].labels.tolist() == [0, 2]
    other = found["test" if part == "train" else "train"]
    assert (len(other.images), len(other.labels)) == (0, 0)
    data = normalise(source, image_size=8, mean=(0.2,), std=(0.5,))
    assert (len(data.x_train), len(data.x_test)) == ((2, 0) if part == "train" else (0, 2))


@pytest.mark.parametrize(("part", "missing"), [("train", "test"), ("test", "training")])
def test_a_simulation_takes_both(tmp_path: Path, part: str, missing: str) -> None:
    source = npz(tmp_path / "own.npz", **{part: [0, 1]})
    with pytest.raises(ValueError, match=f"holds no {missing} images"):
        load(DataConfiguration(source=source), image_size=8)


@pytest.mark.parametrize("part", ["train", "test", "val"])
def test_a_folder_with_one_part(tmp_path: Path, part: str) -> None:
    for name in ("a", "b"):
        (tmp_path / part / name).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(tmp_path / part / name / "1.png")
    source = read(ImagesConfiguration(source="folder", directory=str(tmp_path), classes=("b", "c", "a")))
    assert source.class_names == ("b", "c", "a")
    assert [len(source.train.images), len(source.test.images)] == ([2, 0] if part == "train" else [0, 2])
    assert [*source.train.labels, *source.test.labels] == [2, 0]


def test_classes_that_no_image_is_there_to_train_on_are_mentioned(tmp_path: Path) -> None:
    source = npz(tmp_path / "own.npz", train=[0, 2, 2], test=[0, 1, 2])
    assert "1 of 3 classes have no training image: 1" in read(ImagesConfiguration(source=source)).notes


def test_labels_are_those_of_the_list(tmp_path: Path) -> None:
    source = npz(tmp_path / "own.npz", train=[2, 0, 1])
    found = read(ImagesConfiguration(source=source, classes=("3", "2", "1", "0")))
    assert found.train.labels.tolist() == [1, 3, 2]
    with pytest.raises(ValueError, match=r"data\.classes lacks classes that the images have: 2; add them"):
        read(ImagesConfiguration(source=source, classes=("0", "1")))
    with pytest.raises(ValueError, match=r"data\.classes names a class twice"):
        ImagesConfiguration(classes=("a", "a"))


def test_numbers_are_places_in_a_list_of_names(tmp_path: Path) -> None:
    source = npz(tmp_path / "own.npz", train=[2, 0, 1])
    found = read(ImagesConfiguration(source=source, classes=("cat", "dog", "eel", "fox")))
    assert found.class_names == ("cat", "dog", "eel", "fox")
    assert found.train.labels.tolist() == [2, 0, 1]
    assert any("0 cat, 1 dog, 2 eel" in note for note in found.notes)
    with pytest.raises(ValueError, match="labels go from 0 to 2"):
        read(ImagesConfiguration(source=source, classes=("cat", "dog")))
    for name in "012":
        (tmp_path / "train" / name).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(tmp_path / "train" / name / "1.png")
    with pytest.raises(ValueError, match="lacks classes"):
        read(ImagesConfiguration(source="folder", directory=str(tmp_path), classes=("cat", "dog", "eel")))


def test_given_statistics_are_used() -> None:
    own = load(DataConfiguration(), image_size=8)
    computed = statistics(own.source.train.images, image_size=8)
    assert np.array(own.normalisation) == pytest.approx(np.array(computed))
    given = load(DataConfiguration(mean=(0.25,), std=(0.125,)), image_size=8)
    raw = own.source.test.images.pixels(np.arange(3), size=8)[..., 0]
    assert given.x_test[:3, 0].numpy() == pytest.approx((raw / 255 - 0.25) / 0.125, abs=1e-5)


def test_the_same_statistics_make_the_same_tensors() -> None:
    """What a task tells of them loses nothing: a client that is told makes, bit for bit, what the server makes."""
    own = load(DataConfiguration(), image_size=8)
    mean, std = own.normalisation
    assert (normalise(own.source, image_size=8, mean=mean, std=std).x_train == own.x_train).all()


def test_channels_that_do_not_fit(tmp_path: Path) -> None:
    source = read(ImagesConfiguration(source=npz(tmp_path / "own.npz", train=[0])))
    with pytest.raises(ValueError, match=r"data\.mean has 3 channels, and the images have 1"):
        normalise(source, image_size=8, mean=(0.5,) * 3, std=(0.5,) * 3)
    with pytest.raises(ValueError, match=r"data\.mean has 1 values and data\.std 0: give both"):
        DataConfiguration(mean=(0.5,))
