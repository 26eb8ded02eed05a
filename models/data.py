"""Labelled images, ready for a vision transformer.

Two sources: the handwritten digits that come with scikit-learn, and .npz files. Both end as the same kind of tensors:
square, resized bilinearly (with antialiasing where that shrinks them), every channel shifted and scaled by the mean and
standard deviation of the training images at their original size. NumPy computes these in float64, so they do not depend
on the number of threads.
"""

import zipfile
import zlib
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from numpy.lib.npyio import NpzFile
from torch.nn.functional import interpolate

from tacit.models.configuration import DataConfiguration

_DIGITS_TEST = 360
_DIGITS_SPLIT_SEED = 0
_MOST_CLASSES = 2**16

_Images = npt.NDArray[np.uint8] | npt.NDArray[np.float64]  # [N, H, W, C]
_Labels = npt.NDArray[np.int64]  # [N]
_Split = tuple[_Images, _Labels]


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test images; the printed form shows no image and no label."""

    x_train: torch.Tensor = field(repr=False)
    """float32 [N, channels, size, size], normalised."""
    y_train: torch.Tensor = field(repr=False)
    """int64 [N], 0 ... classes - 1."""
    x_test: torch.Tensor = field(repr=False)
    """float32 [M, channels, size, size], normalised like the training images."""
    y_test: torch.Tensor = field(repr=False)
    """int64 [M], 0 ... classes - 1."""
    classes: int
    channels: int


def load(configuration: DataConfiguration, *, image_size: int) -> Dataset:
    """Load the images of `configuration.source` at `image_size` x `image_size` pixels.

    Raises FileNotFoundError for a missing .npz file and ValueError for one that does not hold what it should.
    """
    train, test = _digits() if configuration.source == "digits" else _npz(Path(configuration.source))
    mean = train[0].mean(axis=(0, 1, 2), dtype=np.float64)
    deviation = train[0].std(axis=(0, 1, 2), dtype=np.float64)
    deviation[deviation == 0.0] = 1.0  # a constant channel becomes zero everywhere
    return Dataset(
        x_train=_tensor(train[0], mean, deviation, image_size),
        y_train=torch.from_numpy(train[1]),
        x_test=_tensor(test[0], mean, deviation, image_size),
        y_test=torch.from_numpy(test[1]),
        classes=int(train[1].max()) + 1,
        channels=train[0].shape[3],
    )


def _tensor(
    images: _Images, mean: npt.NDArray[np.float64], deviation: npt.NDArray[np.float64], size: int
) -> torch.Tensor:
    normalised = (images.astype(np.float32) - mean.astype(np.float32)) / deviation.astype(np.float32)
    tensor = torch.from_numpy(normalised).permute(0, 3, 1, 2).contiguous()  # [N, C, H, W]
    if tensor.shape[2:] == (size, size):
        return tensor
    return interpolate(tensor, (size, size), mode="bilinear", align_corners=False, antialias=True)


def _digits() -> tuple[_Split, _Split]:
    """1,437 training and 360 test images of 8 x 8 pixels from 0 to 16; always the same split, stratified by class."""
    # Imported here because scikit-learn takes a second to import and only this source needs it.
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    images = digits.images[..., np.newaxis]
    labels = digits.target.astype(np.int64)
    x_train, x_test, y_train, y_test = train_test_split(
        images, labels, test_size=_DIGITS_TEST, random_state=_DIGITS_SPLIT_SEED, stratify=labels
    )
    return (x_train, y_train), (x_test, y_test)


def _npz(path: Path) -> tuple[_Split, _Split]:
    if not path.is_file():
        raise FileNotFoundError(f'data.source {str(path)!r} is no file; give the path of an .npz file, or "digits"')
    try:
        archive = np.load(path, allow_pickle=False)
        if not isinstance(archive, NpzFile):
            raise ValueError("it holds one bare array")
    except (zipfile.BadZipFile, EOFError, ValueError) as error:
        raise ValueError(f"data.source {str(path)!r} is not a readable .npz file: {error}") from error
    with archive:
        arrays = {name: _member(path, archive, name) for name in ("x_train", "y_train", "x_test", "y_test")}
    train = _checked(path, "train", arrays)
    test = _checked(path, "test", arrays)
    if train[0].shape[3] != test[0].shape[3]:
        raise ValueError(
            f"data.source {str(path)!r}: x_train has {train[0].shape[3]} channels, x_test has {test[0].shape[3]}"
        )
    if test[1].max() > train[1].max():
        raise ValueError(
            f"data.source {str(path)!r}: y_test holds label {test[1].max()}, the largest in y_train is {train[1].max()}"
        )
    return train, test


def _member(path: Path, archive: NpzFile, name: str) -> npt.NDArray[np.generic]:
    if name not in archive:
        raise ValueError(f"data.source {str(path)!r} holds no {name!r}; it has {sorted(archive.keys())}")
    try:
        member: npt.NDArray[np.generic] = archive[name]
    except (ValueError, zipfile.BadZipFile, zlib.error, EOFError) as error:  # objects to unpickle, or damaged bytes
        raise ValueError(f"data.source {str(path)!r}: {name} cannot be read: {error}") from error
    return member


def _checked(path: Path, part: str, arrays: dict[str, npt.NDArray[np.generic]]) -> _Split:
    images, labels = arrays[f"x_{part}"], arrays[f"y_{part}"]
    if images.dtype != np.uint8 or images.ndim not in (3, 4) or 0 in images.shape:
        raise ValueError(
            f"data.source {str(path)!r}: x_{part} is {images.dtype} {list(images.shape)}, "
            "expected uint8 [N, H, W] or [N, H, W, C], none of them zero"
        )
    if not np.issubdtype(labels.dtype, np.integer) or labels.shape != images.shape[:1]:
        raise ValueError(
            f"data.source {str(path)!r}: y_{part} is {labels.dtype} {list(labels.shape)}, "
            f"expected integers [{len(images)}], one per image"
        )
    lowest, highest = int(labels.min()), int(labels.max())
    if lowest < 0 or highest >= _MOST_CLASSES:
        raise ValueError(
            f"data.source {str(path)!r}: y_{part} holds labels from {lowest} to {highest}, "
            f"expected 0 to at most {_MOST_CLASSES - 1}"
        )
    return images.astype(np.uint8, copy=False).reshape(*images.shape[:3], -1), labels.astype(np.int64)
