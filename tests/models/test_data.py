from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from tacit.models.configuration import DataConfiguration
from tacit.models.data import load


@pytest.fixture
def arrays() -> dict[str, Any]:
    """Seven training and three test images of 4 x 6 pixels and two channels, in three classes."""
    generator = np.random.default_rng(1)
    return {
        "x_train": generator.integers(0, 256, (7, 4, 6, 2), dtype=np.uint8),
        "y_train": np.array([0, 1, 2, 0, 1, 2, 0], dtype=np.uint8),
        "x_test": generator.integers(0, 256, (3, 4, 6, 2), dtype=np.uint8),
        "y_test": np.array([2, 1, 0], dtype=np.int32),
    }


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


def test_digits_are_split_alike_in_every_class_and_every_time() -> None:
    one, other = (load(DataConfiguration(), image_size=8) for _ in range(2))
    assert torch.equal(one.x_test, other.x_test)
    assert torch.equal(one.y_train, other.y_train)
    share = torch.bincount(one.y_test) / (torch.bincount(one.y_test) + torch.bincount(one.y_train))
    # 360 / 1797 of at least 174 images per class, rounded to whole images: off by less than 1 / 174.
    assert (share - 360 / 1797).abs().max() < 1 / 174


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


def test_images_without_channels_have_one(tmp_path: Path, arrays: dict[str, Any]) -> None:
    arrays["x_train"], arrays["x_test"] = arrays["x_train"][..., 0], arrays["x_test"][..., :1]
    dataset = load(write(tmp_path, arrays), image_size=8)
    assert (dataset.classes, dataset.channels) == (3, 1)
    assert dataset.y_train.tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert dataset.y_test.tolist() == [2, 1, 0]


def test_a_constant_channel_becomes_zero(tmp_path: Path, arrays: dict[str, Any]) -> None:
    arrays["x_train"][..., 1] = 200
    dataset = load(write(tmp_path, arrays), image_size=8)
    assert (dataset.x_train[:, 1] == 0).all()
    assert torch.isfinite(dataset.x_test).all()


def test_the_printed_form_shows_no_data() -> None:
    assert repr(load(DataConfiguration(), image_size=8)) == "Dataset(classes=10, channels=1)"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"absent\.npz' is no file"):
        load(DataConfiguration(source=str(tmp_path / "absent.npz")), image_size=8)


@pytest.mark.parametrize("name", ["x_train", "y_train", "x_test", "y_test"])
def test_a_missing_array_is_named(tmp_path: Path, arrays: dict[str, Any], name: str) -> None:
    del arrays[name]
    with pytest.raises(ValueError, match=f"holds no '{name}'"):
        load(write(tmp_path, arrays), image_size=8)


REFUSED = [
    ("x_train", np.zeros((7, 4, 6, 2), dtype=np.float32), "x_train is float32"),
    ("x_train", np.full((7, 4, 6, 2), np.nan), "x_train is float64"),
    ("x_train", np.zeros((7, 4), dtype=np.uint8), r"x_train is uint8 \[7, 4\]"),
    ("x_test", np.zeros((3, 4, 6, 2, 1), dtype=np.uint8), r"x_test is uint8 \[3, 4, 6, 2, 1\]"),
    ("x_test", np.zeros((0, 4, 6, 2), dtype=np.uint8), r"x_test is uint8 \[0, 4, 6, 2\]"),
    ("x_test", np.zeros((3, 4, 6, 3), dtype=np.uint8), "x_train has 2 channels, x_test has 3"),
    ("x_test", np.array([{}] * 3, dtype=object), "x_test cannot be read"),
    ("y_train", np.full(7, np.nan), "y_train is float64"),
    ("y_train", np.zeros(6, dtype=np.int64), r"y_train is int64 \[6\], expected integers \[7\]"),
    ("y_train", np.zeros((7, 1), dtype=np.int64), r"y_train is int64 \[7, 1\]"),
    ("y_train", np.array([0, 1, 2, -1, 0, 0, 0]), "y_train holds labels from -1 to 2"),
    ("y_train", np.array([0, 1, 2, 2**16, 0, 0, 0]), "y_train holds labels from 0 to 65536"),
    ("y_train", np.full(7, 2**64 - 1, dtype=np.uint64), "y_train holds labels from 18446744073709551615"),
    ("y_test", np.array([0, 1, 3]), "y_test holds label 3, the largest in y_train is 2"),
]


@pytest.mark.parametrize(("name", "array", "message"), REFUSED)
def test_wrong_arrays_are_refused(
    tmp_path: Path, arrays: dict[str, Any], name: str, array: np.ndarray[Any, Any], message: str
) -> None:
    arrays[name] = array
    with pytest.raises(ValueError, match=message):
        load(write(tmp_path, arrays), image_size=8)


def test_damaged_arrays_are_named(tmp_path: Path, arrays: dict[str, Any]) -> None:
    path = Path(write(tmp_path, arrays).source)
    content = bytearray(path.read_bytes())
    content[content.index(arrays["x_train"].tobytes())] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="x_train cannot be read: Bad CRC-32"):
        load(DataConfiguration(source=str(path)), image_size=8)


@pytest.mark.parametrize("form", ["text", "empty", "npy", "truncated"])
def test_other_files_are_refused(tmp_path: Path, arrays: dict[str, Any], form: str) -> None:
    path = Path(write(tmp_path, arrays).source)
    if form == "npy":
        with path.open("wb") as file:
            np.save(file, np.zeros(3))
    else:
        path.write_bytes({"text": b"x_train", "empty": b"", "truncated": path.read_bytes()[:-100]}[form])
    with pytest.raises(ValueError, match=r"images\.npz' is not a readable \.npz file"):
        load(DataConfiguration(source=str(path)), image_size=8)
