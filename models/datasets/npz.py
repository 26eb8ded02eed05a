""".npz files with the arrays x_train, y_train, x_test and y_test, or with one of the pairs. Nothing is unpickled."""

import zipfile
import zlib
from pathlib import Path
from typing import Any, Final
from unicodedata import normalize

import numpy as np
import numpy.typing as npt
from numpy.lib.npyio import NpzFile

from tacit.models.datasets.samples import ArrayImages, Indices, Pixels, Samples, Source

_MOST_CLASSES: Final = 2**16
_MOST_CHANNELS: Final = 4
"""Most channels. With more, and an earlier axis that could be the channels, the axes are in another order."""


def require(path: Path) -> Path:
    """Return `path`, which is a file. FileNotFoundError if it is not."""
    if not path.is_file():
        raise FileNotFoundError(f"data.source {str(path)!r} is no file; give the path of an .npz file")
    return path


def read(path: Path) -> Source:
    """Read images uint8 [N, H, W] or [N, H, W, C]; labels numbers or names [N] or [N, 1], or one-hot [N, classes].
    Numeric classes are 0 to the largest label of y_train, or of y_test if it is alone; named ones, all that occur.
    MedMNIST's files have other keys.

    Raises FileNotFoundError for a missing file and ValueError for invalid content.
    """
    where = f"data.source {str(require(path))!r}"
    try:
        archive = np.load(path, allow_pickle=False)
        if not isinstance(archive, NpzFile):
            raise ValueError("it holds one bare array")
    except (zipfile.BadZipFile, EOFError, ValueError) as error:
        # numpy suggests loading any other file as a pickle, which would run its code.
        reason = "it is no archive of arrays" if "pickle" in str(error) else error
        raise ValueError(f"{where} is not a readable .npz file: {reason}; write it with numpy.savez") from error
    with archive:
        medical = any(name in archive for names in _MEDMNIST.values() for name in names)
        keys = _MEDMNIST if medical else _USUAL
        parts = [part for part, names in keys.items() if any(name in archive for name in names)] or ["train"]
        arrays = {part: [_member(where, archive, name) for name in keys[part]] for part in parts}
        unused = sorted(set(archive.files) - {name for names in keys.values() for name in names})
    images = {part: _images(where, keys[part][0], x) for part, (x, _) in arrays.items()}
    labels = {part: _labels(where, keys[part][1], y, len(images[part])) for part, (_, y) in arrays.items()}
    names = _named(where, labels)
    found = {part: Samples(ArrayImages(images[part]), _checked(where, keys[part][1], labels[part])) for part in parts}
    train, test = (found.get(part) or _none_like(*found.values()) for part in ("train", "test"))
    if train.images.channels != test.images.channels:
        raise ValueError(f"{where}: x_train has {train.images.channels} channels, x_test has {test.images.channels}")
    columns = [y.shape[1] for _, y in arrays.values() if y.ndim == 2]
    largest = max(int((train if len(train.labels) else test).labels.max()), *(count - 1 for count in columns), 0)
    if test.labels.max(initial=0) > largest:
        raise ValueError(
            f"{where}: y_test holds label {test.labels.max()}, the largest in y_train is {largest}; add training "
            "images of it, or remove those of the test"
        )
    notes = [f"{where}: {', '.join(unused)} not used"] if unused else []
    if not names and (lowest := min(int(samples.labels.min()) for samples in found.values())):
        notes.append(f"{where}: labels begin at {lowest}, not at 0; if that is an offset, subtract it")
    return Source(train, test, names or tuple(str(label) for label in range(largest + 1)), tuple(notes))


_USUAL: Final = {part: (f"x_{part}", f"y_{part}") for part in ("train", "test")}
_MEDMNIST: Final = {part: (f"{part}_images", f"{part}_labels") for part in ("train", "test")}
_UNIQUE: Final = "numpy.unique(labels, return_inverse=True)[1] numbers the classes from 0"


def _none_like(other: Samples) -> Samples:
    return Samples(ArrayImages(other.images.pixels(np.arange(0), size=1)), np.arange(0))


def _member(where: str, archive: NpzFile, name: str) -> npt.NDArray[np.generic]:
    if name not in archive:
        raise ValueError(f"{where} holds no {name!r}; it has {sorted(archive.keys())}")
    try:
        member: npt.NDArray[np.generic] = archive[name]
    except (ValueError, zipfile.BadZipFile, zlib.error, EOFError) as error:  # objects to unpickle, or damaged bytes
        objects = f'; write {name}.astype("int64")' if "Object arrays" in str(error) else ""
        raise ValueError(f"{where}: {name} cannot be read: {error}{objects}") from error
    return member


def _images(where: str, name: str, images: npt.NDArray[Any]) -> Pixels:
    if images.dtype != np.uint8 or images.ndim not in (3, 4) or 0 in images.shape:
        raise ValueError(
            f"{where}: {name} is {images.dtype} {list(images.shape)}, expected uint8 [N, H, W] or [N, H, W, C], none "
            f"of them zero{_bytes(name, images)}"
        )
    if images.ndim == 4 and images.shape[3] > _MOST_CHANNELS >= images.shape[1]:
        raise ValueError(
            f"{where}: {name} is uint8 {list(images.shape)}, with channels before height and width; "
            f"write {name}.transpose(0, 2, 3, 1)"
        )
    return images.astype(np.uint8, copy=False).reshape(*images.shape[:3], -1)


def _bytes(name: str, images: npt.NDArray[Any]) -> str:
    if images.dtype.kind not in "iufb" or not images.size or images.dtype == np.uint8:
        return ""
    lowest, highest = float(images.min()), float(images.max())
    for largest, remedy in ((1, f"({name} * 255).round()"), (255, name), (65535, f"({name} // 256)")):
        if 0 <= lowest <= highest <= largest:
            return f'; write {remedy}.astype("uint8")'
    return f"; its values go from {lowest:g} to {highest:g}: scale them to 0 to 255"


def _labels(where: str, name: str, labels: npt.NDArray[Any], images: int) -> npt.NDArray[Any]:
    """Return one label for each image, a number or a name [N]."""
    form = f"{where}: {name} is {labels.dtype} {list(labels.shape)}"
    if labels.ndim == 2 and labels.shape[1] > 1 and len(labels) == images and labels.dtype.kind in "iufb":
        if not ((labels == 0) | (labels == 1)).all() or not (labels.sum(axis=1) == 1).all():
            raise ValueError(f"{form}, with several labels, or none, for an image; expected one: choose one column")
        labels = labels.argmax(axis=1)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    kind = labels.dtype.kind
    whole = kind in "iubUS" or (kind == "f" and bool((np.isfinite(labels) & (labels == np.rint(labels))).all()))
    if not whole or labels.shape != (images,):
        raise ValueError(f"{form}, expected integers [{images}], one per image, or one-hot rows; {_UNIQUE}")
    return labels


def _named(where: str, labels: dict[str, npt.NDArray[Any]]) -> tuple[str, ...]:
    """Replace named labels by numbers in place and return the names of the classes; () for numbers."""
    texts = {part: found.astype(str) for part, found in labels.items() if found.dtype.kind in "US"}
    if len(texts) != len(labels):
        return ()
    composed = {part: np.array([normalize("NFC", name) for name in found]) for part, found in texts.items()}
    known = np.unique(next(iter(composed.values())))
    for part, found in composed.items():
        if unknown := np.setdiff1d(found, known).tolist():
            raise ValueError(f"{where}: the test has labels that the training has not: {', '.join(unknown[:8])}")
        labels[part] = np.searchsorted(known, found)
    return tuple(known.tolist())


def _checked(where: str, name: str, labels: npt.NDArray[Any]) -> Indices:
    if labels.dtype.kind in "US":
        raise ValueError(f"{where}: {name} holds names, and other labels are numbers; write both alike")
    lowest, highest = int(labels.min()), int(labels.max())
    if lowest < 0 or highest >= _MOST_CLASSES:
        raise ValueError(
            f"{where}: {name} holds labels from {lowest} to {highest}, expected 0 to at most {_MOST_CLASSES - 1}; "
            f"{_UNIQUE}"
        )
    return labels.astype(np.int64)
