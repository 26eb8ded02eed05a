"""Tiny ImageNet (Le and Yang 2015): 200 classes of ImageNet at 64 x 64 pixels.

The folder test has no labels; as usual, the images of val are the test set.
"""

from pathlib import Path

from tacit.models.datasets.image_folder import samples_by_class
from tacit.models.datasets.samples import Source, labelled, lines, require_folder, table


def read(directory: Path) -> Source:
    """Read the classes of wnids.txt, in alphabetical order. FileNotFoundError for missing files, ValueError for an
    empty class or an annotation of another class."""
    base = require_folder(directory / "tiny-imagenet-200", purpose="Tiny ImageNet")
    names = sorted(lines(base / "wnids.txt", purpose="the identifiers of the classes"))
    labels = {name: label for label, name in enumerate(names)}
    annotations = base / "val" / "val_annotations.txt"
    found = []
    rows = table(
        annotations,
        purpose="the classes of the validation images",
        columns=("image", "class"),
        delimiter="\t",
        header=False,
    )
    for place, row in rows:
        if row["class"] not in labels:
            raise ValueError(f"{place}: class {row['class']!r} is not in wnids.txt")
        found.append((base / "val" / "images" / row["image"], labels[row["class"]]))
    if not found:
        raise ValueError(f"{annotations} names no image")
    training = require_folder(base / "train", purpose="a folder for each class in it")
    return Source(
        train=samples_by_class(training, labels),
        test=labelled(found),
        class_names=tuple(names),
    )
