"""The part of a data set that a study runs on, where a paper gives every client a fixed number of images."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from tacit.models.configuration import DataConfiguration
from tacit.models.datasets.samples import Samples
from tacit.simulate.experiments.data import DataError, StudyImages
from tacit.simulate.runs.directory import writing

SIDE: Final = 32
"""Height and width of what is written; files of other sizes are resized, as the papers have them."""
_SEED: Final = 0


def sample(images: StudyImages, directory: Path, *, per_client: int, clients: int) -> DataConfiguration:
    """Write `sample.npz`, with so many training and as many test images for every client, drawn at random; returns how
    to read it. DataError if there are fewer, OSError if the file cannot be written."""
    wanted = per_client * clients
    arrays: dict[str, Any] = {}
    generator = np.random.default_rng(_SEED)
    for part, samples in (("train", images.source.train), ("test", images.source.test)):
        found = len(samples.labels)
        if found < wanted:
            raise DataError(
                f"{images.name} has {found:,} {part} images; {clients} clients with {per_client:,} each need {wanted:,}"
            )
        arrays |= _part(part, samples, np.sort(generator.permutation(found)[:wanted]))
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "sample.npz"
    with writing(path):
        np.savez(path, **arrays)
    return msgspec.structs.replace(images.configuration, source=str(path.resolve()), directory="")


def _part(name: str, samples: Samples, indices: npt.NDArray[np.int64]) -> dict[str, npt.NDArray[Any]]:
    return {f"x_{name}": samples.images.pixels(indices, size=SIDE), f"y_{name}": samples.labels[indices]}
