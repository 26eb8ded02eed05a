"""Images of a study: found and checked before anything starts.

They are halved if a study trains a model before, class by class, so that both halves have all classes; the test images
are the same for both. If a paper gives every client a fixed number of images, they are a sample. Both draws are
deterministic. Nothing here loads torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from tacit.models.configuration import DataConfiguration
from tacit.models.datasets import cifar, digits, gtsrb, npz
from tacit.models.datasets.samples import Indices, Source
from tacit.parties.runs.directory import write_arrays

GTSRB_CLASSES: Final = 43
CIFAR10_SHAPE: Final = (32, 32, 3)
CIFAR10_SAMPLES: Final = (50_000, 10_000)
_SEED: Final = 0


class DataError(ValueError):
    """Missing or unsuitable images; the message names them, and suitable ones."""


@dataclass(frozen=True, kw_only=True)
class StudyImages:
    configuration: DataConfiguration
    source: Source
    name: str
    """Name of the data set or the file."""

    @property
    def samples(self) -> tuple[int, int]:
        return len(self.source.train.labels), len(self.source.test.labels)

    @property
    def description(self) -> str:
        train, test = self.samples
        classes = len(self.source.class_names)
        return f"{self.name}: {train:,} training and {test:,} test images of {classes} classes"

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels, as stored."""
        height, width = next(self.source.train.images.sizes())
        return height, width, self.source.train.images.channels


def find(path: Path | None, *, clients: int, halved: bool, classes: tuple[int, ...] = ()) -> StudyImages:
    """Find the images at `path`: CIFAR-10's files in a directory, or an .npz file; None: digits, if any images suffice.

    The clients get equal shares (`partition = "iid"`), of one half of the images if they are `halved`. classes:
    required numbers of classes, for images of CIFAR-10's shape; with 43 among them, GTSRB's files in a directory are
    accepted too; (): any images. Raises DataError.
    """
    if path is None and classes:
        raise DataError(
            "the full size needs --data: a directory with the files of CIFAR-10, or an .npz file of its shape"
        )
    if path is None:
        configuration = DataConfiguration(partition="iid")
    elif path.is_dir():
        source_name = "gtsrb" if GTSRB_CLASSES in classes and (path / "gtsrb").is_dir() else "cifar10"
        configuration = DataConfiguration(source=source_name, directory=str(path.resolve()), partition="iid")
    elif path.suffix == ".npz":
        configuration = DataConfiguration(source=str(path.resolve()), partition="iid")
    else:
        raise DataError(f"--data {path}: is neither a directory nor a file whose name ends in .npz")
    try:
        source = _read(configuration)
    except (ValueError, OSError) as error:
        raise DataError(f"--data {path}: {error}") from error
    images = StudyImages(
        configuration=configuration,
        source=source,
        name=configuration.source if path is None or path.is_dir() else path.name,
    )
    # GTSRB's photographs have many sizes, and are resized.
    fits = images.shape == CIFAR10_SHAPE or configuration.source == "gtsrb"
    if classes and not (fits and len(source.class_names) in classes):
        shape = " x ".join(map(str, images.shape))
        wanted = " or ".join(map(str, classes))
        names = "CIFAR-10 or GTSRB" if GTSRB_CLASSES in classes else "CIFAR-10"
        raise DataError(
            f"--data {path}: holds images of {shape} in {len(source.class_names)} classes; the full size takes "
            f"32 x 32 x 3 in {wanted} classes, as {names} has them; other images go into the --small twin"
        )
    counts = np.bincount(source.train.labels, minlength=len(source.class_names))
    if halved and counts.min() < 2:
        raise DataError(
            f"--data {path}: class {counts.argmin()} has {counts.min()} training images; two halves of the data need "
            "one each at least"
        )
    shared = int((counts - counts // 2 if halved else counts).sum())
    if shared < clients:
        raise DataError(f"--data {path}: {shared} training images are too few for {clients} clients; each needs one")
    return images


def halve(images: StudyImages, directory: Path) -> None:
    """Write `pretraining.npz` and `federated.npz`, with half of the training images each.

    images: found as `halved`. OSError if the files cannot be written.
    """
    train, test = images.source.train, images.source.test
    generator = np.random.default_rng(_SEED)
    halves: tuple[list[Indices], list[Indices]] = ([], [])
    for label in range(len(images.source.class_names)):
        members = generator.permutation(np.flatnonzero(train.labels == label))
        halves[0].append(members[: len(members) // 2])
        halves[1].append(members[len(members) // 2 :])
    everything = np.arange(len(test.labels))
    for name, parts in zip(("pretraining", "federated"), halves, strict=True):
        _write(images, directory / f"{name}.npz", np.sort(np.concatenate(parts)), everything)


def check_sample(images: StudyImages, wanted: int) -> None:
    """Raise DataError if there are fewer training images."""
    if (found := images.samples[0]) < wanted:
        raise DataError(f"{images.name} has {found:,} training images; all parties together need {wanted:,}")


def sample(images: StudyImages, path: Path, *, train: int, test: int) -> None:
    """Write a file of so many training and test images, drawn at random, or all if there are fewer. OSError if it
    cannot be written."""
    generator = np.random.default_rng(_SEED)
    counts = zip(images.samples, (train, test), strict=True)
    drawn = [np.sort(generator.permutation(found)[:wanted]) for found, wanted in counts]
    _write(images, path, *drawn, size=CIFAR10_SHAPE[0])


def stored(images: StudyImages, path: Path) -> DataConfiguration:
    """Return the configuration for images that were written to a file."""
    return msgspec.structs.replace(images.configuration, source=str(path.resolve()), directory="")


def _write(images: StudyImages, path: Path, train: Indices, test: Indices, *, size: int = 0) -> None:
    """size: of photographs; images in arrays keep their size."""
    arrays: dict[str, npt.NDArray[Any]] = {}
    for part, samples, indices in (("train", images.source.train, train), ("test", images.source.test, test)):
        arrays |= {f"x_{part}": samples.images.pixels(indices, size=size), f"y_{part}": samples.labels[indices]}
    write_arrays(path, **arrays)


def _read(configuration: DataConfiguration) -> Source:
    if configuration.source == "digits":
        return digits.read()
    if configuration.source == "gtsrb":
        return gtsrb.read(Path(configuration.directory))
    if configuration.directory:
        return cifar.read(Path(configuration.directory), variant=cifar.CIFAR10)
    return npz.read(Path(configuration.source))
