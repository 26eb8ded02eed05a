"""MNIST's files, compressed or not, under every name that they have on people's disks."""

import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision.datasets import MNIST

from tacit.models.configuration import ImagesConfiguration
from tacit.models.data import read
from tacit.models.datasets import idx, torchvision_sets


def packed(array: np.ndarray) -> bytes:
    return b"\0\0\x08" + bytes([array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()


def write(folder: Path, *, dots: bool = False, zipped: bool = False) -> dict[str, np.ndarray]:
    folder.mkdir(parents=True, exist_ok=True)
    generator, written = np.random.default_rng(0), {}
    for prefix, count in (("train", 12), ("t10k", 5)):
        arrays = {
            f"{prefix}-images-idx3-ubyte": generator.integers(0, 256, (count, 28, 28), dtype=np.uint8),
            f"{prefix}-labels-idx1-ubyte": (np.arange(count) % 10).astype(np.uint8),
        }
        written |= arrays
        for name, array in arrays.items():
            content, path = packed(array), folder / (name.replace("-idx", ".idx") if dots else name)
            path = path.with_name(path.name + ".gz") if zipped else path
            path.write_bytes(gzip.compress(content) if zipped else content)
    return written


@settings(max_examples=16, deadline=None)
@given(
    dots=st.booleans(),
    zipped=st.booleans(),
    place=st.sampled_from(["", "raw", "MNIST/raw", "FashionMNIST/raw"]),
    source=st.sampled_from(["mnist", "fashion-mnist"]),
)
def test_the_four_files_are_read(
    tmp_path_factory: pytest.TempPathFactory, dots: bool, zipped: bool, place: str, source: str
) -> None:
    root = tmp_path_factory.mktemp("mnist")
    written = write(root / place, dots=dots, zipped=zipped)
    found = read(ImagesConfiguration(source=source, directory=str(root)))
    assert found.class_names == (idx.MNIST if source == "mnist" else idx.FASHION)
    for samples, prefix in ((found.train, "train"), (found.test, "t10k")):
        count = len(samples.labels)
        pixels = samples.images.pixels(np.arange(count), size=28)[..., 0]
        assert (pixels == written[f"{prefix}-images-idx3-ubyte"]).all()
        assert (samples.labels == written[f"{prefix}-labels-idx1-ubyte"]).all()


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    write(tmp_path)
    path = tmp_path / "train-images-idx3-ubyte"
    good = path.read_bytes()
    for content in (b"", b"\0", good[:-1], good + b"\0", b"<html>"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"train-images-idx3-ubyte has \d+ bytes and is no idx file"):
            idx.read(tmp_path, names=idx.MNIST)
    path.unlink()
    with pytest.raises(FileNotFoundError, match="train-images-idx3-ubyte is no file"):
        idx.read(tmp_path, names=idx.MNIST)


def test_a_data_set_of_torchvision_by_its_name(tmp_path: Path) -> None:
    written = write(tmp_path / "MNIST" / "raw")
    found = read(ImagesConfiguration(source="torchvision:MNIST", directory=str(tmp_path)))
    assert found.class_names == tuple(MNIST.classes)
    assert found.train.labels.tolist() == written["train-labels-idx1-ubyte"].tolist()
    pixels = found.test.part(np.array([3, 1])).images.pixels(np.arange(2), size=28)
    assert (pixels == written["t10k-images-idx3-ubyte"][[3, 1]][..., np.newaxis]).all()
    assert list(found.test.images.sizes()) == [(28, 28)] * 5


def test_what_torchvision_cannot_open_is_refused(tmp_path: Path) -> None:
    for name, message in {
        "MNISTT": "torchvision.datasets has no MNISTT; did you mean .*MNIST",
        "MNIST": "torchvision cannot open its train part in .*; nothing is downloaded",
        "Caltech256": "it is not divided into training and test",
        "os": "torchvision.datasets has no os",
    }.items():
        with pytest.raises(ValueError, match=f'"torchvision:{name}": {message}'):
            torchvision_sets.read(tmp_path, name)
