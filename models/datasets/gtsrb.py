"""The German Traffic Sign Recognition Benchmark (Stallkamp et al. 2012), in the folders that torchvision uses.

In gtsrb/, GTSRB/Training/00000 ... 00042 are for training, GTSRB/Final_Test/Images, by GT-final_test.csv, for the test.
"""

from pathlib import Path
from typing import Final

from tacit.models.datasets.files import require_folder, table, whole_number
from tacit.models.datasets.image_folder import samples_by_class
from tacit.models.datasets.samples import Source, labelled

_CLASSES: Final = 43


def read(directory: Path) -> Source:
    """Read all 43 classes. Raises FileNotFoundError for what is missing, ValueError for an empty class or bad table."""
    base = require_folder(directory / "gtsrb", purpose="GTSRB in the folders that torchvision uses")
    names = tuple(f"{label:05d}" for label in range(_CLASSES))
    training = require_folder(base / "GTSRB" / "Training", purpose="a folder for each class in it")
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
    return Source(
        train=samples_by_class(training, {name: label for label, name in enumerate(names)}, extensions=(".ppm",)),
        test=labelled(found),
        class_names=names,
    )
