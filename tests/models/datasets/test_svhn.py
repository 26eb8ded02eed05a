import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.io import savemat
from torchvision.datasets import SVHN

from tacit.models.datasets import svhn

IMAGES = np.random.default_rng(5).integers(0, 256, (7, 32, 32, 3), dtype=np.uint8)
LABELS = np.array([1, 10, 9, 5, 10, 2, 10], dtype=np.uint8)


@pytest.fixture
def reader(tmp_path: Path) -> type[Any]:
    """Five training and two test images, and the reader that knows their checksums."""
    lists = {}
    for split, part in (("train", slice(5)), ("test", slice(5, None))):
        path = tmp_path / f"{split}_32x32.mat"
        content = {"X": IMAGES[part].transpose(1, 2, 3, 0), "y": LABELS[part, np.newaxis]}
        savemat(path, content, do_compression=True)
        lists[split] = ["", path.name, hashlib.md5(path.read_bytes()).hexdigest()]
    return type("Reader", (SVHN,), {"split_list": lists})


def test_images_and_labels(tmp_path: Path, reader: type[Any]) -> None:
    source = svhn.read(tmp_path, reader=reader)
    assert np.array_equal(source.train.images.pixels(np.arange(5), size=32), IMAGES[:5])
    assert np.array_equal(source.test.images.pixels(np.arange(2), size=32), IMAGES[5:])
    assert source.train.labels.tolist() == [1, 0, 9, 5, 0]
    assert source.test.labels.tolist() == [2, 0]
    assert source.train.labels.dtype == np.int64
    assert source.class_names == tuple("0123456789")


@pytest.mark.parametrize("name", ["train_32x32.mat", "test_32x32.mat"])
def test_other_files_are_refused(tmp_path: Path, reader: type[Any], name: str) -> None:
    path = tmp_path / name
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match=f"{name} has MD5 checksum .* it is not opened"):
        svhn.read(tmp_path, reader=reader)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=f"{name} is no file; expected cropped digits of SVHN"):
        svhn.read(tmp_path, reader=reader)


def test_without_a_reader_only_the_published_checksums_pass(tmp_path: Path, reader: type[Any]) -> None:
    with pytest.raises(ValueError, match="the published file has e26dedcc434d2e4c54c9b2d4a06d8373"):
        svhn.read(tmp_path)
