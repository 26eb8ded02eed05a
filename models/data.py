"""Labelled images as tensors for a vision transformer, and the validation set of a client.

Images in arrays are normalised first and then resized; images in files are resized when they are decoded. Tensors are
made only for requested images, a block at a time. The statistics are exact sums.

A client's validation set follows from the images and the run, so that a client never trains on its validation images,
even after it was killed, resumes at another host, or lists its files in another order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property, partial
from hashlib import blake2b
from pathlib import Path
from typing import Final
from unicodedata import normalize

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import interpolate

from tacit.models.configuration import TORCHVISION, DataConfiguration, ImagesConfiguration, place
from tacit.models.datasets import (
    cifar,
    digits,
    fed_isic,
    gtsrb,
    idx,
    image_folder,
    npz,
    svhn,
    tiny_imagenet,
    torchvision_sets,
)
from tacit.models.datasets.samples import Images, Indices, Samples, Source
from tacit.models.moments import moments

_BLOCK: Final = 1024

READERS: Final[dict[str, Callable[[Path], Source]]] = {
    "cifar10": partial(cifar.read, variant=cifar.CIFAR10),
    "cifar100": partial(cifar.read, variant=cifar.CIFAR100),
    "mnist": partial(idx.read, names=idx.MNIST),
    "fashion-mnist": partial(idx.read, names=idx.FASHION),
    "svhn": svhn.read,
    "gtsrb": gtsrb.read,
    "tiny-imagenet": tiny_imagenet.read,
    "fed-isic2019": fed_isic.read,
    "folder": image_folder.read,
}
"""Readers of the sources in `data.directory`."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test images at one size. The representation shows no image and no label."""

    source: Source = field(repr=False)
    channels: int
    image_size: int
    mean: npt.NDArray[np.float32] = field(repr=False)
    """float32 [channels], in the units of the stored pixels."""
    deviation: npt.NDArray[np.float32] = field(repr=False)
    """float32 [channels], positive."""

    @property
    def normalisation(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return mean and standard deviation of every channel, as fractions of 255."""
        mean, std = (tuple(float(value) / 255 for value in values) for values in (self.mean, self.deviation))
        return mean, std

    @property
    def classes(self) -> int:
        return len(self.source.class_names)

    @property
    def centres(self) -> Indices | None:
        """int64 [N], the centre of each training image; None if the data set does not say."""
        return self.source.train.centres

    @cached_property
    def y_train(self) -> torch.Tensor:
        """int64 [N], 0 ... classes - 1."""
        return torch.from_numpy(self.source.train.labels)

    @cached_property
    def y_test(self) -> torch.Tensor:
        """int64 [M], 0 ... classes - 1."""
        return torch.from_numpy(self.source.test.labels)

    @cached_property
    def x_train(self) -> torch.Tensor:
        """All training images: float32 [N, channels, size, size], normalised. See `share` for a subset."""
        return self.normalised(self.source.train.images)

    @cached_property
    def x_test(self) -> torch.Tensor:
        """float32 [M, channels, size, size], normalised like the training images."""
        return self.normalised(self.source.test.images)

    def share(self, indices: Indices) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a client's images and labels: float32 [n, channels, size, size] and int64 [n]; reads no other image.

        Raises ValueError for an image file that cannot be decoded.
        """
        return self.normalised(self.source.train.images, indices), self.y_train[torch.from_numpy(indices)]

    def normalised(self, images: Images, indices: Indices | None = None) -> torch.Tensor:
        """Return images, by default all, as a model of this data set takes them: float32 [n, channels, size, size].

        They may come from outside the data set; coloured ones become grey where it has one channel. Raises ValueError
        for other channels, and for an image file that cannot be decoded.
        """
        if images.channels not in (self.channels, 3):
            raise ValueError(f"images of {images.channels} channels were given; the data set has {self.channels}")
        indices = np.arange(len(images)) if indices is None else indices
        size = self.image_size
        tensor = torch.empty(len(indices), self.channels, size, size)
        for start in range(0, len(indices), _BLOCK):
            pixels = images.pixels(indices[start : start + _BLOCK], size=size)
            if pixels.shape[-1] != self.channels:
                pixels = pixels.mean(-1, keepdims=True)
            normalised = (pixels.astype(np.float32) - self.mean) / self.deviation
            block = torch.from_numpy(normalised).permute(0, 3, 1, 2)  # [n, C, H, W]
            if block.shape[2:] != (size, size):
                block = interpolate(
                    block.contiguous(), (size, size), mode="bilinear", align_corners=False, antialias=True
                )
            tensor[start : start + len(block)] = block
        return tensor


def read(configuration: ImagesConfiguration) -> Source:
    """Find and check the images of `configuration.source`, without decoding images in files.

    Raises FileNotFoundError for missing files and ValueError for invalid ones; both name them.
    """
    if configuration.factory:
        raise ValueError("data.factory: only a client of a federation calls it, and there are no images; leave it out")
    path = place(configuration)
    if path is None:
        source = digits.read()
    elif configuration.source.startswith(TORCHVISION):
        source = torchvision_sets.read(path, configuration.source.removeprefix(TORCHVISION))
    else:
        source = READERS.get(configuration.source, npz.read)(path)
    if configuration.centres:
        source = fed_isic.at(configuration.centres, source)
    # An explicit list of classes may include empty ones on purpose.
    if not configuration.classes:
        return source.remarked()
    classes = tuple(normalize("NFC", name) for name in configuration.classes)
    # Names of folders are names, even if they look like numbers.
    return _renamed(source if configuration.source == "folder" else _named(source, classes), classes)


def load(configuration: DataConfiguration, *, image_size: int, source: Source | None = None) -> Dataset:
    """Load the images of `configuration.source` at `image_size` x `image_size` pixels. Raises as `read` does, and
    ValueError for an image file that cannot be decoded, or without training or test images. source: result of `read`,
    if there is one."""
    if configuration.statistics == "sum":
        raise ValueError(
            'data.statistics = "sum": there are no clients here whose pixels could be summed; leave it out'
        )
    source = source or read(configuration)
    for samples, what in ((source.train, "training"), (source.test, "test")):
        if not len(samples.images):
            raise ValueError(f"data.source {configuration.source!r} holds no {what} images")
    if configuration.mean:
        return normalise(source, image_size=image_size, mean=configuration.mean, std=configuration.std)
    mean, std = statistics(source.train.images, image_size=image_size)
    return normalise(source, image_size=image_size, mean=mean, std=std)


def normalise(source: Source, *, image_size: int, mean: Sequence[float], std: Sequence[float]) -> Dataset:
    """Return images, already read, with this normalisation: fractions of 255, one for each channel.

    Raises ValueError for images of other channels; coloured ones become grey where there is one channel.
    """
    for samples in (source.train, source.test):
        if len(samples.images) and samples.images.channels not in (len(mean), 3):
            raise ValueError(f"data.mean has {len(mean)} channels, and the images have {samples.images.channels}")
    return Dataset(
        source=source,
        channels=len(mean),
        image_size=image_size,
        mean=np.asarray([255 * value for value in mean], np.float32),
        deviation=np.asarray([255 * value for value in std], np.float32),
    )


def _named(source: Source, classes: tuple[str, ...]) -> Source:
    """Name numbered classes: a number is an index in a list of names, and a note says so."""
    count = len(source.class_names)
    if source.class_names != tuple(map(str, range(count))) or not set(source.class_names).isdisjoint(classes):
        return source
    if count > len(classes):
        raise ValueError(f"data.classes names {len(classes)} classes, and labels go from 0 to {count - 1}: name all")
    shown = ", ".join(f"{number} {name}" for number, name in enumerate(classes[: min(count, 8)])) + ", ..." * (
        count > 8
    )
    note = f"labels are places in data.classes: {shown}; write names as labels if that is another order"
    return replace(source, class_names=classes[:count], notes=(*source.notes, note))


def _renamed(source: Source, classes: tuple[str, ...]) -> Source:
    if strange := [name for name in source.class_names if name not in classes]:
        shown = ", ".join(strange[:8]) + ", ..." * (len(strange) > 8)
        raise ValueError(f"data.classes lacks classes that the images have: {shown}; add them, for all parties alike")
    numbers = np.array([classes.index(name) for name in source.class_names], np.int64)

    def renumbered(samples: Samples) -> Samples:
        return replace(samples, labels=numbers[samples.labels])

    return replace(source, train=renumbered(source.train), test=renumbered(source.test), class_names=classes)


def statistics(images: Images, *, image_size: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of the pixels of every channel, as fractions of 255."""
    found = moments(images, channels=images.channels, image_size=image_size, indices=images.representative())
    return found.normalisation()


def split(images: torch.Tensor, part: float, run: bytes) -> tuple[torch.Tensor, torch.Tensor]:
    """Split images float32 [N, C, S, S] into int64 indices for training and, floor(part * N) of them, for validation,
    each in order.

    The validation set has the lowest digests, keyed by the name of the run (at most 64 bytes). Other images affect its
    size alone. Equal images come one after the other.
    """
    count = math.floor(Fraction(str(part)) * len(images))
    if not count:
        return torch.arange(len(images)), torch.arange(0)
    digests = [blake2b(image.numpy().tobytes(), key=run, digest_size=16).digest() for image in images]
    order = torch.tensor(sorted(range(len(images)), key=digests.__getitem__))
    return order[count:].sort().values, order[:count].sort().values
