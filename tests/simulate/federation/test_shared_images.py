"""Images that the processes of a simulation share: what was found is read again, without being copied."""

import errno
import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tacit.models.datasets.samples import ArrayImages, FileImages, Samples, Source
from tacit.simulate.federation.shared_images import keep, kept


def samples(images: int, centres: bool = False) -> Samples:
    pixels = np.arange(images * 3 * 4 * 5, dtype=np.uint8).reshape(images, 3, 4, 5)
    # As CIFAR is stored: no piece of memory as it stands.
    array = ArrayImages(pixels.transpose(0, 2, 3, 1))
    return Samples(array, np.arange(images), np.arange(images) % 2 if centres else None)


def test_what_was_found_is_read_again(tmp_path: Path) -> None:
    source = Source(train=samples(7, centres=True), test=samples(3), class_names=("a", "b"))
    keep(source, tmp_path)
    read = kept(tmp_path)
    assert read.class_names == ("a", "b")
    for one, other in ((read.train, source.train), (read.test, source.test)):
        assert isinstance(one.images, ArrayImages)
        assert isinstance(other.images, ArrayImages)
        assert np.array_equal(one.images.array, other.images.array)
        assert one.labels.dtype == np.int64
        assert np.array_equal(one.labels, other.labels)
    assert np.array_equal(read.train.centres, source.train.centres)  # type: ignore[arg-type]
    assert read.test.centres is None


def test_pixels_are_mapped_and_who_writes_to_them_keeps_that_to_itself(tmp_path: Path) -> None:
    keep(Source(train=samples(7), test=samples(3), class_names=("a",)), tmp_path)
    one, other = kept(tmp_path).train.images, kept(tmp_path).train.images
    assert isinstance(one, ArrayImages)
    assert isinstance(other, ArrayImages)
    base: Any = one.array
    while isinstance(base, np.ndarray):
        base = base.base
    assert isinstance(base.obj if isinstance(base, memoryview) else base, mmap.mmap)
    before = other.array.copy()
    one.array[:] += 1
    assert np.array_equal(other.array, before)


def test_images_in_files_stay_there(tmp_path: Path) -> None:
    paths = (Path("a.png"), Path("b.png"))
    train = Samples(FileImages(paths), np.array([0, 1]))
    keep(Source(train=train, test=samples(1), class_names=("a", "b")), tmp_path)
    assert kept(tmp_path).train.images.paths == paths  # type: ignore[union-attr]


def test_a_full_disk_is_told_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, mode: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(
        OSError, match=r"images cannot be written: No space left on device; make room there, or set TMPDIR"
    ):
        keep(Source(train=samples(1), test=samples(1), class_names=("a",)), tmp_path)
