"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009, "Learning Multiple Layers of Features from Tiny Images").

Both are published twice. The binary version is preferred: records of one or two label bytes (CIFAR-100: coarse, fine)
and 3,072 bytes of pixels, channel by channel. The Python version is pickled; unpickling runs what the file says, so a
file is opened only after its MD5 checksum matched the published one, which torchvision knows.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from tacit.models.datasets.samples import ArrayImages, Samples, Source, around, lines, require_checksum, require_file

_SIDE: Final = 32
_PIXEL_BYTES: Final = 3 * _SIDE * _SIDE


@dataclass(frozen=True, kw_only=True)
class Variant:
    reader: str
    folder: str
    names: str
    """File with one class name per line."""
    train: tuple[str, ...]
    test: tuple[str, ...]
    train_records: int
    test_records: int
    label_bytes: int
    classes: int


CIFAR10: Final = Variant(
    reader="CIFAR10",
    folder="cifar-10-batches-bin",
    names="batches.meta.txt",
    train=tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
    test=("test_batch.bin",),
    train_records=10_000,
    test_records=10_000,
    label_bytes=1,
    classes=10,
)
CIFAR100: Final = Variant(
    reader="CIFAR100",
    folder="cifar-100-binary",
    names="fine_label_names.txt",
    train=("train.bin",),
    test=("test.bin",),
    train_records=50_000,
    test_records=10_000,
    label_bytes=2,
    classes=100,
)


def read(directory: Path, *, variant: Variant, reader: type[Any] | None = None) -> Source:
    """Read the folder of the binary version in `directory`, else that of the Python version.

    `reader` replaces torchvision.datasets.CIFAR10 or CIFAR100, which has the checksums. Raises FileNotFoundError for a
    missing folder or file, ValueError for another length or checksum, or a label out of range.
    """
    folder = directory / variant.folder
    if folder.is_dir():
        return _binary(folder, variant)
    # Imported here because torchvision takes a second to import and only this version needs it.
    import torchvision.datasets

    chosen: type[Any] = reader or getattr(torchvision.datasets, variant.reader)
    if not (directory / chosen.base_folder).is_dir():
        raise FileNotFoundError(
            f"data.directory {str(directory)!r}: expected the folder {variant.folder} or {chosen.base_folder} in it; "
            f"{around(folder)}"
        )
    return _pickled(directory, chosen)


def _binary(folder: Path, variant: Variant) -> Source:
    names = lines(folder / variant.names, purpose="the names of the classes")
    if len(names) != variant.classes:
        raise ValueError(f"{folder / variant.names} names {len(names)} classes, expected {variant.classes}")
    return Source(
        train=_records([folder / name for name in variant.train], variant.train_records, variant),
        test=_records([folder / name for name in variant.test], variant.test_records, variant),
        class_names=tuple(names),
    )


def _records(paths: list[Path], count: int, variant: Variant) -> Samples:
    length = variant.label_bytes + _PIXEL_BYTES
    images = np.empty((len(paths), count, _PIXEL_BYTES), dtype=np.uint8)
    labels = np.empty((len(paths), count), dtype=np.int64)
    for number, path in enumerate(paths):
        size = require_file(path, purpose=f"{count} records of {length} bytes").stat().st_size
        if size != count * length:
            raise ValueError(
                f"{path} has {size} bytes, expected {count * length} ({count} records of {length}); it is truncated "
                "or belongs to another data set"
            )
        records = np.fromfile(path, dtype=np.uint8).reshape(count, length)
        labels[number] = records[:, variant.label_bytes - 1]
        images[number] = records[:, variant.label_bytes :]
        wrong = np.flatnonzero(labels[number] >= variant.classes)
        if len(wrong):
            raise ValueError(
                f"{path}: record {wrong[0]} has label {labels[number, wrong[0]]}, expected 0 to {variant.classes - 1}"
            )
    pixels = images.reshape(-1, 3, _SIDE, _SIDE).transpose(0, 2, 3, 1)
    return Samples(ArrayImages(pixels), labels.reshape(-1))


def _pickled(directory: Path, reader: type[Any]) -> Source:
    published = [*reader.train_list, *reader.test_list, (reader.meta["filename"], reader.meta["md5"])]
    for name, checksum in published:
        require_checksum(directory / reader.base_folder / name, md5=checksum, purpose="a file of the Python version")
    train, test = (reader(str(directory), train=train, download=False) for train in (True, False))
    return Source(
        train=Samples(ArrayImages(train.data), np.array(train.targets, dtype=np.int64)),
        test=Samples(ArrayImages(test.data), np.array(test.targets, dtype=np.int64)),
        class_names=tuple(train.classes),
    )
