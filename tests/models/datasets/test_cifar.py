import hashlib
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torchvision.datasets

from tacit.models.datasets.cifar import CIFAR10, CIFAR100, Variant, read
from tacit.models.datasets.samples import Source

SMALL = [replace(CIFAR10, train_records=3, test_records=2), replace(CIFAR100, train_records=15, test_records=2)]
"""Both data sets, with fewer records in a file."""


class Content:
    """Random images [N, 3, 32, 32] and labels, and the bytes of both published versions."""

    def __init__(self, variant: Variant) -> None:
        generator = np.random.default_rng(4)
        self.variant = variant
        self.train_count = len(variant.train) * variant.train_records
        count = self.train_count + variant.test_records
        self.images = generator.integers(0, 256, (count, 3, 32, 32), dtype=np.uint8)
        self.labels = generator.integers(0, variant.classes, count).tolist()
        self.names = [f"class {number}" for number in range(variant.classes)]

    def _pieces(self) -> list[tuple[int, int]]:
        ends = [(number + 1) * self.variant.train_records for number in range(len(self.variant.train))]
        starts = [end - self.variant.train_records for end in ends]
        return [*zip(starts, ends, strict=True), (self.train_count, len(self.labels))]

    def write_binary(self, directory: Path) -> Path:
        folder = directory / self.variant.folder
        folder.mkdir()
        for name, (start, end) in zip((*self.variant.train, *self.variant.test), self._pieces(), strict=True):
            with (folder / name).open("wb") as file:
                for image, label in zip(self.images[start:end], self.labels[start:end], strict=True):
                    coarse = [7] if self.variant.label_bytes == 2 else []
                    file.write(bytes([*coarse, label]) + image.tobytes())
        (folder / self.variant.names).write_text("\n".join(self.names) + "\n\n", encoding="utf-8")
        return folder

    def write_pickled(self, directory: Path) -> type[Any]:
        """The reader that knows the checksums of what was written."""
        published = getattr(torchvision.datasets, self.variant.reader)
        folder = directory / published.base_folder
        folder.mkdir()
        files = [name for name, _ in (*published.train_list, *published.test_list)]
        key = "labels" if self.variant is SMALL[0] else "fine_labels"
        for name, (start, end) in zip(files, self._pieces(), strict=True):
            data = self.images[start:end].reshape(end - start, -1)
            (folder / name).write_bytes(pickle.dumps({"data": data, key: self.labels[start:end]}))
        meta = published.meta
        (folder / meta["filename"]).write_bytes(pickle.dumps({meta["key"]: self.names}))

        def checksum(name: str) -> str:
            return hashlib.md5((folder / name).read_bytes()).hexdigest()

        split = len(published.train_list)
        lists = {
            "train_list": [[name, checksum(name)] for name in files[:split]],
            "test_list": [[name, checksum(name)] for name in files[split:]],
            "meta": {**meta, "md5": checksum(meta["filename"])},
        }
        return type("Reader", (published,), lists)

    def check(self, source: Source) -> None:
        assert source.class_names == tuple(self.names)
        for samples, part in ((source.train, slice(self.train_count)), (source.test, slice(self.train_count, None))):
            expected = self.images[part].transpose(0, 2, 3, 1)
            assert np.array_equal(samples.images.pixels(np.arange(len(expected)), size=32), expected)
            assert samples.labels.tolist() == self.labels[part]
            assert samples.labels.dtype == np.int64


@pytest.fixture(params=SMALL, ids=["cifar10", "cifar100"])
def content(request: pytest.FixtureRequest) -> Content:
    return Content(request.param)


def test_the_binary_version(tmp_path: Path, content: Content) -> None:
    content.write_binary(tmp_path)
    content.check(read(tmp_path, variant=content.variant))


def test_the_python_version(tmp_path: Path, content: Content) -> None:
    reader = content.write_pickled(tmp_path)
    content.check(read(tmp_path, variant=content.variant, reader=reader))


class Trap:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Path.touch, (self.path,)


def test_nothing_is_unpickled_whose_checksum_differs(tmp_path: Path, content: Content) -> None:
    reader = content.write_pickled(tmp_path)
    sprung = tmp_path / "sprung"
    for path in (tmp_path / reader.base_folder).iterdir():
        original = path.read_bytes()
        path.write_bytes(pickle.dumps(Trap(sprung)))
        with pytest.raises(ValueError, match=f"{path.name} has MD5 checksum .* it is not opened"):
            read(tmp_path, variant=content.variant, reader=reader)
        path.write_bytes(original)
    assert not sprung.exists()
    pickle.loads(pickle.dumps(Trap(sprung)))
    assert sprung.exists()


def test_without_a_reader_only_the_published_checksums_pass(tmp_path: Path, content: Content) -> None:
    content.write_pickled(tmp_path)
    with pytest.raises(ValueError, match=f"published file has {PUBLISHED[content.variant.reader]}"):
        read(tmp_path, variant=content.variant)


PUBLISHED = {"CIFAR10": "c99cafc152244af753f735de768cd75f", "CIFAR100": "16019d7e3df5f24257cddd939b257f8d"}
"""Checksums of the first training file."""


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def drop_a_record(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:3074])


def spoil_label(path: Path) -> None:
    records = bytearray(path.read_bytes())
    length = len(records) // (3 if path.name.startswith("data") else 15)
    records[length + length - 3073] = 200  # the last label byte of record 1
    path.write_bytes(records)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (Path.unlink, "is no file; expected"),
        (truncate, "it is truncated or belongs to another data set"),
        (drop_a_record, "has 3074 bytes, expected"),
        (spoil_label, "record 1 has label 200, expected 0 to 99?$"),
    ],
)
def test_bad_records_are_named(tmp_path: Path, content: Content, spoil: Callable[[Path], None], message: str) -> None:
    name = content.variant.train[-1]
    spoil(content.write_binary(tmp_path) / name)
    with pytest.raises((FileNotFoundError, ValueError), match=f"{name}.* {message}"):
        read(tmp_path, variant=content.variant)
