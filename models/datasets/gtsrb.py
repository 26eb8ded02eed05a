"""The German Traffic Sign Recognition Benchmark (Stallkamp et al. 2012), in the folders that torchvision uses.

In gtsrb/, GTSRB/Training/00000 ... 00042 are for training, GTSRB/Final_Test/Images, by GT-final_test.csv, for the test.

Those are 26,640 training images. The literature, FedRSM (Chen et al. 2023) too, trains on 34,799: the 39,209 of the
final training set, in GTSRB/Final_Training/Images, less a tenth of the tracks of each class, rounded up (a track, some
30 pictures of one sign, shares the first number of its names). That folder is read in this way if it exists. The
literature does not say which tracks it leaves out; here it is the last ones.
"""

from pathlib import Path
from typing import Final

import numpy as np

from tacit.models.datasets.image_folder import samples_by_class
from tacit.models.datasets.samples import FileImages, Samples, Source, labelled, require_folder, table, whole_number

_CLASSES: Final = 43


def read(directory: Path) -> Source:
    """Read all 43 classes. FileNotFoundError for missing files, ValueError for an empty class or bad table."""
    base = require_folder(directory / "gtsrb", purpose="GTSRB in the folders that torchvision uses")
    names = tuple(f"{label:05d}" for label in range(_CLASSES))
    final = base / "GTSRB" / "Final_Training" / "Images"
    whole = final.is_dir()
    training = final if whole else require_folder(base / "GTSRB" / "Training", purpose="a folder for each class in it")
    images = require_folder(base / "GTSRB" / "Final_Test" / "Images", purpose="the test images")
    rows = table(
        base / "GT-final_test.csv",
        purpose="the classes of the test images",
        columns=("Filename", "ClassId"),
        delimiter=";",
    )
    found = [
        (images / row["Filename"], whole_number(row["ClassId"], below=_CLASSES, place=place, column="ClassId"))
        for place, row in rows
    ]
    if not found:
        raise ValueError(f"{base / 'GT-final_test.csv'} names no test image")
    train = samples_by_class(training, {name: label for label, name in enumerate(names)}, extensions=(".ppm",))
    return Source(
        train=_without_last_tracks(train) if whole else train,
        test=labelled(found),
        class_names=names,
    )


def _without_last_tracks(train: Samples) -> Samples:
    assert isinstance(train.images, FileImages)
    tracks: dict[int, dict[str, list[int]]] = {}
    for index, (path, label) in enumerate(zip(train.images.paths, train.labels.tolist(), strict=True)):
        tracks.setdefault(label, {}).setdefault(path.name.partition("_")[0], []).append(index)
    kept: list[int] = []
    for of_class in tracks.values():
        last = -(-len(of_class) // 10)
        if last == len(of_class):
            folder = train.images.paths[next(iter(of_class.values()))[0]].parent
            raise ValueError(f"{folder} has one track, and none is left for training; all 39,209 images are expected")
        for number in sorted(of_class)[:-last]:
            kept += of_class[number]
    return train.part(np.array(kept, dtype=np.int64))
