""".npz files with the arrays x_train, y_train, x_test and y_test, or with one of the pairs. Nothing is unpickled."""

import zipfile
import zlib
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from numpy.lib.npyio import NpzFile

from tacit.models.datasets.samples import ArrayImages, Samples, Source

_MOST_CLASSES: Final = 2**16
_MOST_CHANNELS: Final = 4
"""An image of more has its axes in another order, if an earlier axis could be the channels."""


def require(path: Path) -> Path:
    """`path`, which is a file. FileNotFoundError if it is not."""
    if not path.is_file():
        raise FileNotFoundError(f"data.source {str(path)!r} is no file; give the path of an .npz file")
    return path


def read(path: Path) -> Source:
    """Images uint8 [N, H, W] or [N, H, W, C], labels integers [N]. Classes are 0 to the largest label of y_train,
    or of y_test where that is all there is.

    Raises FileNotFoundError for a missing file and ValueError for one that does not hold what it should.
    """
    where = f"data.source {str(require(path))!r}"
    try:
        archive = np.load(path, allow_pickle=False)
        if not isinstance(archive, NpzFile):
            raise ValueError("it holds one bare array")
    except (zipfile.BadZipFile, EOFError, ValueError) as error:
        # numpy takes whatever is no archive for a pickle, and tells how to load that, which nobody should.
        reason = "it is no archive of arrays" if "pickle" in str(error) else error
        raise ValueError(f"{where} is not a readable .npz file: {reason}; write it with numpy.savez") from error
    with archive:
        parts = [part for part in ("train", "test") if f"x_{part}" in archive or f"y_{part}" in archive]
        names = [f"{kind}_{part}" for part in parts or ("train",) for kind in "xy"]
        arrays = {name: _member(where, archive, name) for name in names}
    found = {part: _checked(where, part, arrays) for part in parts}
    train, test = (found.get(part) or _none_like(*found.values()) for part in ("train", "test"))
    if train.images.channels != test.images.channels:
        raise ValueError(f"{where}: x_train has {train.images.channels} channels, x_test has {test.images.channels}")
    largest = int((train if len(train.labels) else test).labels.max())
    if test.labels.max(initial=0) > largest:
        raise ValueError(f"{where}: y_test holds label {test.labels.max()}, the largest in y_train is {largest}")
    return Source(train=train, test=test, class_names=tuple(str(label) for label in range(largest + 1)))


def _none_like(other: Samples) -> Samples:
    """No samples, of the other part's form."""
    return Samples(ArrayImages(other.images.pixels(np.arange(0), size=1)), np.arange(0))


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
    if images.ndim == 4 and images.shape[3] > _MOST_CHANNELS >= images.shape[1]:
        raise ValueError(
            f"{where}: x_{part} is uint8 {list(images.shape)}, with channels before height and width; "
            f"write x_{part}.transpose(0, 2, 3, 1)"
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
