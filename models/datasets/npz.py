""".npz files with the arrays x_train, y_train, x_test and y_test. Nothing in them is unpickled."""

import zipfile
import zlib
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from numpy.lib.npyio import NpzFile

from tacit.models.datasets.samples import ArrayImages, Samples, Source

_MOST_CLASSES: Final = 2**16


def read(path: Path) -> Source:
    """Images uint8 [N, H, W] or [N, H, W, C], labels integers [N]. Classes are 0 to the largest label of y_train.

    Raises FileNotFoundError for a missing file and ValueError for one that does not hold what it should.
    """
    where = f"data.source {str(path)!r}"
    if not path.is_file():
        raise FileNotFoundError(f"{where} is no file; give the path of an .npz file")
    try:
        archive = np.load(path, allow_pickle=False)
        if not isinstance(archive, NpzFile):
            raise ValueError("it holds one bare array")
    except (zipfile.BadZipFile, EOFError, ValueError) as error:
        raise ValueError(f"{where} is not a readable .npz file: {error}") from error
    with archive:
        arrays = {name: _member(where, archive, name) for name in ("x_train", "y_train", "x_test", "y_test")}
    train = _checked(where, "train", arrays)
    test = _checked(where, "test", arrays)
    if train.images.channels != test.images.channels:
        raise ValueError(f"{where}: x_train has {train.images.channels} channels, x_test has {test.images.channels}")
    largest = int(train.labels.max())
    if test.labels.max() > largest:
        raise ValueError(f"{where}: y_test holds label {test.labels.max()}, the largest in y_train is {largest}")
    return Source(train=train, test=test, class_names=tuple(str(label) for label in range(largest + 1)))


def _member(where: str, archive: NpzFile, name: str) -> npt.NDArray[np.generic]:
    if name not in archive:
        raise ValueError(f"{where} holds no {name!r}; it has {sorted(archive.keys())}")
    try:
        member: npt.NDArray[np.generic] = archive[name]
    except (ValueError, zipfile.BadZipFile, zlib.error, EOFError) as error:  # objects to unpickle, or damaged bytes
        raise ValueError(f"{where}: {name} cannot be read: {error}") from error
    return member


def _checked(where: str, part: str, arrays: dict[str, npt.NDArray[np.generic]]) -> Samples:
    images, labels = arrays[f"x_{part}"], arrays[f"y_{part}"]
    if images.dtype != np.uint8 or images.ndim not in (3, 4) or 0 in images.shape:
        raise ValueError(
            f"{where}: x_{part} is {images.dtype} {list(images.shape)}, "
            "expected uint8 [N, H, W] or [N, H, W, C], none of them zero"
        )
    if not np.issubdtype(labels.dtype, np.integer) or labels.shape != images.shape[:1]:
        raise ValueError(
            f"{where}: y_{part} is {labels.dtype} {list(labels.shape)}, "
            f"expected integers [{len(images)}], one per image"
        )
    lowest, highest = int(labels.min()), int(labels.max())
    if lowest < 0 or highest >= _MOST_CLASSES:
        raise ValueError(
            f"{where}: y_{part} holds labels from {lowest} to {highest}, expected 0 to at most {_MOST_CLASSES - 1}"
        )
    pixels = images.astype(np.uint8, copy=False).reshape(*images.shape[:3], -1)
    return Samples(ArrayImages(pixels), labels.astype(np.int64))
