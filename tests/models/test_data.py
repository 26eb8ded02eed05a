from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from tacit.models.configuration import DIRECTORY_SOURCES, DataConfiguration
from tacit.models.data import Dataset, load, read


def write(folder: Path, arrays: dict[str, Any]) -> DataConfiguration:
    path = folder / "images.npz"
    np.savez(path, **arrays)
    return DataConfiguration(source=str(path))


def test_digits_keep_every_image_at_their_own_size() -> None:
    dataset = load(DataConfiguration(), image_size=8)
    assert (dataset.classes, dataset.channels) == (10, 1)
    assert dataset.x_train.shape == (1437, 1, 8, 8)
    assert dataset.x_test.shape == (360, 1, 8, 8)
    assert dataset.x_train.dtype == dataset.x_test.dtype == torch.float32
    assert dataset.y_train.dtype == dataset.y_test.dtype == torch.int64

    # Undo the normalisation; pixels are whole numbers from 0 to 16, so rounding restores them exactly.
    digits = load_digits()
    brightest, darkest = dataset.x_train.max(), dataset.x_train.min()
    both = torch.cat([dataset.x_train, dataset.x_test])[:, 0]
    pixels = torch.round((both - darkest) / (brightest - darkest) * 16).numpy()
    labels = torch.cat([dataset.y_train, dataset.y_test]).numpy()
    ours = sorted((image.tobytes(), int(label)) for image, label in zip(pixels, labels, strict=True))
    theirs = zip(digits.images.astype(np.float32), digits.target, strict=True)
    assert ours == sorted((image.tobytes(), int(label)) for image, label in theirs)


def test_digits_are_divided_as_scikit_learn_divides_them() -> None:
    digits = load_digits()
    theirs = train_test_split(digits.images, digits.target, test_size=360, random_state=0, stratify=digits.target)
    source = read(DataConfiguration())
    for samples, images, labels in zip((source.train, source.test), theirs[:2], theirs[2:], strict=True):
        found = samples.images.pixels(np.arange(len(labels)), size=8)
        assert found.dtype == np.uint8
        assert np.array_equal(found[..., 0], images)
        assert np.array_equal(samples.labels, labels)
    assert source.class_names == tuple(map(str, digits.target_names))


def test_normalisation_uses_the_training_images_of_each_channel(tmp_path: Path, arrays: dict[str, Any]) -> None:
    arrays = {name: array[:, :4, :4] if name.startswith("x") else array for name, array in arrays.items()}
    dataset = load(write(tmp_path, arrays), image_size=4)
    pixels = arrays["x_train"].astype(np.float64)
    for ours, raw in [(dataset.x_train, arrays["x_train"]), (dataset.x_test, arrays["x_test"])]:
        expected = (raw - pixels.mean(axis=(0, 1, 2))) / pixels.std(axis=(0, 1, 2))
        # Three float32 roundings (mean, deviation, quotient) of numbers up to 255: relative to 255 / 70, below 1e-6.
        np.testing.assert_allclose(ours.numpy().transpose(0, 2, 3, 1), expected, rtol=0, atol=4e-6)


def test_images_are_resized(tmp_path: Path, arrays: dict[str, Any]) -> None:
    configuration = write(tmp_path, arrays)
    assert load(configuration, image_size=12).x_train.shape == (7, 2, 12, 12)
    assert load(configuration, image_size=2).x_test.shape == (3, 2, 2, 2)


def test_enlarging_interpolates_linearly(tmp_path: Path, arrays: dict[str, Any]) -> None:
    # A ramp, enlarged, stays a ramp away from the borders: steps of 1/2 of the original step.
    arrays["x_train"] = np.broadcast_to(np.arange(8, dtype=np.uint8) * 10, (7, 8, 8)).copy()
    arrays["x_test"] = arrays["x_train"][:3]
    dataset = load(write(tmp_path, arrays), image_size=16)
    deviation = np.std(np.arange(8) * 10)
    steps = np.diff(dataset.x_train[0, 0, 5].numpy())[1:-1]
    # Differences of float32 values below 2, each rounded a few times at 1.2e-7.
    np.testing.assert_allclose(steps, 5 / deviation, rtol=0, atol=2e-6)


def test_a_constant_channel_becomes_zero(tmp_path: Path, arrays: dict[str, Any]) -> None:
    arrays["x_train"][..., 1] = 200
    dataset = load(write(tmp_path, arrays), image_size=8)
    assert (dataset.x_train[:, 1] == 0).all()
    assert torch.isfinite(dataset.x_test).all()


def test_names_and_centres_come_from_the_source(tmp_path: Path, arrays: dict[str, Any]) -> None:
    dataset = load(write(tmp_path, arrays), image_size=8)
    assert (dataset.classes, dataset.source.class_names, dataset.centres) == (3, ("0", "1", "2"), None)


def test_a_share_holds_the_images_asked_for_in_their_order() -> None:
    dataset = load(DataConfiguration(), image_size=16)
    indices = np.array([1436, 0, 7])
    x, y = dataset.share(indices)
    assert torch.equal(x, dataset.x_train[indices])
    assert torch.equal(y, dataset.y_train[indices])


def test_images_beyond_one_block_are_all_there(tmp_path: Path) -> None:
    # 2,500 images are three blocks; every image is its number in two bytes.
    numbers = np.arange(2500, dtype="<u2").view(np.uint8).reshape(2500, 1, 2)
    labels = np.zeros(2500, dtype=np.int64)
    path = write(tmp_path, {"x_train": numbers, "y_train": labels, "x_test": numbers[:1], "y_test": labels[:1]})
    dataset = load(path, image_size=1)
    ranks = load(path, image_size=2).x_train[:, 0, 0].numpy() * dataset.deviation + dataset.mean
    assert np.array_equal(np.rint(ranks @ [1, 256]), np.arange(2500))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two classes, six training and two test images of unequal sizes."""
    generator = np.random.default_rng(2)
    for part, count in (("train", 3), ("test", 1)):
        for name in ("cat", "dog"):
            (tmp_path / part / name).mkdir(parents=True)
            for number in range(count):
                pixels = generator.integers(0, 256, (8 + number, 9, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / part / name / f"{number}.png")
    return tmp_path


def test_files_become_normalised_tensors(folder: Path) -> None:
    dataset = load(DataConfiguration(source="folder", directory=str(folder)), image_size=8)
    assert isinstance(dataset, Dataset)
    assert dataset.source.class_names == ("cat", "dog")
    assert dataset.x_train.shape == (6, 3, 8, 8)
    assert dataset.x_test.shape == (2, 3, 8, 8)
    assert dataset.y_train.tolist() == [0, 0, 0, 1, 1, 1]
    # float32 rounding of values below 3, averaged over 384 of them: below 1e-6.
    np.testing.assert_allclose(dataset.x_train.mean(dim=(0, 2, 3)), 0, rtol=0, atol=1e-6)
    np.testing.assert_allclose(dataset.x_train.std(dim=(0, 2, 3), correction=0), 1, rtol=0, atol=1e-6)


def test_a_share_touches_no_other_file(folder: Path) -> None:
    dataset = load(DataConfiguration(source="folder", directory=str(folder)), image_size=8)
    for path in (folder / "train" / "cat").iterdir():
        path.unlink()
    x, y = dataset.share(np.array([3, 5]))
    assert x.shape == (2, 3, 8, 8)
    assert y.tolist() == [1, 1]
    with pytest.raises(ValueError, match=r"cat/0\.png is not a readable image"):
        dataset.share(np.array([0]))


def test_finding_images_decodes_none(folder: Path) -> None:
    (folder / "train" / "cat" / "0.png").write_bytes(b"")
    configuration = DataConfiguration(source="folder", directory=str(folder))
    assert len(read(configuration).train.images) == 6
    with pytest.raises(ValueError, match=r"cat/0\.png is not a readable image"):
        load(configuration, image_size=8)


@pytest.mark.parametrize("source", DIRECTORY_SOURCES)
def test_a_missing_directory_is_named_for_every_source(tmp_path: Path, source: str) -> None:
    absent = tmp_path / "absent"
    with pytest.raises(FileNotFoundError, match=f"absent is no folder; expected data.directory with {source}"):
        load(DataConfiguration(source=source, directory=str(absent)), image_size=8)


@pytest.mark.parametrize("source", DIRECTORY_SOURCES)
def test_an_empty_directory_is_refused_by_every_reader(tmp_path: Path, source: str) -> None:
    with pytest.raises(FileNotFoundError, match="holds nothing"):
        read(DataConfiguration(source=source, directory=str(tmp_path)))


CONTRADICTIONS = [
    ({"source": "cifar10"}, 'data.source "cifar10" needs data.directory'),
    ({"source": "cifar-10", "directory": "x"}, 'data.source "cifar-10" is unknown; give "digits", one of cifar10, '),
    ({"source": "digits", "directory": "x"}, 'data.directory "x" is not used by data.source "digits"'),
    ({"source": "a.npz", "directory": "x"}, 'data.directory "x" is not used by data.source "a.npz"'),
]


@pytest.mark.parametrize(("fields", "message"), CONTRADICTIONS)
def test_contradictions_are_refused(fields: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DataConfiguration(**fields)
