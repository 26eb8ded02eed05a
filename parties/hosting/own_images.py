"""The images that a data owner asks about, as they lie on its host: how many they are, what they are called, and what
is known of them. What the model takes, and so their pixels, are known only when the model owner has said it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch

from tacit.models.configuration import ImagesConfiguration
from tacit.models.data import normalise, read
from tacit.models.datasets.image_files import ScaledFiles, image_files
from tacit.models.datasets.samples import Samples, Source
from tacit.parties.inference.model import Interface


@dataclass(frozen=True, eq=False)
class OwnImages:
    """Made by `own_images`."""

    names: tuple[str, ...]
    labels: tuple[str, ...] | None
    """Names of their classes, where they are known."""
    digest: str
    """32 hexadecimal digits, of all of them in their order."""
    _files: tuple[Path, ...] = field(repr=False)
    _samples: Samples | None = field(repr=False)

    def samples(self, *, white: int = 255) -> Samples:
        """All of them, not decoded yet; white: the number of a white pixel, to which those in files are brought."""
        if self._samples is not None:
            return self._samples
        return Samples(ScaledFiles(self._files, white=white), np.zeros(len(self._files), np.int64))

    def prepared(self, interface: Interface, *, side: int, first: int) -> torch.Tensor:
        """Those from the first on, as a model of this interface takes them: float32 [n, C, side, side]. ValueError for
        one that cannot be decoded, or has other channels."""
        samples = self.samples(white=interface.white)
        source = Source(train=samples, test=samples, class_names=())
        data = normalise(source, image_size=side, mean=interface.mean, std=interface.std)
        return data.normalised(samples.images, np.arange(first, len(self.names)))


def own_images(wanted: str) -> OwnImages:
    """What `images` of a party file names. ValueError or OSError for what is not there, or has no image."""
    if wanted == "digits" or wanted.endswith(".npz"):
        source = read(ImagesConfiguration(source=wanted))
        test, names = source.test, source.class_names
        if not len(test.images):
            raise ValueError(f"images = {wanted!r}: there are no test images in it (x_test and y_test)")
        count = len(test.images)
        everything = test.images.pixels(np.arange(count), size=1)
        return OwnImages(
            tuple(f"test {index}" for index in range(count)),
            tuple(names[label] for label in test.labels),
            _digest([str(everything.shape).encode(), everything.tobytes()]),
            (),
            test,
        )
    try:
        files = image_files(Path(wanted))
    except ValueError as error:
        raise ValueError(f"images = {wanted!r}: {error}") from None
    contents = [part for file in files for part in (file.name.encode(), sha256(file.read_bytes()).digest())]
    return OwnImages(tuple(file.name for file in files), None, _digest(contents), files, None)


def _digest(parts: Sequence[bytes]) -> str:
    found = sha256()
    for part in parts:
        found.update(len(part).to_bytes(8, "big") + part)
    return found.hexdigest()[:32]
