"""Data sets of torchvision by class name, in torchvision's layout on the disk."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, ClassVar, Final, Self

import numpy as np

from tacit.models.datasets.samples import MOST_DECODED_FOR_STATISTICS, SQUASHED, Indices, Pixels, Samples, Source
from tacit.models.datasets.samples import displayed as shown_image

_LABELS: Final = ("targets", "labels", "_labels", "y")
"""Attributes in which torchvision's classes keep all labels."""
_PARTS: Final = {"train": ("train", "trainval", "train_noval"), "test": ("test", "val")}


@dataclass(frozen=True, eq=False)
class TorchvisionImages:
    """Images that a data set of torchvision decodes one by one; always three channels."""

    dataset: Any = field(repr=False)
    indices: Indices = field(repr=False)
    channels: ClassVar[int] = 3

    def __len__(self) -> int:
        return len(self.indices)

    def sizes(self) -> Iterator[tuple[int, int]]:
        for index in self.indices:
            image = self.dataset[int(index)][0]
            yield image.height, image.width

    def pixels(self, indices: Indices, *, size: int) -> Pixels:
        chosen = self.indices[indices]
        images = (SQUASHED.square(shown_image(self.dataset[int(index)][0]), size) for index in chosen)
        return np.stack([np.zeros((size, size, 3), np.uint8), *map(np.asarray, images)])[1:]

    def representative(self) -> Indices:
        count = min(len(self), MOST_DECODED_FOR_STATISTICS)
        return np.arange(count) * len(self) // count

    def part(self, indices: Indices) -> Self:
        return type(self)(self.dataset, self.indices[indices])


def read(directory: Path, name: str) -> Source:
    """Read the data set of this class of torchvision.datasets. ValueError for one that is unknown, missing, or without
    labels of classes."""
    from torchvision import datasets

    kind = getattr(datasets, name, None) if name in datasets.__all__ else None
    where = f'data.source = "torchvision:{name}"'
    if kind is None:
        close = get_close_matches(name, datasets.__all__, n=3, cutoff=0.4)
        raise ValueError(f"{where}: torchvision.datasets has no {name}; did you mean {' or '.join(close) or 'MNIST'}?")
    parts: dict[str, Samples] = {}
    names: tuple[str, ...] = ()
    for part, splits in _PARTS.items():
        dataset = _opened(where, kind, directory, part, splits)
        labels = _labels(where, dataset)
        parts[part] = Samples(TorchvisionImages(dataset, np.arange(len(labels))), labels)
        named = getattr(dataset, "classes", ())
        names = max(names, tuple(map(str, named)), key=len)
    classes = max(len(names), *(int(samples.labels.max(initial=0)) + 1 for samples in parts.values()))
    names = names if len(names) == classes else tuple(map(str, range(classes)))
    return Source(parts["train"], parts["test"], class_names=names)


def _opened(where: str, kind: Any, directory: Path, part: str, splits: tuple[str, ...]) -> Any:
    parameters = inspect.signature(kind.__init__).parameters
    options: list[dict[str, Any]] = [{"split": split} for split in splits]
    if "train" in parameters:
        options = [{"train": part == "train"}]
    elif "split" not in parameters:
        raise ValueError(
            f'{where}: it is not divided into training and test; divide it into folders, for data.source = "folder"'
        )
    problem: Exception | None = None
    for each in options:
        try:
            return kind(str(directory), **each)
        except (RuntimeError, ValueError, OSError, TypeError) as error:
            problem = problem or error
    reason = " ".join(str(problem).split())[:200]
    raise ValueError(
        f"{where}: torchvision cannot open its {part} part in {directory}: {reason}; nothing is downloaded: do that "
        "with torchvision, and name the same root as data.directory"
    )


def _labels(where: str, dataset: Any) -> Indices:
    found = next((getattr(dataset, name) for name in _LABELS if len(getattr(dataset, name, ())) == len(dataset)), None)
    try:
        labels = np.asarray([dataset[index][1] for index in range(len(dataset))] if found is None else found)
        if labels.ndim != 1 or labels.dtype.kind not in "iu" or labels.min(initial=0) < 0:
            raise ValueError
    except (ValueError, TypeError, KeyError):
        raise ValueError(f"{where}: it does not have one class for each image, which is what is learned here") from None
    return labels.astype(np.int64)
