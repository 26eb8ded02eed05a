"""Fed-ISIC2019 (du Terrail et al. 2022, "FLamby"): skin lesions from six centres, in eight classes.

The folder holds FLamby's ISIC_2019_Training_Input_preprocessed, and its table train_test_split: an image, its class
("target"), its centre and its fold in every row.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from tacit.models.datasets.samples import FileImages, Samples, Source, require_folder, table, whole_number

_CLASS_NAMES: Final = ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")
_CENTRES: Final = 6


def read(directory: Path) -> Source:
    """Read the pooled training and test images of all centres. FileNotFoundError for missing files, ValueError for a
    row out of range, or a fold or class without images."""
    images = require_folder(directory / "ISIC_2019_Training_Input_preprocessed", purpose="the images of Fed-ISIC2019")
    path = directory / "train_test_split"
    folds: dict[str, list[tuple[Path, int, int]]] = {"train": [], "test": []}
    rows = table(
        path,
        purpose="the table from FLamby's dataset_creation_scripts",
        columns=("image", "target", "center", "fold"),
        delimiter=",",
    )
    for place, row in rows:
        if row["fold"] not in folds:
            raise ValueError(f"{place}: fold is {row['fold']!r}, expected 'train' or 'test'")
        target = whole_number(row["target"], below=len(_CLASS_NAMES), place=place, column="target")
        centre = whole_number(row["center"], below=_CENTRES, place=place, column="center")
        folds[row["fold"]].append((images / f"{row['image']}.jpg", target, centre))
    if not folds["test"]:
        raise ValueError(f"{path} has no image in fold 'test'")
    present = {target for _, target, _ in folds["train"]}
    if empty := [name for label, name in enumerate(_CLASS_NAMES) if label not in present]:
        raise ValueError(f"{path} has no image in fold 'train' of class {', '.join(empty)}")
    return Source(train=_samples(folds["train"]), test=_samples(folds["test"]), class_names=_CLASS_NAMES)


def at(centres: Sequence[int], source: Source) -> Source:
    """Keep the images of these centres. ValueError for a centre without a training image."""

    def taken(samples: Samples) -> Samples:
        assert samples.centres is not None
        return samples.part(np.flatnonzero(np.isin(samples.centres, centres)))

    train = taken(source.train)
    if missing := set(centres) - set(np.unique(np.asarray(train.centres)).tolist()):
        raise ValueError(
            f"data.centres = {list(centres)}: no training image is of centre {min(missing)}; leave it out of the list"
        )
    return Source(train=train, test=taken(source.test), class_names=source.class_names)


def _samples(rows: list[tuple[Path, int, int]]) -> Samples:
    paths, targets, centres = zip(*rows, strict=True)
    return Samples(FileImages(paths), np.array(targets, dtype=np.int64), np.array(centres, dtype=np.int64))
