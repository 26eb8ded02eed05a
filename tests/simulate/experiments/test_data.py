"""The images of a study, and its halves."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tacit.models.datasets import npz
from tacit.simulate.experiments.data import DataError, find, halve, stored

CLIENTS = 5


def write(path: Path, *, train: list[int], test: int = 10, side: int = 8) -> Path:
    labels = np.array(train)
    images = np.broadcast_to(np.arange(len(labels), dtype=np.uint8)[:, None, None], (len(labels), side, side))
    arrays: dict[str, Any] = {"x_train": images, "y_train": labels}
    arrays |= {"x_test": np.full((test, side, side), 255, np.uint8), "y_test": np.zeros(test, np.int64)}
    np.savez(path, **arrays)
    return path


def test_digits_are_the_default_of_a_twin() -> None:
    images = find(None, clients=CLIENTS, halved=True)
    assert (images.configuration.source, images.configuration.partition, images.shape) == ("digits", "iid", (8, 8, 1))
    assert images.description == "digits: 1,437 training and 360 test images of 10 classes"


def test_images_of_full_shape_go_into_the_full_size(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    labels = np.arange(20) % 10
    pixels = generator.integers(0, 256, (20, 32, 32, 3), dtype=np.uint8)
    np.savez(tmp_path / "few.npz", x_train=pixels, y_train=labels, x_test=pixels, y_test=labels)
    images = find(tmp_path / "few.npz", clients=CLIENTS, halved=True, classes=(10,))
    assert images.configuration.source == str(tmp_path / "few.npz")
    assert images.description == "few.npz: 20 training and 20 test images of 10 classes"


def test_the_halves_divide_every_class(tmp_path: Path) -> None:
    labels = [0] * 9 + [1] * 2 + [2] * 13
    images = find(write(tmp_path / "images.npz", train=labels), clients=CLIENTS, halved=True)
    halve(images, tmp_path / "halves")
    configurations = [stored(images, tmp_path / "halves" / f"{name}.npz") for name in ("pretraining", "federated")]
    halves = [npz.read(Path(configuration.source)) for configuration in configurations]
    assert [configuration.partition for configuration in configurations] == ["iid", "iid"]
    assert [np.bincount(half.train.labels).tolist() for half in halves] == [[4, 1, 6], [5, 1, 7]]
    numbers = [half.train.images.pixels(np.arange(len(half.train.images)), size=8)[:, 0, 0, 0] for half in halves]
    assert sorted(np.concatenate(numbers).tolist()) == list(range(len(labels)))
    for half, own in zip(halves, numbers, strict=True):
        assert [labels[number] for number in own] == half.train.labels.tolist()
        assert half.test.labels.tolist() == [0] * 10
    assert numbers[0].tolist() != list(range(len(numbers[0]))), "drawn, not cut"


def test_the_halves_are_always_the_same(tmp_path: Path) -> None:
    images = find(write(tmp_path / "images.npz", train=[0, 1] * 20), clients=CLIENTS, halved=True)
    for name in ("one", "other"):
        halve(images, tmp_path / name)
    for name in ("pretraining.npz", "federated.npz"):
        with np.load(tmp_path / "one" / name) as one, np.load(tmp_path / "other" / name) as other:
            assert all(np.array_equal(one[key], other[key]) for key in one.files)


@pytest.mark.parametrize(
    ("labels", "halved", "reason"),
    [
        ([0, 1, 0, 1], False, "4 training images are too few for 5 clients"),
        ([0] * 8 + [1], True, "class 1 has 1 training images; two halves"),
        ([0] * 8 + [2] * 8, True, "class 1 has 0 training images; two halves"),
        ([0, 0, 1, 1, 1, 1, 1], True, "4 training images are too few for 5 clients"),
    ],
)
def test_too_few_images_are_refused(tmp_path: Path, labels: list[int], halved: bool, reason: str) -> None:
    path = write(tmp_path / "images.npz", train=labels)
    with pytest.raises(DataError, match=f"--data {path}: {reason}"):
        find(path, clients=CLIENTS, halved=halved)
    find(path, clients=1, halved=False)
